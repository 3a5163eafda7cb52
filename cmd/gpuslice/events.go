// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
	"github.com/gpuslice/gpuslice/enforcer/api"
)

func eventsCommand() *cli.Command {
	return &cli.Command{
		Name:      "events",
		Usage:     "show what happened to slices: refusals, beginnings, ends",
		ArgsUsage: "[SLICE|POOL]",
		Description: `SLICE may be the beginning of a slice's or a container's id. POOL is a pool's name: its own events are shown, and
what its limit refused. Without either all are shown. The enforcer keeps 4096 events since it was
started; then whoever has most of them loses the oldest for each new one.

   gpuslice events --since 10m
   gpuslice events --follow 3f2a91c0d5e8
   gpuslice events --follow --json --since 5f0c2a91:417
   gpuslice events --json |
      jq -r 'select(.kind == "refused") | [.slice, .requested] | @tsv'`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on with what happens from now on, until interrupted"},
			&cli.StringFlag{Name: "since", Usage: "only events of the last `DURATION`, such as 90s or 10m, or after the event of that number: `INSTANCE:SEQ`, as --json has them, or SEQ alone: all, if gpusliced was started anew and has not come to it"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON lines, as the control API has them"},
			&cli.BoolFlag{Name: "no-trunc", Usage: "do not shorten ids"},
		},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			words, err := words(c)
			if err != nil {
				return err
			}
			id := ""
			switch len(words) {
			case 0:
			case 1:
				id = words[0]
			default:
				return misuse("events takes one SLICE, or one POOL: `gpuslice ps` and `gpuslice pool list` list them")
			}
			after, from, err := since(c.String("since"), time.Now())
			if err != nil {
				return asMisuse(err)
			}
			put := func(e api.Event) error { return show.Event(c.App.Writer, e, c.Bool("no-trunc")) }
			if c.Bool("json") {
				put = func(e api.Event) error { return json.NewEncoder(c.App.Writer).Encode(e) }
			}
			ctx, stop := signal.NotifyContext(c.Context, syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			told, shown := false, false
			err = connect(c).Events(ctx, after.instance, after.seq, c.Bool("follow"), func(e api.Event) error {
				if !told && after.instance == "" && e.Seq <= after.seq {
					fmt.Fprintf(c.App.ErrWriter, "gpuslice: gpusliced has not come to event %d since it was started: all that it keeps is shown\n", after.seq)
				}
				told = true
				if !concerns(e, id, from) {
					return nil
				}
				shown = true
				return put(e)
			})
			if ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return nil // that is how one ends to follow
			}
			if err == nil && !shown && id != "" && !c.IsSet("since") {
				fmt.Fprintf(c.App.ErrWriter, "gpuslice: no such event of %q is kept: it may have ended long ago, or never have been\n", id)
			}
			return err
		},
	}
}

// position is an event's: its number, and whose number that is.
type position struct {
	instance string // empty: the enforcer's that answers
	seq      uint64
}

// since reads what a person writes for the place to begin at: the number of an event, or how long ago. One of after and from
// is its zero value.
func since(text string, now time.Time) (after position, from time.Time, err error) {
	if text == "" {
		return position{}, time.Time{}, nil
	}
	instance, number, both := strings.Cut(text, ":")
	if !both {
		instance, number = "", text
	}
	if seq, err := strconv.ParseUint(number, 10, 64); err == nil && both == (instance != "") {
		return position{instance, seq}, time.Time{}, nil
	}
	ago, err := api.ParseDuration(text)
	if err != nil || ago < 0 {
		return position{}, time.Time{}, fmt.Errorf("--since %q: a duration such as 90s, 10m, 2h or 1d is accepted, or an event's INSTANCE:SEQ or SEQ", text)
	}
	return position{}, now.Add(-ago), nil
}

// concerns says whether an event is of a slice that id begins, or of the pool that has that name, and not of before from. What
// was missed may have been, unless it is known to be of another slice.
func concerns(e api.Event, id string, from time.Time) bool {
	unknown := e.Kind == api.EventMissed && e.Slice == ""
	return !e.Time.Before(from) && (unknown || show.Names(id, e.Slice) || show.Names(id, e.Container) || e.Pool == id)
}

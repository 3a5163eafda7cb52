// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/manual"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/table"
)

func eventsCommand() *cli.Command {
	return &cli.Command{
		Name:      "events",
		Usage:     "show events of slices and pools",
		ArgsUsage: "[SLICE|POOL]",
		Description: `SLICE may be the beginning of a slice's or a container's id, or a name. POOL is a pool's name: its own events are shown, and
what its limit refused. Without either all are shown. The enforcer keeps 4096 events since it was
started; then each new one replaces the oldest of the container, user or operator with most events.

   gpuslice events --since 10m
   gpuslice events --follow 3f2a91c0d5e8
   gpuslice events -n 20 -f
   gpuslice events --filter kind=refused --format '{{.Slice}} {{.Text}}'
   gpuslice events --follow --json --since 5f0c2a91:417
   gpuslice events --json |
      jq -r 'select(.kind == "refused") | [.slice, .requested] | @tsv'`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "follow new events, also after gpusliced restarts, until interrupted"},
			&cli.IntFlag{Name: "n", Usage: "only the last `N` of the events that are kept", DefaultText: "all"},
			&cli.StringFlag{Name: "since", Usage: "only events of the last `DURATION`, such as 90s or 10m, or after the event of that number: `INSTANCE:SEQ`, as --json has them, or SEQ alone: all, if gpusliced was started anew and has not come to it"},
			manual.StringsOf{Values: filterWords(show.EventTable.FilterKeys()), StringSliceFlag: &cli.StringSliceFlag{Name: "filter", Usage: "only events with `KEY=VALUE`, of the keys " + strings.Join(show.EventTable.FilterKeys(), ", ") + "; may be repeated"}},
			manual.StringOf{Values: []string{"json"}, StringFlag: &cli.StringFlag{Name: "format", Usage: "print each event by a `TEMPLATE` with .Kind, .Time, .Position, .Slice, .Container, .Tenant, .Pool, .Device, .PID, .Command, .Text; or json"}},
			&cli.BoolFlag{Name: "json", Usage: "print JSON lines, as the control API has them: the same as --format json"},
			&cli.BoolFlag{Name: "no-trunc", Usage: "do not shorten ids"},
		},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			words, err := nonFlags(c)
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
			if c.IsSet("n") && c.Int("n") < 1 {
				return misuse("-n %d: 1 and more are accepted", c.Int("n"))
			}
			ctx, stop := signal.NotifyContext(c.Context, syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			p := printer{c: c, id: id, from: from, last: after}
			filters := c.StringSlice("filter")
			for i, filter := range filters {
				if name, ok := strings.CutPrefix(filter, "device="); ok {
					if name, err = deviceNamed(c, name); err != nil {
						return asMisuse(err)
					}
					filters[i] = "device=" + name
				}
			}
			if p.keep, err = show.EventTable.Keep(filters); err != nil {
				return asMisuse(err)
			}
			format := c.String("format")
			switch {
			case c.IsSet("format") && (format == "" || c.Bool("json") && format != "json"):
				return misuse("--format %q: a template such as {{.Kind}}, or json, is accepted, and --json is the latter", format)
			case c.Bool("json"):
				format = "json"
			}
			if format != "" {
				if p.line, err = show.EventTable.Line(format); err != nil {
					return asMisuse(err)
				}
			}
			if err := p.run(ctx); err != nil {
				return err
			}
			if !p.shown && id != "" && !c.IsSet("since") {
				fmt.Fprintf(c.App.ErrWriter, "gpuslice: no such event of %q is kept: it may have ended long ago, or never have been\n", id)
			}
			return nil
		},
	}
}

const reconnect = 250 * time.Millisecond

type printer struct {
	c        *cli.Context
	id       string
	from     time.Time
	keep     func(api.Event) bool
	line     table.Printer[api.Event] // nil: for people
	indices  show.Indices             // nil until a line for people is printed
	last     position                 // position of the last event, or the one to begin after
	received bool                     // at least one event was received
	shown    bool                     // at least one event matched
}

// run prints the matching events, or the last n of them, and with --follow later ones, through restarts of the enforcer until ctx
// ends.
func (p *printer) run(ctx context.Context) error {
	if n := p.c.Int("n"); n > 0 {
		var tail []api.Event
		err := p.receive(ctx, false, func(e api.Event) error {
			if tail = append(tail, e); len(tail) > n {
				tail = tail[1:]
			}
			return nil
		})
		for _, e := range tail {
			err = errors.Join(err, p.put(e))
		}
		if err != nil || !p.c.Bool("follow") {
			return err
		}
	}
	waiting := false
	for {
		told := p.received
		p.received = false
		err := p.receive(ctx, p.c.Bool("follow"), p.put)
		waiting = waiting && !p.received
		p.received = p.received || told
		switch {
		case ctx.Err() != nil && errors.Is(err, context.Canceled), ctx.Err() != nil && waiting:
			return nil // interrupting is how following ends
		case !p.c.Bool("follow") || !p.received || !errors.Is(err, api.ErrUnreachable):
			return err
		case !waiting:
			fmt.Fprintln(p.c.App.ErrWriter, "gpuslice: gpusliced does not answer any more: waiting until it does")
			waiting = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnect):
		}
	}
}

// receive calls do with the matching events after the last position.
func (p *printer) receive(ctx context.Context, follow bool, do func(api.Event) error) error {
	return connect(p.c).Events(ctx, p.last.instance, p.last.seq, follow, func(e api.Event) error {
		if !p.received && p.last.instance == "" && e.Seq <= p.last.seq {
			fmt.Fprintf(p.c.App.ErrWriter, "gpuslice: gpusliced has not come to event %d since it was started: all that it keeps is shown\n", p.last.seq)
		}
		p.received = true
		p.last = position{e.Instance, e.Seq}
		if !concerns(e, p.id, p.from) || e.Kind != api.EventMissed && !p.keep(e) {
			return nil
		}
		p.shown = true
		return do(e)
	})
}

func (p *printer) put(e api.Event) error {
	if p.line != nil {
		return p.line(p.c.App.Writer, []api.Event{e}, table.Colours(p.c.App.Writer))
	}
	if p.indices == nil {
		p.indices = indices(p.c.Context, connect(p.c))
	}
	return show.Event(p.c.App.Writer, e, p.indices, p.c.Bool("no-trunc"))
}

// position is an event's number and the enforcer that numbered it.
type position struct {
	instance string // empty: the current enforcer's
	seq      uint64
}

// since parses --since: the number of an event, or a duration before now. It sets either after or from.
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

// concerns reports whether an event is of a slice that id names, or of the pool id, and not before from. Missed events match,
// unless they are known to be of another slice.
func concerns(e api.Event, id string, from time.Time) bool {
	unknown := e.Kind == api.EventMissed && e.Slice == ""
	return !e.Time.Before(from) && (unknown || id == "" || e.Pool == id || show.Names(id, show.Named{ID: e.Slice, Container: e.Container, Names: e.Names}) < show.NotMeant)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/manual"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/table"
)

const listHelp = `

--filter chooses rows: of one key any value may hold, of several keys all must. --format is a Go template as
Docker has them, of one row ({{.%s}}); "table" before it adds a heading, json is a line of JSON for each, and yaml is as with --output.
JSON and YAML are the control API's, and only tables shorten. NO_COLOR=1 turns colours off.`

func listFlags[R any](t *table.Table[R]) []cli.Flag {
	var fields []string
	for _, c := range t.Columns {
		fields = append(fields, "."+c.Field)
	}
	return []cli.Flag{
		&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print ids alone"},
		manual.StringOf{Values: []string{"json", "yaml", "table"}, StringFlag: &cli.StringFlag{Name: "format", Usage: "print each row by a `TEMPLATE` with " + strings.Join(fields, ", ") + "; or json, or yaml"}},
		manual.StringsOf{Values: filterWords(t.FilterKeys()), StringSliceFlag: &cli.StringSliceFlag{Name: "filter", Usage: "only rows with `KEY=VALUE`, of the keys " + strings.Join(t.FilterKeys(), ", ") + "; may be repeated"}},
		manual.StringOf{Values: sortWords(t.SortKeys()), StringFlag: &cli.StringFlag{Name: "sort", Usage: "sort by `COLUMN`, with - before it for the largest first: " + strings.Join(t.SortKeys(), ", ")}},
		manual.StringOf{Values: table.Outputs, StringFlag: &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "print it in this `SHAPE`: " + strings.Join(table.Outputs, ", ")}},
		&cli.BoolFlag{Name: "json", Usage: "the same as --output json"},
		&cli.BoolFlag{Name: "no-trunc", Usage: "do not shorten ids and UUIDs"},
	}
}

// filterWords returns the completions of --filter.
func filterWords(keys []string) (words []string) {
	for _, key := range keys {
		words = append(words, key+"=")
	}
	return words
}

// sortWords returns the completions of --sort.
func sortWords(keys []string) (words []string) {
	for _, key := range keys {
		words = append(words, key, "-"+key)
	}
	return words
}

func watchFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "list again every second, or as --every says, until interrupted"},
		&cli.DurationFlag{Name: "every", Value: time.Second, Usage: "with --watch: how long after one list the next one begins"},
	}
}

// list prints the result of ask according to listFlags. It checks the flags before it calls ask.
func list[R any](c *cli.Context, t *table.Table[R], ask func(context.Context) ([]R, error)) error {
	o := table.Options{
		Whole: c.Bool("no-trunc"), Quiet: c.Bool("quiet"), Format: c.String("format"), Output: c.String("output"),
		Sort: c.String("sort"), Filters: c.StringSlice("filter"),
	}
	if c.Bool("json") {
		if o.Output != "" && o.Output != "json" {
			return misuse("--json and --output %s: one of them is accepted, as each says what is printed", o.Output)
		}
		o.Output = "json"
	}
	for _, name := range []string{"format", "output", "sort"} {
		if c.IsSet(name) && c.String(name) == "" {
			return misuse("--%s is empty (see `%s --help`)", name, c.Command.HelpName)
		}
	}
	print, err := t.Printer(o)
	if err != nil {
		return asMisuse(err)
	}
	colours := table.Colours(c.App.Writer)
	once := func(ctx context.Context, out io.Writer) error {
		rows, err := ask(ctx)
		if err != nil {
			return err
		}
		return print(out, rows, colours)
	}
	if c.Bool("watch") {
		return watch(c, once)
	}
	if c.IsSet("every") {
		return misuse("--every needs --watch")
	}
	return once(c.Context, c.App.Writer)
}

// watch calls once repeatedly. On a terminal it overwrites the previous output, elsewhere it appends. It continues through
// restarts of the enforcer.
func watch(c *cli.Context, once func(ctx context.Context, out io.Writer) error) error {
	every := c.Duration("every")
	if every < minEvery {
		return misuse("--every %s: at least %s is accepted", every, minEvery)
	}
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	var said error
	for first := true; ; first = false {
		begin := time.Now()
		var out bytes.Buffer
		err := once(ctx, &out)
		switch {
		case ctx.Err() != nil:
			return nil // interrupting is how watching ends
		case err != nil && (first || !errors.Is(err, api.ErrUnreachable)):
			return err
		case err != nil && said == nil:
			fmt.Fprintln(c.App.ErrWriter, "gpuslice: gpusliced does not answer any more: waiting until it does")
		case err == nil:
			if err := put(c.App.Writer, out.String(), first); err != nil {
				return err
			}
		}
		said = err
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every - min(every, time.Since(begin))):
		}
	}
}

// put prints one of several lists. On a terminal it prints from the top, as much as fits.
func put(out io.Writer, text string, first bool) error {
	size := terminalSize(out)
	if size == nil {
		if !first {
			text = "\n" + text
		}
		_, err := io.WriteString(out, text)
		return err
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if rows := int(size.Row) - 1; rows > 1 && len(lines) > rows {
		more := len(lines) - rows + 1
		lines = append(lines[:rows-1], fmt.Sprintf("… and %d more lines: `gpuslice top` has them all", more))
	}
	var b strings.Builder
	b.WriteString(ansi.CursorHomePosition)
	for _, line := range lines {
		b.WriteString(ansi.Truncate(line, max(int(size.Col), 1), "…") + ansi.EraseLineRight + "\n")
	}
	b.WriteString(ansi.EraseScreenBelow)
	_, err := io.WriteString(out, b.String())
	return err
}

func terminalSize(out io.Writer) *unix.Winsize {
	f, ok := out.(interface{ Fd() uintptr })
	if !ok {
		return nil
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return nil
	}
	return size
}

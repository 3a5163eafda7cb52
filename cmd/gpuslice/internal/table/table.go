// SPDX-License-Identifier: Apache-2.0

// Package table prints lists as tables, by templates, as JSON, YAML or ids only, filtered and sorted. It implements the flags of
// these commands, and knows nothing about the objects. It escapes control characters, except in JSON and YAML, which have the
// objects unchanged.
package table

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/muesli/termenv"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/api"
)

// Column is a column of a table.
type Column[R any] struct {
	Head  string
	Field string // name in templates and, in lower case, for sorting
	// Text returns the full text of a row; "" is none. Short returns the shortened one for tables; nil is Text.
	Text, Short func(R) string
	Number      func(R) uint64 // to sort by; nil: by Text
	None        string         // text in tables for ""; default "-"
	Optional    bool           // in tables only if any row has a value
	Wide        bool           // in wide tables only
	Alarm       func(R) bool   // highlight the cell; may be nil
}

// Table defines how rows are listed. Several rows may belong to one object.
type Table[R any] struct {
	Columns []Column[R]
	Filters []Filter[R]
	ID      func(R) string // name of the row's object
	Key     func(R) string // identifies the object; nil is ID
	Object  func(R) any    // for JSON and YAML
	// After prints text after a table; may be nil.
	After func(out io.Writer, rows []R, whole bool) error
}

// Options are the choices of the user. The zero value is a table.
type Options struct {
	Whole   bool     // do not shorten in tables
	Quiet   bool     // ids only
	Format  string   // a template, "table" with or without one, "yaml", or "json" for a line of JSON per object
	Output  string   // "" is "table"; "wide", "json", "yaml"
	Sort    string   // a column; "-" before it reverses the order
	Filters []string // KEY=VALUE
}

// Outputs are the accepted values of Options.Output.
var Outputs = []string{"table", "wide", "json", "yaml"}

// Printer prints rows. colours are those of out's terminal.
type Printer[R any] func(out io.Writer, rows []R, colours termenv.Profile) error

// Colours returns the colours to use on out: none unless it is a terminal, and none if NO_COLOR is set.
func Colours(out io.Writer) termenv.Profile { return termenv.NewOutput(out).EnvColorProfile() }

// Printer returns a Printer for o, or an error for invalid options.
func (t *Table[R]) Printer(o Options) (Printer[R], error) {
	shape, err := t.shape(o)
	if err != nil {
		return nil, err
	}
	keep, err := t.filter(o.Filters)
	if err != nil {
		return nil, err
	}
	order, err := t.order(o.Sort)
	if err != nil {
		return nil, err
	}
	return func(out io.Writer, rows []R, colours termenv.Profile) error {
		rows = slices.DeleteFunc(slices.Clone(rows), func(r R) bool { return !keep(r) })
		if order != nil {
			slices.SortStableFunc(rows, order)
		}
		return shape(out, rows, colours)
	}, nil
}

// Print prints all rows as a table.
func (t *Table[R]) Print(out io.Writer, rows []R, whole bool) error {
	return t.table(out, rows, Options{Whole: whole}, Colours(out))
}

func (t *Table[R]) shape(o Options) (Printer[R], error) {
	var given []string
	for name, set := range map[string]bool{"--quiet": o.Quiet, "--format": o.Format != "", "--output": o.Output != ""} {
		if set {
			given = append(given, name)
		}
	}
	slices.Sort(given)
	switch {
	case len(given) > 1:
		return nil, fmt.Errorf("%s: one of them is accepted, as each says what is printed", strings.Join(given, " and "))
	case o.Output != "" && !slices.Contains(Outputs, o.Output):
		return nil, fmt.Errorf("--output %q: %s are accepted", o.Output, and(Outputs))
	case o.Quiet:
		return func(out io.Writer, rows []R, _ termenv.Profile) error {
			return once(rows, t.ID, func(r R) error {
				_, err := fmt.Fprintln(out, api.Plain(t.ID(r)))
				return err
			})
		}, nil
	case o.Output == "json":
		return func(out io.Writer, rows []R, _ termenv.Profile) error {
			encoder := json.NewEncoder(out)
			encoder.SetIndent("", "  ")
			return encoder.Encode(t.objects(rows))
		}, nil
	case o.Output == "yaml", o.Format == "yaml":
		return func(out io.Writer, rows []R, _ termenv.Profile) error {
			text, err := yaml.Marshal(t.objects(rows))
			if err == nil {
				_, err = out.Write(text)
			}
			return err
		}, nil
	case o.Format != "" && o.Format != "table":
		return t.formatted(o)
	}
	return func(out io.Writer, rows []R, colours termenv.Profile) error { return t.table(out, rows, o, colours) }, nil
}

// objects returns the objects of the rows, each once.
func (t *Table[R]) objects(rows []R) []any {
	all := []any{} // [], not null
	_ = once(rows, t.key, func(r R) error {
		all = append(all, t.Object(r))
		return nil
	})
	return all
}

func (t *Table[R]) key(r R) string {
	if t.Key != nil {
		return t.Key(r)
	}
	return t.ID(r)
}

// once calls do with the first row of each key.
func once[R any](rows []R, key func(R) string, do func(R) error) error {
	done := make(map[string]bool)
	for _, r := range rows {
		if k := key(r); !done[k] {
			done[k] = true
			if err := do(r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *Table[R]) table(out io.Writer, rows []R, o Options, colours termenv.Profile) error {
	var shown []Column[R]
	for _, c := range t.Columns {
		says := func(r R) bool { return c.Text(r) != "" }
		if c.Wide && o.Output != "wide" || c.Optional && !slices.ContainsFunc(rows, says) {
			continue
		}
		shown = append(shown, c)
	}
	lines := [][]cell{nil}
	for _, c := range shown {
		lines[0] = append(lines[0], cell{c.Head, colours.String().Bold()})
	}
	for _, r := range rows {
		var line []cell
		for _, c := range shown {
			style := colours.String()
			if c.Alarm != nil && c.Alarm(r) {
				style = style.Foreground(colours.Color("1"))
			}
			line = append(line, cell{c.cell(r, o.Whole), style})
		}
		lines = append(lines, line)
	}
	if err := align(out, lines); err != nil || t.After == nil {
		return err
	}
	return t.After(out, rows, o.Whole)
}

// cell returns a row's cell in tables.
func (c Column[R]) cell(r R, whole bool) string {
	text := c.Text(r)
	if c.Short != nil && !whole {
		text = c.Short(r)
	}
	switch {
	case text != "":
		return api.Plain(text)
	case c.None != "":
		return c.None
	}
	return "-"
}

type cell struct {
	text  string
	style termenv.Style
}

const gap = "  "

// align writes lines with aligned cells. Escape codes of colours have no width.
func align(out io.Writer, lines [][]cell) error {
	var widths []int
	for _, line := range lines {
		for i, c := range line {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], ansi.StringWidth(c.text))
		}
	}
	var b strings.Builder
	for _, line := range lines {
		for i, c := range line {
			b.WriteString(c.style.Styled(c.text))
			if i < len(line)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-ansi.StringWidth(c.text)) + gap)
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func and(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}

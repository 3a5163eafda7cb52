// SPDX-License-Identifier: Apache-2.0

package table

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/template"

	"github.com/charmbracelet/x/ansi"
	"github.com/muesli/termenv"

	"github.com/gpuslice/gpuslice/api"
)

// functions are those of Docker's templates.
var functions = template.FuncMap{
	"json": func(v any) (string, error) {
		text, err := json.Marshal(v)
		return string(text), err
	},
	"split": strings.Split,
	"join":  strings.Join,
	"lower": strings.ToLower,
	"upper": strings.ToUpper,
	"pad": func(text string, before, after int) string {
		return strings.Repeat(" ", min(max(before, 0), maxPad)) + text + strings.Repeat(" ", min(max(after, 0), maxPad))
	},
	"truncate": func(text string, width int) string { return ansi.Truncate(text, max(width, 0), "") },
}

// maxPad is wider than any terminal.
const maxPad = 1024

// noField matches the error of a template with an unknown field.
var noField = regexp.MustCompile(`map has no entry for key "(.*)"`)

func (t *Table[R]) formatted(o Options) (Printer[R], error) {
	if o.Format == "json" {
		return func(out io.Writer, rows []R, _ termenv.Profile) error {
			return once(rows, t.key, func(r R) error { return json.NewEncoder(out).Encode(t.Object(r)) })
		}, nil
	}
	text, asTable := strings.CutPrefix(o.Format, "table ")
	execute, err := t.template(text)
	if err != nil {
		return nil, err
	}
	if !asTable {
		return func(out io.Writer, rows []R, _ termenv.Profile) error {
			for _, r := range rows {
				line, err := execute(t.fields(r))
				if err != nil {
					return err
				}
				if _, err := fmt.Fprintln(out, line); err != nil {
					return err
				}
			}
			return nil
		}, nil
	}
	return func(out io.Writer, rows []R, colours termenv.Profile) error {
		heads := make(map[string]string)
		for _, c := range t.Columns {
			heads[c.Field] = c.Head
		}
		var lines [][]cell
		add := func(fields map[string]string, style termenv.Style) error {
			text, err := execute(fields)
			var line []cell
			for _, part := range strings.Split(text, "\t") {
				line = append(line, cell{part, style})
			}
			lines = append(lines, line)
			return err
		}
		if err := add(heads, colours.String().Bold()); err != nil {
			return err
		}
		for _, r := range rows {
			cells := make(map[string]string)
			for _, c := range t.Columns {
				cells[c.Field] = c.cell(r, o.Whole)
			}
			if err := add(cells, colours.String()); err != nil {
				return err
			}
		}
		return align(out, lines)
	}, nil
}

// Line returns a Printer of single rows by a template, or as JSON.
func (t *Table[R]) Line(format string) (Printer[R], error) {
	if format == "table" || format == "yaml" || strings.HasPrefix(format, "table ") {
		return nil, fmt.Errorf("--format %q: a template such as {{.%s}}, or json, is accepted: events are printed as they happen", format, t.Columns[0].Field)
	}
	return t.formatted(Options{Format: format})
}

// template returns a function that fills the template with fields. It rejects unknown fields before any request.
func (t *Table[R]) template(text string) (func(fields map[string]string) (string, error), error) {
	text = strings.NewReplacer(`\t`, "\t", `\n`, "\n").Replace(text)
	parsed, err := template.New("--format").Funcs(functions).Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, fmt.Errorf("--format: %w: a Go template such as {{.%s}} is accepted, and json", err, t.Columns[0].Field)
	}
	execute := func(fields map[string]string) (string, error) {
		var b strings.Builder
		if err := parsed.Execute(&b, fields); err != nil {
			return "", fmt.Errorf("--format: %w", err)
		}
		return b.String(), nil
	}
	sample := make(map[string]string)
	var names []string
	for _, c := range t.Columns {
		sample[c.Field] = ""
		names = append(names, c.Field)
	}
	if _, err := execute(sample); err != nil {
		if m := noField.FindStringSubmatch(err.Error()); m != nil {
			return nil, fmt.Errorf("--format: there is no field .%s: %s are accepted", m[1], and(names))
		}
	}
	return execute, nil
}

// fields returns the unshortened fields of a row for a template.
func (t *Table[R]) fields(r R) map[string]string {
	all := make(map[string]string)
	for _, c := range t.Columns {
		all[c.Field] = api.Plain(c.Text(r))
	}
	return all
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
)

const helpWidth = 80

// printHelp prints a command's help, wrapped for a terminal. The library wraps before it knows the columns.
func printHelp(out io.Writer, template string, data any) {
	var help bytes.Buffer
	cli.HelpPrinterCustom(&help, template, data, nil)
	_, _ = io.WriteString(out, wrapHelp(help.String()))
}

// flagText formats a flag in a list. It omits the default of boolean flags, which is always false.
func flagText(stringer cli.FlagStringFunc) cli.FlagStringFunc {
	return func(f cli.Flag) string {
		return strings.TrimSuffix(strings.TrimRight(stringer(f), " "), " (default: false)")
	}
}

// wrapHelp wraps the paragraphs of a description, and the lists of flags and commands below their second column. Examples, which
// are indented further, stay unchanged.
func wrapHelp(text string) string {
	var out strings.Builder
	var paragraph []string
	section := ""
	flush := func() {
		if len(paragraph) > 0 {
			fill(&out, "   ", "   ", strings.Join(paragraph, " "))
			paragraph = nil
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		body := strings.TrimLeft(line, " ")
		indent := len(line) - len(body)
		switch {
		case indent == 0:
			flush()
			if line != "" {
				section, _, _ = strings.Cut(line, ":")
			}
			out.WriteString(line + "\n")
		case section == "DESCRIPTION" && indent == 3:
			paragraph = append(paragraph, body)
		case section != "DESCRIPTION" && utf8.RuneCountInString(line) > helpWidth && strings.Contains(body, "  "):
			head, rest, _ := strings.Cut(body, "  ")
			rest = strings.TrimLeft(rest, " ")
			lead := strings.Repeat(" ", indent) + head + "  "
			column := strings.Index(line, rest)
			if column > helpWidth/2 || utf8.RuneCountInString(lead) > column {
				out.WriteString(strings.TrimRight(lead, " ") + "\n")
				column = 10
				lead = strings.Repeat(" ", column)
			}
			lead += strings.Repeat(" ", max(0, column-utf8.RuneCountInString(lead)))
			fill(&out, lead, strings.Repeat(" ", column), rest)
		case section != "DESCRIPTION" && utf8.RuneCountInString(line) > helpWidth:
			fill(&out, strings.Repeat(" ", indent), strings.Repeat(" ", indent+3), body)
		default:
			flush()
			out.WriteString(line + "\n")
		}
	}
	flush()
	return out.String()
}

// fill writes text in lines; the first begins with lead, the others with indent.
func fill(out *strings.Builder, lead, indent, text string) {
	line := lead
	empty := true
	for _, word := range strings.Fields(text) {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > helpWidth {
			out.WriteString(line + "\n")
			line, empty = indent, true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	out.WriteString(line + "\n")
}

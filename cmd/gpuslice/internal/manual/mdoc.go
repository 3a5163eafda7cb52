// SPDX-License-Identifier: Apache-2.0

package manual

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

// Mdoc writes the manual page of root in the language of mdoc(7). since is the date of the page.
func Mdoc(out io.Writer, root Command, version string, since time.Time) error {
	p := &page{}
	p.line(".\\\" SPDX-License-Identifier: Apache-2.0")
	p.line(".\\\" Generated from the program's own definitions: " + root.Path[0] + " man")
	p.line(".Dd " + since.UTC().Format("January 2, 2006"))
	p.line(".Dt " + strings.ToUpper(root.Path[0]) + " 1")
	p.line(".Os gpuslice " + escape(version))
	p.line(".Sh NAME")
	p.line(".Nm " + root.Path[0])
	p.line(".Nd " + escape(root.Usage))
	p.line(".Sh SYNOPSIS")
	p.line(".Nm")
	for _, f := range root.Flags {
		if f.Value != "" {
			p.line(".Op " + f.macro(f.Names[0]))
		}
	}
	p.line(".Ar command")
	p.line(".Op Ar argument ...")
	p.line(".Sh DESCRIPTION")
	p.text(root.Description)
	p.line(".Pp")
	p.text("The flags, which stand before the command, are these:")
	p.flags(root.Flags)
	p.line(".Sh COMMANDS")
	for _, c := range root.Commands {
		c.walk(p.command)
	}
	p.line(".Sh ENVIRONMENT")
	p.line(".Bl -tag -width Ds")
	root.walk(func(c Command) {
		for _, f := range c.Flags {
			for _, env := range f.Env {
				p.line(".It Ev " + env)
				p.text("As the flag " + f.Names[0] + " of " + strings.Join(c.Path, " ") + ", which goes before it.")
			}
		}
	})
	p.line(".El")
	p.line(".Sh EXIT STATUS")
	p.text(root.Exit)
	p.line(".Sh SEE ALSO")
	p.line(".Xr gpuslice.toml 5 ,")
	p.line(".Xr gpuslice-hook 8 ,")
	p.line(".Xr gpuslice-runtime 8 ,")
	p.line(".Xr gpusliced 8")
	_, err := io.WriteString(out, p.String())
	return err
}

type page struct{ strings.Builder }

func (p *page) line(text string) { p.WriteString(text + "\n") }

func (p *page) command(c Command) {
	if c.Alias {
		return
	}
	title := strings.Join(c.Path, " ")
	if len(c.Flags) > 0 {
		title += " [flag ...]"
	}
	if c.Args != "" {
		title += " " + c.Args
	}
	// Allow a line break after each word of a list.
	p.line(".Ss " + strings.ReplaceAll(escape(title), "|", `|\:`))
	p.text(sentence(c.Usage))
	if len(c.Aliases) > 0 {
		p.text("It is also called " + strings.Join(c.Aliases, ", ") + ".")
	}
	if c.Description != "" {
		p.line(".Pp")
		p.text(c.Description)
	}
	if len(c.Flags) > 0 {
		p.flags(c.Flags)
	}
}

func (p *page) flags(flags []Flag) {
	p.line(".Bl -tag -width Ds")
	for _, f := range flags {
		var names []string
		for _, name := range f.Names {
			names = append(names, f.macro(name))
		}
		p.line(".It " + strings.Join(names, " , "))
		usage := f.Usage
		if f.Default != "" {
			usage += " (default: " + f.Default + ")"
		}
		p.text(usage)
	}
	p.line(".El")
}

func (f Flag) macro(name string) string {
	text := "Fl " + escape(name[1:]) // the macro adds a dash
	if f.Value != "" {
		text += " Ar " + escape(f.Value)
	}
	return text
}

// text writes paragraphs. Lines indented by three spaces or more stay as they are.
func (p *page) text(text string) {
	literal, blank := false, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		example, isExample := strings.CutPrefix(line, "   ")
		switch {
		case line == "":
			blank = true
			continue
		case isExample && !literal:
			p.line(".Bd -literal -offset indent")
		case !isExample && literal:
			p.line(".Ed")
			p.line(".Pp")
		case isExample && blank:
			p.line("")
		case blank:
			p.line(".Pp")
		}
		literal, blank = isExample, false
		if isExample {
			p.line(guard(escape(example)))
			continue
		}
		for _, part := range strings.Split(sentenceEnd.ReplaceAllString(line, "$1\n$2"), "\n") {
			p.line(guard(quoted(escape(part))))
		}
	}
	if literal {
		p.line(".Ed")
	}
}

// sentenceEnd matches the ends of sentences, where roff needs a new line to set the space itself.
var sentenceEnd = regexp.MustCompile(`([.:?]\)?) +([A-Z])`)

// quoted sets text in backquotes in bold.
func quoted(text string) string {
	if strings.Count(text, "`")%2 != 0 {
		return text
	}
	parts := strings.Split(text, "`")
	for i := range parts {
		if i%2 == 1 {
			parts[i] = `\fB` + parts[i] + `\fR`
		}
	}
	return strings.Join(parts, "")
}

// guard protects a line of text from being parsed as a request.
func guard(line string) string {
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		return `\&` + line
	}
	return line
}

// escape escapes text for roff: dashes stay usable in a shell, and characters beyond ASCII do not depend on the reader's
// encoding.
func escape(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\\':
			b.WriteString(`\e`)
		case r == '-':
			b.WriteString(`\-`)
		case r == '…':
			b.WriteString("...")
		case r > 126:
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// SPDX-License-Identifier: Apache-2.0

package manual

import (
	"fmt"
	"io"
	"strings"
)

// fishHead finds the command that the words belong to; "--" is appended to it within the user's command.
const fishHead = `# SPDX-License-Identifier: Apache-2.0
# fish completion for gpuslice: made by "gpuslice completion fish".

function __gpuslice_at
    set -l path gpuslice
    set -l skip 0
    set -l commands
    set -l valued
    set -l argument
    for word in (commandline -opc)[2..-1]
        if test $skip = 1
            set skip 0
            continue
        end
        __gpuslice_table
        if string match -q -- '-*' $word
            if test $word = --
                set path "$path --"
                break
            end
            contains -- $word $valued
            and set skip 1
        else if contains -- $word $commands
            set path "$path $word"
        else if test "$argument" = command
            set path "$path --"
            break
        end
    end
    test "$path" = "$argv"
end

function __gpuslice_table --no-scope-shadowing
    set commands
    set valued
    set argument
    switch "$path"
`

// Fish writes the completion for fish.
func Fish(out io.Writer, root Command) error {
	var b strings.Builder
	b.WriteString(fishHead)
	root.walk(func(c Command) {
		fmt.Fprintf(&b, "        case %s\n", single(strings.Join(c.Path, " ")))
		if kind, _ := c.argument(); kind == argCommand {
			b.WriteString("            set argument command\n")
		}
		if len(c.Commands) > 0 {
			b.WriteString("            set commands")
			for _, sub := range c.Commands {
				b.WriteString(" " + sub.name())
			}
			b.WriteString("\n")
		}
		if valued := c.flagNames(takesValue); len(valued) > 0 {
			fmt.Fprintf(&b, "            set valued %s\n", strings.Join(valued, " "))
		}
	})
	b.WriteString("    end\nend\n\ncomplete -c gpuslice -f\n")
	root.walk(func(c Command) { fishCommand(&b, root, c) })
	_, err := io.WriteString(out, b.String())
	return err
}

func fishCommand(b *strings.Builder, root, c Command) {
	path := strings.Join(c.Path, " ")
	at := func(path string) string { return "complete -c gpuslice -n " + fishQuote("__gpuslice_at "+path) }
	for _, sub := range c.Commands {
		fmt.Fprintf(b, "%s -xa %s -d %s\n", at(path), sub.name(), fishQuote(sub.Usage))
	}
	for _, f := range c.Flags {
		b.WriteString(at(path))
		for _, name := range f.Names {
			if len(name) == 2 {
				b.WriteString(" -s " + name[1:])
			} else {
				b.WriteString(" -l " + name[2:])
			}
		}
		switch {
		case f.File:
			b.WriteString(" -rF")
		case f.Values != nil:
			b.WriteString(" -xa " + fishQuote(strings.Join(f.Values, " ")))
		case f.dynamic() != "":
			b.WriteString(" -xa " + fishQuote("("+f.dynamic()+")"))
		case f.Value != "":
			b.WriteString(" -x")
		}
		b.WriteString(" -d " + fishQuote(f.Usage) + "\n")
	}
	switch kind, words := c.argument(); kind {
	case argWords:
		fmt.Fprintf(b, "%s -xa %s\n", at(path), fishQuote(strings.Join(words, " ")))
	case argSlice:
		fmt.Fprintf(b, "%s -xa %s\n", at(path), fishQuote("("+slicesCommand+")"))
	case argPool:
		fmt.Fprintf(b, "%s -xa %s\n", at(path), fishQuote("("+poolsCommand+")"))
	case argLease:
		fmt.Fprintf(b, "%s -xa %s\n", at(path), fishQuote("("+leasesCommand+")"))
	case argCommand:
		valued := append(root.flagNames(takesValue), c.flagNames(takesValue)...)
		// The dash precedes words that begin with two dashes, which fish would parse as its own flags.
		complete := fmt.Sprintf("(__fish_complete_subcommand --fcs-skip=%d - %s)", len(c.Path), strings.Join(valued, " "))
		fmt.Fprintf(b, "%s -xa %s\n%s -xa %s\n", at(path), fishQuote(complete), at(path+" --"), fishQuote(complete))
	}
}

// fishQuote quotes text for fish, which has escapes within single quotes.
func fishQuote(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
}

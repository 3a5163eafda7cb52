// SPDX-License-Identifier: Apache-2.0

package manual

import (
	"fmt"
	"io"
	"strings"
)

// Zsh writes the completion for zsh: one function per command, which calls that of the next word.
func Zsh(out io.Writer, root Command) error {
	var b strings.Builder
	b.WriteString("#compdef gpuslice\n# SPDX-License-Identifier: Apache-2.0\n# zsh completion for gpuslice: made by \"gpuslice completion zsh\".\n\n")
	fmt.Fprintf(&b, "_gpuslice_slices() {\n\tlocal -a slices\n\tslices=(${(f)\"$(%s)\"})\n\t_describe -t slices slice slices\n}\n\n", slicesCommand)
	fmt.Fprintf(&b, "_gpuslice_pools() {\n\tlocal -a pools\n\tpools=(${(f)\"$(%s)\"})\n\t_describe -t pools pool pools\n}\n\n", poolsCommand)
	fmt.Fprintf(&b, "_gpuslice_leases() {\n\tlocal -a leases\n\tleases=(${(f)\"$(%s)\"})\n\t_describe -t leases lease leases\n}\n\n", leasesCommand)
	fmt.Fprintf(&b, "_gpuslice_gpus() {\n\tlocal -a devices\n\tdevices=(${(f)\"$(%s)\"})\n\t_describe -t devices device devices\n}\n\n", devicesCommand)
	root.walk(func(c Command) { zshFunction(&b, c) })
	// The file is a function when zsh autoloads it, and defines the function when it is sourced.
	b.WriteString("if [ \"$funcstack[1]\" = _gpuslice ]; then\n\t_gpuslice \"$@\"\nelse\n\tcompdef _gpuslice gpuslice\nfi\n")
	_, err := io.WriteString(out, b.String())
	return err
}

func zshFunction(b *strings.Builder, c Command) {
	fmt.Fprintf(b, "%s() {\n", zshName(c))
	if len(c.Commands) > 0 {
		// Not "commands": that is zsh's own table, which completing a command needs.
		b.WriteString("\tlocal curcontext=$curcontext state line\n\ttypeset -A opt_args\n\tlocal -a below\n\tbelow=(\n")
		for _, sub := range c.Commands {
			fmt.Fprintf(b, "\t\t%s\n", single(sub.name()+":"+sub.Usage))
		}
		b.WriteString("\t)\n\t_arguments -C")
	} else {
		b.WriteString("\t_arguments -S")
	}
	for _, f := range c.Flags {
		b.WriteString(" \\\n\t\t" + zshFlag(f))
	}
	kind, words := c.argument()
	switch {
	case len(c.Commands) > 0:
		b.WriteString(" \\\n\t\t'1:command:->command' \\\n\t\t'*::argument:->argument'")
	case kind == argWords:
		b.WriteString(" \\\n\t\t" + single("*:"+c.Args+":("+strings.Join(words, " ")+")"))
	case kind == argSlice:
		b.WriteString(" \\\n\t\t'1:slice:_gpuslice_slices'")
	case kind == argPool:
		b.WriteString(" \\\n\t\t'1:pool:_gpuslice_pools'")
	case kind == argLease:
		b.WriteString(" \\\n\t\t'1:lease:_gpuslice_leases'")
	case kind == argCommand:
		b.WriteString(" \\\n\t\t'(-)*::command: _normal'")
	}
	b.WriteString("\n")
	if len(c.Commands) > 0 {
		b.WriteString("\tcase $state in\n\tcommand) _describe -t commands command below ;;\n\targument)\n\t\tcase $words[1] in\n")
		for _, sub := range c.Commands {
			fmt.Fprintf(b, "\t\t%s) %s ;;\n", sub.name(), zshName(sub))
		}
		b.WriteString("\t\tesac\n\t\t;;\n\tesac\n")
	}
	b.WriteString("}\n\n")
}

func zshName(c Command) string { return "_" + strings.Join(c.Path, "_") }

func zshFlag(f Flag) string {
	var specs []string
	for _, name := range f.Names {
		spec := name
		if f.Value != "" && strings.HasPrefix(name, "--") {
			spec += "=" // accepts "--flag=value" and "--flag value"
		}
		spec += "[" + strings.NewReplacer("[", `\[`, "]", `\]`).Replace(f.Usage) + "]"
		if f.Value != "" {
			action := " "
			switch {
			case f.File:
				action = "_files"
			case f.dynamic() != "":
				action = "_gpuslice_gpus"
			case f.Values != nil && strings.HasSuffix(f.Values[0], "="):
				action = ` compadd -S "" - ` + strings.Join(f.Values, " ")
			case f.Values != nil:
				action = "(" + strings.Join(f.Values, " ") + ")"
			}
			spec += ":" + f.Value + ":" + action
		}
		if len(f.Names) > 1 {
			spec = "(" + strings.Join(f.Names, " ") + ")" + spec
		}
		specs = append(specs, single(spec))
	}
	return strings.Join(specs, " \\\n\t\t")
}

func single(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// SPDX-License-Identifier: Apache-2.0

// Package manual writes the manual page and the shells' completions from the definitions of the commands, so that
// they cannot say anything else than the program. It owns how these look, and knows no command by name.
//
// The completions are tables: they do not run the program with what was typed, as those of package cli
// do, since behind `gpuslice run --` that is somebody's command. For slices and pools alone they ask the enforcer.
package manual

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// Command is a command as a person sees it.
type Command struct {
	Path        []string // its words, the program's name first
	Usage       string   // in one line
	Description string   // paragraphs; lines that begin with three spaces are examples
	Args        string   // what stands behind the flags
	Flags       []Flag
	Commands    []Command // in the order of the help text
	Exit        string    // of the program: what its exit code says, as Description
	Aliases     []string  // its other names
	Alias       bool      // it is one of these: shells complete it, and no page has it
}

// Flag is one flag of a command.
type Flag struct {
	Names   []string // with their dashes, the long one first
	Value   string   // the name of its value; "" if it takes none
	Usage   string
	Default string // of a value, "" for none
	Env     []string
	File    bool     // its value is a file
	Values  []string // its value is one of these, or begins with one that ends in "="; nil for any other
}

// StringOf is a flag whose values are known: shells offer them.
type StringOf struct {
	*cli.StringFlag
	Values []string
}

// StringsOf is the same of one that may be repeated.
type StringsOf struct {
	*cli.StringSliceFlag
	Values []string
}

// What may stand behind the flags of a command.
type argument int

const (
	argNone argument = iota
	argWords
	argSlice
	argPool
	argCommand
)

// Read takes the definitions from a program.
func Read(app *cli.App) Command {
	app.Setup()
	root := Command{Path: []string{app.Name}, Usage: app.Usage, Description: app.Description, Flags: flags(app.VisibleFlags())}
	root.Commands = commands(root.Path, app.VisibleCommands())
	return root
}

func commands(path []string, defined []*cli.Command) []Command {
	var all []Command
	var names []string
	for _, d := range defined {
		if d.Name == "help" {
			continue
		}
		c := Command{
			Path: append(slices.Clone(path), d.Name), Usage: d.Usage, Description: d.Description,
			Args: strings.TrimSpace(d.ArgsUsage), Flags: flags(d.VisibleFlags()), Aliases: d.Aliases,
		}
		if !slices.ContainsFunc(c.Flags, func(f Flag) bool { return f.Names[0] == "--help" }) {
			c.Flags = append(c.Flags, flags([]cli.Flag{cli.HelpFlag})...)
		}
		c.Commands = commands(c.Path, d.Subcommands)
		all = append(all, c)
		names = append(names, d.Name)
		for _, name := range d.Aliases {
			c.Path, c.Alias = append(slices.Clone(path), name), true
			all = append(all, c)
		}
	}
	if len(all) > 0 {
		all = append(all, Command{
			Path: append(slices.Clone(path), "help"), Usage: "show the help of a command", Args: "[" + strings.Join(names, "|") + "]",
		})
	}
	return all
}

func flags(defined []cli.Flag) []Flag {
	var all []Flag
	for _, d := range defined {
		f := Flag{}
		for _, name := range d.Names() {
			dashes := "--"
			if len(name) == 1 {
				dashes = "-"
			}
			f.Names = append(f.Names, dashes+name)
		}
		// Stable: of several long names the first is the main one.
		slices.SortStableFunc(f.Names, func(a, b string) int { return min(len(b), 3) - min(len(a), 3) })
		if doc, ok := d.(cli.DocGenerationFlag); ok {
			f.Value, f.Usage = placeholder(doc.GetUsage())
			f.Env = doc.GetEnvVars()
			if doc.TakesValue() {
				f.Default = strings.Trim(doc.GetValue(), `"`)
			} else {
				f.Value = ""
			}
		}
		switch d := d.(type) {
		case *cli.StringFlag:
			f.File = d.TakesFile
		case *cli.StringSliceFlag:
			f.File = d.TakesFile
			f.Default = "" // it is shown as a list
		case StringOf:
			f.Values = d.Values
		case StringsOf:
			f.Values, f.Default = d.Values, ""
		case *cli.PathFlag:
			f.File = d.TakesFile
		}
		if f.File && f.Value == "VALUE" {
			f.Value = "FILE"
		}
		all = append(all, f)
	}
	return all
}

// placeholder takes the name of the value from a usage text: the word in backquotes, as package cli has it.
func placeholder(usage string) (value, text string) {
	before, rest, ok := strings.Cut(usage, "`")
	if ok {
		if name, after, closed := strings.Cut(rest, "`"); closed {
			return name, before + name + after
		}
	}
	return "VALUE", usage
}

// argument says what may stand behind the flags, and which words if it is one of these.
func (c Command) argument() (argument, []string) {
	args := strings.Trim(c.Args, "[]. …")
	switch {
	case strings.Contains(c.Args, "COMMAND"):
		return argCommand, nil
	case strings.HasPrefix(args, "SLICE") || strings.HasPrefix(args+" ", "ID "):
		return argSlice, nil
	case args == "POOL":
		return argPool, nil
	case args != "" && strings.Trim(args, "abcdefghijklmnopqrstuvwxyz0123456789-|") == "":
		return argWords, strings.Split(args, "|")
	}
	return argNone, nil
}

// walk visits a command and all below it.
func (c Command) walk(visit func(Command)) {
	visit(c)
	for _, sub := range c.Commands {
		sub.walk(visit)
	}
}

func (c Command) name() string { return c.Path[len(c.Path)-1] }

// names of the flags that want says yes to.
func (c Command) flagNames(want func(Flag) bool) []string {
	var all []string
	for _, f := range c.Flags {
		if want(f) {
			all = append(all, f.Names...)
		}
	}
	return all
}

func anyFlag(Flag) bool      { return true }
func takesValue(f Flag) bool { return f.Value != "" }
func takesFile(f Flag) bool  { return f.File }

// slicesCommand lists the ids of the slices and the names of their containers. Without an enforcer that is none, quickly. A name may come
// from a stranger, and bash expands what it offers: only plain ones are.
const slicesCommand = `gpuslice ps --format '{{.ID}} {{.Container}}' 2>/dev/null | tr ' ' '\n' | grep -xE '[A-Za-z0-9][A-Za-z0-9_./-]*' | sort -u`

// poolsCommand lists the names of the pools, in the same way.
const poolsCommand = `gpuslice pool list --quiet 2>/dev/null`

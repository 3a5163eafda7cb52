// SPDX-License-Identifier: Apache-2.0

// Package manual generates the manual page and the shells' completions from the definitions of the commands, so that they match
// the program. It contains no command's name.
//
// The completions are tables. Unlike those of package cli they do not run the program with the typed words, as the words after
// `gpuslice run --` are the user's command.
package manual

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// Command is the documentation of a command.
type Command struct {
	Path        []string // name of the program, then the subcommands
	Usage       string   // one line
	Description string   // paragraphs; lines that begin with three spaces are examples
	Args        string   // arguments after the flags
	Flags       []Flag
	Commands    []Command // in the order of the help text
	Exit        string    // of the program: its exit codes, in the form of Description
	Aliases     []string  // other names
	Alias       bool      // it is such a name: completed by shells, but absent from the page
}

// Flag is a flag of a command.
type Flag struct {
	Names   []string // with dashes, the long one first
	Value   string   // name of the value; "" if it takes none
	Usage   string
	Default string // "" for none
	Env     []string
	File    bool     // the value is a file
	Values  []string // accepted values, or prefixes that end in "="; nil for any value
}

// StringOf is a flag with known values, for completion.
type StringOf struct {
	*cli.StringFlag
	Values []string
}

// StringsOf is the same for a repeatable flag.
type StringsOf struct {
	*cli.StringSliceFlag
	Values []string
}

// Kinds of arguments after the flags.
type argument int

const (
	argNone argument = iota
	argWords
	argSlice
	argPool
	argLease
	argCommand
)

// Read returns the definitions of a program.
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
		// Stable: the first of several long names is the main one.
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
			f.Default = "" // shown as a list
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

// placeholder returns the name of the value in a usage text: the word in backquotes, as in package cli.
func placeholder(usage string) (value, text string) {
	before, rest, ok := strings.Cut(usage, "`")
	if ok {
		if name, after, closed := strings.Cut(rest, "`"); closed {
			return name, before + name + after
		}
	}
	return "VALUE", usage
}

// argument returns the kind of the arguments, and the words if only these are accepted.
func (c Command) argument() (argument, []string) {
	args := strings.Trim(c.Args, "[]. …")
	switch {
	case strings.Contains(c.Args, "COMMAND"):
		return argCommand, nil
	case strings.HasPrefix(args, "SLICE") || strings.HasPrefix(args+" ", "ID "):
		return argSlice, nil
	case args == "POOL":
		return argPool, nil
	case strings.HasPrefix(args, "LEASE"):
		return argLease, nil
	case args != "" && strings.Trim(args, "abcdefghijklmnopqrstuvwxyz0123456789-|") == "":
		return argWords, strings.Split(args, "|")
	}
	return argNone, nil
}

func (c Command) walk(visit func(Command)) {
	visit(c)
	for _, sub := range c.Commands {
		sub.walk(visit)
	}
}

func (c Command) name() string { return c.Path[len(c.Path)-1] }

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

// slicesCommand lists the ids of the slices and the names of their containers. Without an enforcer the list is empty, without
// delay. Only plain names are offered: users choose them, and bash expands words that it offers.
const slicesCommand = `gpuslice ps --format '{{.ID}} {{.Container}}' 2>/dev/null | tr ' ' '\n' | grep -xE '[A-Za-z0-9][A-Za-z0-9_./-]*' | sort -u`

const (
	poolsCommand  = `gpuslice pool list --quiet 2>/dev/null`
	leasesCommand = `gpuslice lease list --quiet 2>/dev/null`
	// devicesCommand lists indices, and the UUIDs of devices without one.
	devicesCommand = `gpuslice limits --format '{{.Index}} {{.ID}}' 2>/dev/null | tr ' ' '\n' | grep -xE '[0-9]+|MIG-.*' | sort -u`
)

// dynamic returns the command that lists the completions of a flag's value; "" if there is none.
func (f Flag) dynamic() string {
	if f.Value == "DEVICE" {
		return devicesCommand
	}
	return ""
}

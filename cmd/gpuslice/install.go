// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/place"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/session"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
)

const installDescription = `The engines are docker, containerd (for Kubernetes), crio and podman; all means those that are
on this machine. A drop-in is written where the engine has them; else its file is edited, and
everything that is in it stays. The engine's default runtime lends its settings. The command restarts no engine,
but says which to restart.

   gpuslice install docker --dry-run
   gpuslice install docker --set-as-default
   gpuslice install containerd
   gpuslice install podman --hooks
   gpuslice install all --root /mnt/image

A second time there is nothing to do. An engine's configuration that is not understood stays as it was.`

const uninstallDescription = `Undoes the changes of gpuslice install. If a file was edited since, only the runtime gpuslice is
taken out of it. Entries that gpuslice did not make stay.

   gpuslice uninstall containerd --dry-run
   gpuslice uninstall all`

func engineFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "dry-run", Aliases: []string{"n"}, Usage: "print what would change, as a diff, and change nothing"},
		&cli.StringFlag{Name: "config", Usage: "the engine's `FILE` (crio, podman: the drop-in), if not the standard one", TakesFile: true},
		&cli.StringFlag{Name: "root", Value: "/", Usage: "the root `DIR` of an image that is being built", TakesFile: true},
		&cli.BoolFlag{Name: "json", Usage: "print JSON"},
	}
}

func installCommand() *cli.Command {
	return &cli.Command{
		Name:        "install",
		Usage:       "register gpuslice with an engine",
		ArgsUsage:   "docker|containerd|crio|podman|all",
		Description: installDescription,
		Flags: append(engineFlags(),
			&cli.BoolFlag{Name: "hooks", Usage: "podman: also run the hook under every other runtime, for containers with an annotation of gpuslice"},
			&cli.BoolFlag{Name: "set-as-default", Usage: "have containers use it that name no runtime; missing in the configuration of gpuslice says what becomes of those without a quota"},
			&cli.BoolFlag{Name: "force", Usage: "replace a runtime gpuslice that somebody else configured"}),
		OnUsageError: usageError(exitUsage),
		Action:       func(c *cli.Context) error { return forEngines(c, installEngine, leftOutOfInstall) },
	}
}

func uninstallCommand() *cli.Command {
	return &cli.Command{
		Name:         "uninstall",
		Usage:        "undo gpuslice install",
		ArgsUsage:    "docker|containerd|crio|podman|all",
		Description:  uninstallDescription,
		Flags:        engineFlags(),
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			return forEngines(c, engines.Uninstall, func(engines.Host, string) string { return "" })
		},
	}
}

// leftOutOfInstall returns the reason why `all` does not include an engine, or "".
func leftOutOfInstall(h engines.Host, name string) string {
	present, why, err := engines.Present(h, name)
	if err == nil && !present {
		return why
	}
	return ""
}

// installEngine also notes if the engine passes no annotations, since users would try these first.
func installEngine(h engines.Host, name string, o engines.Options) (engines.Result, error) {
	r, err := engines.Install(h, name, o)
	if err != nil || h.Root != "/" { // the programs of an image are not run
		return r, err
	}
	if u := engines.CannotAnnotate(h, name, askEngine); u != nil {
		r.Notes = append(r.Notes, u.Note())
	}
	return r, nil
}

type engineAction func(engines.Host, string, engines.Options) (engines.Result, error)

// forEngines acts on each engine of the command line, and continues after a failure.
func forEngines(c *cli.Context, act engineAction, leftOut func(engines.Host, string) string) error {
	usage := usageError(exitUsage)
	names, err := nonFlags(c)
	if err != nil {
		return err
	}
	everything := len(names) == 1 && names[0] == "all"
	if everything {
		names = engines.Names()
	}
	if err := checkEngines(c, names, everything); err != nil {
		return usage(c, err, true)
	}
	host, err := engines.NewHost(c.String("root"), place.New().Program)
	if err != nil {
		return err
	}
	o := engines.Options{File: c.String("config"), Hooks: c.Bool("hooks"), Default: c.Bool("set-as-default"), Force: c.Bool("force"), DryRun: c.Bool("dry-run")}

	results := []engines.Result{}
	failed := false
	for _, name := range names {
		r := engines.Result{Engine: name, State: engines.LeftOut}
		if everything {
			r.Why = leftOut(host, name)
		}
		if r.Why == "" {
			done, err := act(host, name, o)
			if r = done; err != nil {
				r = engines.Result{Engine: name, State: engines.Failed, Why: err.Error()}
				failed = true
			}
		}
		r.DryRun = o.DryRun
		results = append(results, r)
	}
	if !c.Bool("json") {
		printResults(c, results, o.DryRun)
	} else if err := show.JSON(c.App.Writer, results); err != nil {
		return err
	}
	if failed {
		return &session.Error{Code: 1} // printed already
	}
	return nil
}

func checkEngines(c *cli.Context, names []string, everything bool) error {
	if len(names) == 0 {
		return fmt.Errorf("which engine? %s or all", strings.Join(engines.Names(), ", "))
	}
	for _, name := range names {
		if !slices.Contains(engines.Names(), name) {
			return fmt.Errorf("there is no engine %q: %s and all are accepted", name, strings.Join(engines.Names(), ", "))
		}
	}
	if c.String("config") != "" && (everything || len(names) > 1) {
		return errors.New("--config names the file of one engine: name that one")
	}
	if c.IsSet("config") && !filepath.IsAbs(c.String("config")) {
		if c.String("root") != "/" {
			return fmt.Errorf("--config %q: with --root, an absolute path beneath it is accepted", c.String("config"))
		}
		absolute, err := filepath.Abs(c.String("config"))
		if err != nil {
			return err
		}
		if err := c.Set("config", absolute); err != nil {
			return err
		}
	}
	if c.Bool("hooks") && !slices.Contains(names, "podman") {
		return errors.New("--hooks is for podman")
	}
	return nil
}

// trailingFlags returns the arguments that are not flags. It also parses flags after the first argument, but none after --:
// users write `install docker --dry-run`. An error without text means that the command is done.
func trailingFlags(c *cli.Context) ([]string, error) {
	var names []string
	for args := c.Args().Slice(); len(args) > 0; args = args[1:] {
		if args[0] == "--" {
			return append(names, args[1:]...), nil
		}
		flag, isFlag := strings.CutPrefix(args[0], "-")
		if !isFlag {
			names = append(names, args[0])
			continue
		}
		flag, value, given := strings.Cut(strings.TrimPrefix(flag, "-"), "=")
		i := slices.IndexFunc(c.Command.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), flag) })
		if i < 0 {
			return nil, errors.New(unknownFlag + flag)
		}
		if _, boolean := c.Command.Flags[i].(*cli.BoolFlag); boolean && !given {
			value = "true"
		} else if !given {
			if args = args[1:]; len(args) == 0 {
				return nil, errors.New(flagWithoutValue + flag)
			}
			value = args[0]
		}
		// The library reads the value of a flag's first name only.
		if err := c.Set(c.Command.Flags[i].Names()[0], value); err != nil {
			return nil, fmt.Errorf("invalid value %q for flag -%s: %w", value, flag, err)
		}
		if c.Command.Flags[i] == cli.HelpFlag && value == "true" {
			cli.HelpPrinter(c.App.Writer, cli.CommandHelpTemplate, c.Command)
			return nil, &session.Error{}
		}
	}
	return names, nil
}

// nonFlags returns the words that are not flags. Its errors are usage errors.
func nonFlags(c *cli.Context) ([]string, error) {
	words, err := trailingFlags(c)
	if err != nil && err.Error() != "" {
		err = usageError(exitUsage)(c, err, true)
	}
	return words, err
}

// arguments returns exactly n words that are not flags, or the error wanted.
func arguments(c *cli.Context, n int, wanted string) ([]string, error) {
	words, err := nonFlags(c)
	if err != nil {
		return nil, err
	}
	if len(words) != n {
		if len(words) > n {
			wanted += fmt.Sprintf("; unexpected argument %q", words[n])
		}
		return nil, misuse("%s", wanted)
	}
	return words, nil
}

// forEachArgument calls do with each of at least one argument. It returns the last error, and prints the others once each.
func forEachArgument(c *cli.Context, wanted string, do func(word string) error) error {
	words, err := nonFlags(c)
	if err != nil {
		return err
	}
	if len(words) == 0 {
		return misuse("%s", wanted)
	}
	var failed error
	for _, word := range words {
		if err := do(word); err != nil {
			if failed != nil && failed.Error() != err.Error() {
				fmt.Fprintf(c.App.ErrWriter, "gpuslice: %v\n", failed)
			}
			failed = err
		}
	}
	return failed
}

// printResults prints the results as text. In a dry run standard output has only the diff, for patch(1).
func printResults(c *cli.Context, results []engines.Result, dry bool) {
	said := c.App.Writer
	if dry {
		said = c.App.ErrWriter
	}
	for _, r := range results {
		for _, change := range r.Changes {
			if dry {
				fmt.Fprint(c.App.Writer, change.Diff)
				fmt.Fprintf(said, "%s: %s would be %s\n", r.Engine, change.Path, change.What)
			} else {
				fmt.Fprintf(said, "%s: %s was %s\n", r.Engine, change.Path, change.What)
			}
		}
		switch r.State {
		case engines.Failed:
			fmt.Fprintln(c.App.ErrWriter, "gpuslice:", r.Why)
		case engines.LeftOut:
			fmt.Fprintf(said, "%s: left out: %s\n", r.Engine, r.Why)
		case engines.Nothing:
			fmt.Fprintf(said, "%s: nothing to do\n", r.Engine)
		}
		for _, note := range r.Notes {
			out := said
			if strings.HasPrefix(note, engines.Warning) {
				out = c.App.ErrWriter
			}
			fmt.Fprintf(out, "%s: %s\n", r.Engine, note)
		}
		if r.Restart != "" {
			fmt.Fprintf(said, "%s: takes effect after `%s`\n", r.Engine, r.Restart)
		}
	}
}

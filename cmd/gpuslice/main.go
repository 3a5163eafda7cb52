// SPDX-License-Identifier: Apache-2.0

// Gpuslice runs commands with a quota of VRAM, shows the slices of a host, and checks whether the host is ready.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/oci"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/place"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/session"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
)

func main() {
	if oci.ForRuntime(os.Args[1:]) {
		fail(execRuntime(), session.ExitFailed)
	}
	fail(newApp().Run(os.Args), 1)
}

// execRuntime executes gpuslice-runtime in place of this process, or returns an error.
func execRuntime() error {
	path, err := place.New().Program("gpuslice-runtime")
	if err != nil {
		return fmt.Errorf("%w: install gpuslice with `sudo make install`", err)
	}
	err = syscall.Exec(path, append([]string{path}, os.Args[1:]...), os.Environ())
	return fmt.Errorf("run %s: %w", path, err)
}

// fail exits with 0 if err is nil, else with err's own exit code, or code if it has none.
func fail(err error, code int) {
	if err == nil {
		os.Exit(0)
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(os.Stderr, "gpuslice:", text)
	}
	os.Exit(exitCode(err, code))
}

// exitCode returns err's own exit code, or others if it has none.
func exitCode(err error, others int) int {
	var own *session.Error
	var help cli.ExitCoder
	switch {
	case errors.As(err, &own):
		return own.Code
	case errors.As(err, &help): // of the library: help for an unknown command
		return exitUsage
	}
	return others
}

const description = `A slice holds a quota of VRAM on each device. Containers get theirs from an annotation:

   docker run --runtime=gpuslice --annotation gpuslice.vram=4G IMAGE

Anything else gets one from gpuslice run:

   gpuslice run --vram 4G -- python train.py

Run as an OCI runtime, with a global flag of one (gpuslice --root DIR create …), it hands over to
gpuslice-runtime: nerdctl needs this.`

func init() { // they are global variables
	cli.VersionPrinter = func(c *cli.Context) { fmt.Fprintln(c.App.Writer, "gpuslice", api.Version) }
	cli.HelpPrinter = printHelp
	cli.FlagStringer = flagText(cli.FlagStringer)
}

func newApp() *cli.App {
	return &cli.App{
		Name:                 "gpuslice",
		Usage:                "a quota of VRAM for containers and commands",
		Description:          description,
		Version:              api.Version,
		EnableBashCompletion: true,
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "socket", Value: api.DefaultSocket, EnvVars: []string{"GPUSLICE_SOCKET"},
				Usage: "control socket of the enforcer, if not that of the configuration", TakesFile: true,
			},
			&cli.StringFlag{
				Name: "session-socket", Value: api.DefaultSessionSocket, EnvVars: []string{"GPUSLICE_SESSION_SOCKET"},
				Usage: "the enforcer's socket for users without access to the control socket", TakesFile: true,
			},
			&cli.StringFlag{
				Name: "token", TakesFile: true,
				Usage: "give access to a session by its token, from this `FILE` or descriptor",
			},
		},
		Before:   showToken,
		Commands: []*cli.Command{runCommand(), psCommand(), topCommand(), inspectCommand(), explainCommand(), recommendCommand(), setCommand(), renewCommand(), suspendCommand(), resumeCommand(), releaseCommand(), poolCommand(), leaseCommand(), devicesCommand(), limitsCommand(), eventsCommand(), doctorCommand(), configCommand(), installCommand(), uninstallCommand(), inUseCommand(), completionCommand(), manCommand(), versionCommand()},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return noCommand("", c.Args().First(), c.App.Commands)
			}
			return cli.ShowAppHelp(c)
		},
		OnUsageError:   usageError(exitUsage),
		ExitErrHandler: func(*cli.Context, error) {}, // main has the only exit
	}
}

// exitUsage is the exit code for a wrong command line. For run it is session.ExitFailed, since the other codes belong to the
// command.
const exitUsage = 2

func misuse(format string, args ...any) error {
	return &session.Error{Code: exitUsage, Err: fmt.Errorf(format, args...)}
}

func asMisuse(err error) error {
	if err == nil {
		return nil
	}
	return misuse("%w", err)
}

func usageError(code int) cli.OnUsageErrorFunc {
	return func(c *cli.Context, err error, _ bool) error {
		said := err.Error()
		if name, unknown := strings.CutPrefix(said, unknownFlag); unknown {
			name = strings.TrimLeft(name, "-")
			said = "there is no flag " + dashed(name)
			var known []string
			for _, f := range c.Command.Flags {
				known = append(known, f.Names()...)
			}
			if near := api.Nearest(name, known); near != "" {
				said += ": did you mean " + dashed(near) + "?"
			}
		} else if name, empty := strings.CutPrefix(said, flagWithoutValue); empty {
			said = dashed(strings.TrimLeft(name, "-")) + " needs a value"
		}
		return &session.Error{Code: code, Err: fmt.Errorf("%s (see `%s --help`)", said, c.Command.HelpName)}
	}
}

// Prefixes of errors of package flag, which writes one dash before all names.
const (
	unknownFlag      = "flag provided but not defined: "
	flagWithoutValue = "flag needs an argument: "
)

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

func takesNothing(c *cli.Context) error {
	if !c.Args().Present() {
		return nil
	}
	return misuse("%s takes no argument, and %q is one (see `%s --help`)", strings.TrimPrefix(c.Command.HelpName, "gpuslice "), c.Args().First(), c.Command.HelpName)
}

// noCommand returns an error for an unknown command below path, with a suggestion.
func noCommand(path, word string, below []*cli.Command) error {
	help := "`" + strings.TrimSpace("gpuslice "+path) + " --help` lists them"
	var known []string
	for _, c := range below {
		if !c.Hidden {
			known = append(known, c.Name)
		}
	}
	near := api.Nearest(word, known)
	switch {
	case path == "" && oci.IsVerb(word):
		help = fmt.Sprintf("it is a verb of OCI runtimes, which `gpuslice-runtime %s` takes; %s", word, help)
	case near != "":
		help = "did you mean " + near + "? " + help
	}
	return misuse("there is no command %q: %s", strings.TrimSpace(path+" "+word), help)
}

type versions struct {
	Version  string    `json:"version"`            // of this program
	Enforcer *api.Info `json:"enforcer,omitempty"` // nil if it does not answer
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:         "version",
		Usage:        "show this program's version, and the enforcer's if it answers",
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON; enforcer is there if it answers, as the control API has it"}},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			if err := takesNothing(c); err != nil {
				return err
			}
			known := versions{Version: api.Version}
			if info, err := connect(c).Info(c.Context); err == nil {
				known.Enforcer = &info
			}
			if c.Bool("json") {
				return show.JSON(c.App.Writer, known)
			}
			fmt.Fprintln(c.App.Writer, "gpuslice ", known.Version)
			if known.Enforcer != nil {
				fmt.Fprintln(c.App.Writer, "gpusliced", known.Enforcer.Version)
				if known.Enforcer.Driver != "" {
					fmt.Fprintln(c.App.Writer, "driver   ", known.Enforcer.Driver)
				}
			}
			return nil
		},
	}
}

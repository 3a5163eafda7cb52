// SPDX-License-Identifier: Apache-2.0

// Gpuslice runs commands with a quota of VRAM, and shows which slices a host has and whether it is ready.
package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/oci"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/place"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/session"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
	"github.com/gpuslice/gpuslice/enforcer/api"
)

func main() {
	if oci.ForRuntime(os.Args[1:]) {
		fail(execRuntime(), session.ExitFailed)
	}
	fail(newApp().Run(os.Args), 1)
}

// execRuntime becomes gpuslice-runtime; it returns only if that fails.
func execRuntime() error {
	path, err := place.New().Program("gpuslice-runtime")
	if err != nil {
		return fmt.Errorf("%w: install gpuslice with `make install`", err)
	}
	err = syscall.Exec(path, append([]string{path}, os.Args[1:]...), os.Environ())
	return fmt.Errorf("run %s: %w", path, err)
}

// fail ends the program: with err's own exit code if it has one, with code if not, and with 0 if err is nil.
func fail(err error, code int) {
	if err == nil {
		os.Exit(0)
	}
	var own *session.Error
	if errors.As(err, &own) {
		code = own.Code
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(os.Stderr, "gpuslice:", text)
	}
	os.Exit(code)
}

const description = `A slice holds a quota of VRAM on each device. Containers get theirs from an annotation:

   docker run --runtime=gpuslice --annotation gpuslice.vram=4G IMAGE

Anything else gets one from gpuslice run:

   gpuslice run --vram 4G -- python train.py

Run as an OCI runtime (gpuslice create …), it hands over to gpuslice-runtime: nerdctl
needs this.`

func init() { // it is a variable of the whole program
	cli.VersionPrinter = func(c *cli.Context) { fmt.Fprintln(c.App.Writer, "gpuslice", api.Version) }
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
				Usage: "control socket of the enforcer", TakesFile: true,
			},
			&cli.StringFlag{
				Name: "session-socket", Value: api.DefaultSessionSocket, EnvVars: []string{"GPUSLICE_SESSION_SOCKET"},
				Usage: "its socket for users who may not use that one", TakesFile: true,
			},
			&cli.StringFlag{
				Name: "token", TakesFile: true,
				Usage: "show the token of a session, from this `FILE` or descriptor: it opens that session",
			},
		},
		Before:   showToken,
		Commands: []*cli.Command{runCommand(), psCommand(), inspectCommand(), setCommand(), renewCommand(), releaseCommand(), poolCommand(), leaseCommand(), devicesCommand(), eventsCommand(), doctorCommand(), installCommand(), uninstallCommand(), inUseCommand(), completionCommand(), manCommand(), versionCommand()},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("there is no command %q: `gpuslice help` lists them", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
		OnUsageError:   usageError(1),
		ExitErrHandler: func(*cli.Context, error) {}, // main has the only exit
	}
}

func usageError(code int) cli.OnUsageErrorFunc {
	return func(c *cli.Context, err error, _ bool) error {
		return &session.Error{Code: code, Err: fmt.Errorf("%w (see `%s --help`)", err, c.Command.HelpName)}
	}
}

// versions are what version prints as JSON.
type versions struct {
	Version  string    `json:"version"`            // this program's
	Enforcer *api.Info `json:"enforcer,omitempty"` // nil if it does not answer
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:         "version",
		Usage:        "show this program's version, and the enforcer's if it answers",
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON; enforcer is there if it answers, as the control API has it"}},
		OnUsageError: usageError(1),
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return errors.New("version takes no argument (see `gpuslice version --help`)")
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

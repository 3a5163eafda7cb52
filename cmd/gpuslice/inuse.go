// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/inuse"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/session"
	"github.com/gpuslice/gpuslice/daemon/config"
)

// inUseCommand returns the command that `make uninstall` and the packages run before they remove the programs.
func inUseCommand() *cli.Command {
	return &cli.Command{
		Name:      "in-use",
		Usage:     "list what still uses gpuslice's programs, and fail if anything does",
		ArgsUsage: " ",
		Hidden:    true,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Value: api.DefaultConfig, EnvVars: []string{"GPUSLICE_CONFIG"}, Usage: "the configuration `FILE` of gpusliced", TakesFile: true},
			&cli.BoolFlag{Name: "daemon", Usage: "list only the daemon, which should be stopped by now"},
			&cli.BoolFlag{Name: "force", Usage: "say what happens to each when the programs are removed, and do not fail"},
		},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			if err := takesNothing(c); err != nil {
				return err
			}
			cfg, err := config.Load(c.String("config"))
			if err != nil {
				cfg, err = config.Default(), nil // an invalid configuration does not block the removal
			}
			host := inuse.Host{Proc: "/proc", RunDir: cfg.Enforcer.RunDir, StateDir: cfg.Enforcer.StateDir}
			uses := host.Daemon()
			if !c.Bool("daemon") {
				uses, err = host.Slices()
			}
			if err != nil || len(uses) == 0 {
				return err
			}
			printUses(c.App.ErrWriter, uses, c.Bool("force"))
			if c.Bool("force") {
				return nil
			}
			return &session.Error{Code: 1} // printed already
		},
	}
}

func printUses(out io.Writer, uses []inuse.Use, force bool) {
	if force {
		fmt.Fprintln(out, "gpuslice: removed while in use. These remain:")
	} else {
		fmt.Fprintln(out, "gpuslice: not removed: it is in use. End these first:")
	}
	for _, u := range uses {
		fmt.Fprintf(out, "  %s, process %d (%s)", u.What, u.PID, u.Command)
		if force {
			fmt.Fprintf(out, ": %s; to end it: kill %d\n", u.Left, u.PID)
		} else {
			fmt.Fprintf(out, ": %s\n", u.End)
		}
	}
}

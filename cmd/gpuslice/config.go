// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/session"
	"github.com/gpuslice/gpuslice/daemon/config"
)

func configCommand() *cli.Command {
	return &cli.Command{
		Name:  "config",
		Usage: "the configuration of gpusliced",
		Description: `Its keys are in gpuslice.toml(5).

   gpuslice config check`,
		OnUsageError: usageError(exitUsage),
		Subcommands:  []*cli.Command{configCheckCommand()},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return noCommand("config", c.Args().First(), c.Command.Subcommands)
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
}

func configCheckCommand() *cli.Command {
	return &cli.Command{
		Name:  "check",
		Usage: "check a configuration before gpusliced reads it",
		Description: `It reads the file as gpusliced does when it starts, and prints each fault with its line, as
gpusliced would. The exit code is 1 if there is one.

   gpuslice config check
   gpuslice config check --config ./config.toml`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Value: api.DefaultConfig, Usage: "the configuration `FILE`", TakesFile: true},
		},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			if err := takesNothing(c); err != nil {
				return err
			}
			file := c.String("config")
			_, err := config.Load(file)
			var invalid *config.InvalidError
			switch {
			case errors.As(err, &invalid):
				for _, line := range invalid.Lines() {
					fmt.Fprintln(c.App.Writer, line)
				}
				return &session.Error{Code: 1}
			case errors.Is(err, fs.ErrPermission):
				return fmt.Errorf("%w: `sudo gpuslice config check` reads it", err)
			case err != nil:
				return err
			}
			if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
				fmt.Fprintf(c.App.Writer, "there is no %s: the defaults hold\n", filepath.Clean(file))
				return nil
			}
			fmt.Fprintln(c.App.Writer, file, "is valid")
			return nil
		},
	}
}

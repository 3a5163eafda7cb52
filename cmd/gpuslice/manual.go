// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/manual"
)

func completionCommand() *cli.Command {
	writers := map[string]func(io.Writer, manual.Command) error{"bash": manual.Bash, "zsh": manual.Zsh, "fish": manual.Fish}
	return &cli.Command{
		Name:      "completion",
		Usage:     "print the completion for a shell",
		ArgsUsage: "bash|zsh|fish",
		Description: `An installed gpuslice has it where the shells look for it. To try one that is not:

   source <(gpuslice completion bash)`,
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			write := writers[c.Args().First()]
			if c.NArg() != 1 || write == nil {
				return misuse("completion takes one shell: bash, zsh or fish")
			}
			return write(c.App.Writer, manual.Read(newApp()))
		},
	}
}

const exitStatus = `0 on success, 1 on failure, and 2 if the command line is wrong; 1 of doctor also says that
something fails on this host, and 1 of install and uninstall that an engine could not be configured.

run ends with its command's exit code, or 128 + n if signal n killed it; with 127 if there is no such command, 126 if it cannot
be run, and 125 if gpuslice failed or the words after run are wrong; what is wrong before them is 2.`

// manCommand returns the command that prints gpuslice(1) for the installation.
func manCommand() *cli.Command {
	return &cli.Command{
		Name:         "man",
		Usage:        "print the manual page gpuslice(1)",
		Hidden:       true,
		Flags:        []cli.Flag{&cli.TimestampFlag{Name: "date", Layout: time.DateOnly, Usage: "the `DATE` that it shows (default: today)"}},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			if err := takesNothing(c); err != nil {
				return err
			}
			date := time.Now()
			if given := c.Timestamp("date"); given != nil {
				date = *given
			}
			program := manual.Read(newApp())
			program.Exit = exitStatus
			return manual.Mdoc(c.App.Writer, program, api.Version, date)
		},
	}
}

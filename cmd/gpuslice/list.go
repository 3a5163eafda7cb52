// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
	"github.com/gpuslice/gpuslice/enforcer/api"
)

func psCommand() *cli.Command {
	return &cli.Command{
		Name:      "ps",
		Usage:     "list the slices of this host",
		ArgsUsage: " ",
		Description: `USED is what programs asked for, OVERHEAD what the driver holds for them beyond that; both
together stay within LIMIT.

   gpuslice ps
   gpuslice ps --json | jq -r '.[] | select(.tenant == "a") | .id'`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON, as the control API has it"},
			&cli.BoolFlag{Name: "no-trunc", Usage: "do not shorten ids"},
		},
		OnUsageError: usageError(1),
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("ps takes no argument; `gpuslice inspect %s` shows one slice", c.Args().First())
			}
			slices, err := connect(c).Slices(c.Context)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				if slices == nil {
					slices = []api.Slice{} // [], not null
				}
				return show.JSON(c.App.Writer, slices)
			}
			return show.Slices(c.App.Writer, slices, c.Bool("no-trunc"))
		},
	}
}

func inspectCommand() *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "show everything about one slice, as JSON",
		ArgsUsage: "ID",
		Description: `ID may be the beginning of a slice's or a container's id.

   gpuslice inspect 3f2a91c0d5e8`,
		OnUsageError: usageError(1),
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return fmt.Errorf("inspect takes one ID: `gpuslice ps` lists them")
			}
			enforcer := connect(c)
			id := c.Args().First()
			slice, err := enforcer.Slice(c.Context, id)
			if errors.Is(err, api.ErrNotFound) {
				slices, listErr := enforcer.Slices(c.Context)
				if listErr != nil {
					return listErr
				}
				if id, err = show.Find(slices, id); err == nil {
					slice, err = enforcer.Slice(c.Context, id)
				}
			}
			if err != nil {
				return err
			}
			return show.JSON(c.App.Writer, slice)
		},
	}
}

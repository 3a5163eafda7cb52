// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
)

func releaseCommand() *cli.Command {
	return &cli.Command{
		Name:      "release",
		Usage:     "end slices",
		ArgsUsage: "ID…",
		Description: `ID is a slice's or a container's id, or a container's name (NAME, POD/NAME, NAMESPACE/POD/NAME). The beginning of an id
is enough if an engine made the id.

The quota of a released slice is free for others. A slice with living processes is released with --force only: they
go on and get no more memory, and what they hold is free when they have exited. Resume a suspended slice first, or end its
processes.

   gpuslice release --force run-3f2a91c0d5
   gpuslice --token ./token release --force run-3f2a91c0d5`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "even if its processes are alive"},
			&cli.BoolFlag{Name: "json", Usage: "print the slice as it was, as JSON"},
		},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			return forEachArgument(c, "release takes IDs: `gpuslice ps` lists them", func(id string) error { return release(c, id) })
		},
	}
}

func release(c *cli.Context, id string) error {
	slice, err := doByName(c, id, show.Means, func(ctx context.Context, enforcer *client.Client, id string) (api.Slice, error) {
		return enforcer.Release(ctx, id, 0, c.Bool("force"))
	})
	if errors.Is(err, api.ErrNotFound) {
		if released, ok := findReleased(c, id); ok {
			return fmt.Errorf("slice %s was released before: its living processes, %d of them, keep what they hold until they exit; `gpuslice inspect %s` lists them",
				released.ID, released.ProcessCount, id)
		}
	}
	if err != nil {
		return err
	}
	if released, ok := findReleased(c, slice.ID); ok && !c.Bool("json") {
		fmt.Fprintf(c.App.ErrWriter, "gpuslice: its living processes, %d of them, keep what they hold until they exit; until then ps shows the slice\n", released.ProcessCount)
	}
	if c.Bool("json") {
		return show.JSON(c.App.Writer, slice)
	}
	fmt.Fprintln(c.App.Writer, slice.ID)
	return nil
}

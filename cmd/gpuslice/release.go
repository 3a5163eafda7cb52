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
		Usage:     "end a slice",
		ArgsUsage: "ID",
		Description: `ID is a slice's or a container's, whole or as ps shows it, or a container's name (NAME, POD/NAME, NAMESPACE/POD/NAME). The beginning will do of an id that an engine made, and not
of a name that a person gave.

Its quota is free for others from then on. A slice whose processes are alive is released with --force only:
they go on, get nothing more, and what they hold is free once they have ended. A suspended one is resumed
first, or its processes ended.

   gpuslice release --force run-3f2a91c0d5
   gpuslice --token ./token release --force run-3f2a91c0d5`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "even if its processes are alive"},
			&cli.BoolFlag{Name: "json", Usage: "print the slice as it was, as JSON"},
		},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			words, err := arguments(c, 1, "release takes one ID: `gpuslice ps` lists them")
			if err != nil {
				return err
			}
			slice, err := named(c, words[0], show.Means, func(ctx context.Context, enforcer *client.Client, id string) (api.Slice, error) {
				return enforcer.Release(ctx, id, 0, c.Bool("force"))
			})
			if errors.Is(err, api.ErrNotFound) {
				if released, ok := findReleased(c, words[0]); ok {
					return fmt.Errorf("slice %s was released before: what its %d processes hold counts until they exit; `gpuslice inspect %s` lists them", released.ID, released.ProcessCount, words[0])
				}
			}
			if err != nil {
				return err
			}
			if released, ok := findReleased(c, slice.ID); ok && !c.Bool("json") {
				fmt.Fprintf(c.App.ErrWriter, "gpuslice: %d processes of it are alive: what they hold counts until they exit, and ps shows it until then\n", released.ProcessCount)
			}
			if c.Bool("json") {
				return show.JSON(c.App.Writer, slice)
			}
			fmt.Fprintln(c.App.Writer, slice.ID)
			return nil
		},
	}
}

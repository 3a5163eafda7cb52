// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
)

func suspendCommand() *cli.Command {
	return moveCommand("suspend", (*client.Client).Suspend, "move what a slice holds on its devices to host memory",
		`ID may be the beginning of a slice's or a container's id, or a name. The memory of all processes of a slice is moved, or,
with an error, of none. The processes continue, but their calls of CUDA wait until the slice is resumed. Until then other
slices may use the room. An elastic slice then stays in host memory. This needs driver 570 or newer, and as much host memory.

   gpuslice suspend 3f2a91c0d5e8`)
}

func resumeCommand() *cli.Command {
	resume := func(enforcer *client.Client, ctx context.Context, id string) (s api.Slice, err error) {
		err = client.AwaitRoom(ctx, func() (err error) {
			s, err = enforcer.Resume(ctx, id)
			return err
		})
		return s, err
	}
	return moveCommand("resume", resume, "bring back what suspend has moved to host memory",
		`ID may be the beginning of a slice's or a container's id, or a name. Without room for a slice's quotas, or on the devices
for the memory that it held, the slice stays suspended. Idle elastic slices are evicted for an elastic one; without room it is
evicted itself, and returns in its turn.

With a global flag of an OCI runtime before it (gpuslice --root DIR resume ID), it is the runtime's.

   gpuslice resume 3f2a91c0d5e8`)
}

func moveCommand(name string, move func(*client.Client, context.Context, string) (api.Slice, error), usage, description string) *cli.Command {
	return &cli.Command{
		Name:         name,
		Usage:        usage,
		ArgsUsage:    "ID…",
		Description:  description,
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print the slice as JSON, as the control API has it"}},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			var moved []api.Slice
			err := forEachArgument(c, name+" takes IDs: `gpuslice ps` lists them", func(id string) error {
				slice, err := doByName(c, id, show.Names, func(ctx context.Context, enforcer *client.Client, id string) (api.Slice, error) {
					return move(enforcer, ctx, id)
				})
				if err == nil {
					moved = append(moved, slice)
				}
				return err
			})
			if len(moved) == 0 {
				return err
			}
			if !c.Bool("json") {
				return errors.Join(show.Slices(c.App.Writer, moved, false), err)
			}
			for _, slice := range moved {
				err = errors.Join(show.JSON(c.App.Writer, slice), err)
			}
			return err
		},
	}
}

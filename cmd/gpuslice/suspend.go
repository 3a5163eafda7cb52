// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
)

func suspendCommand() *cli.Command {
	return moveCommand("suspend", (*client.Client).Suspend, "move what a slice holds on its devices to host memory",
		`ID may be the beginning of a slice's or a container's id, or a name. The memory of all of its processes is moved, or
of none, and then it is said why. They go on, but for their calls of CUDA: those wait until the slice is resumed.
Others may use the room meanwhile. So does an elastic slice stay in host memory. It takes a driver from 570 on, and as much host memory.

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
		`ID may be the beginning of a slice's or a container's id, or a name. Without room for its quotas, and on the devices for
what it held, it is refused: the slice stays suspended. Idle elastic slices are moved aside for an elastic one, and without room it is
evicted: it comes back in its turn.

With a global flag of an OCI runtime before it (gpuslice --root DIR resume ID), it is the runtime's.

   gpuslice resume 3f2a91c0d5e8`)
}

func moveCommand(name string, move func(*client.Client, context.Context, string) (api.Slice, error), usage, description string) *cli.Command {
	return &cli.Command{
		Name:         name,
		Usage:        usage,
		ArgsUsage:    "ID",
		Description:  description,
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print the slice as JSON, as the control API has it"}},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			words, err := arguments(c, 1, name+" takes one ID: `gpuslice ps` lists them")
			if err != nil {
				return err
			}
			return changeSlice(c, words[0], func(ctx context.Context, enforcer *client.Client, id string) (api.Slice, error) {
				return move(enforcer, ctx, id)
			})
		},
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
)

func devicesCommand() *cli.Command {
	return &cli.Command{
		Name:      "devices",
		Usage:     "list the devices of this host: what of them is used, given and free",
		ArgsUsage: " ",
		Description: `USED is what the driver says is in use, by whomever, and OUTSIDE what processes of no slice hold
of that; they are listed below. GIVEN is what slices were promised, whether they use it or not, FREE what
the next one can still be given: the operator may keep a reserve, or give more than there is (overcommit).

   gpuslice devices
   gpuslice devices --json | jq '[.[].free] | add'`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON, as the control API has it"},
			&cli.BoolFlag{Name: "no-trunc", Usage: "do not shorten UUIDs"},
		},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return misuse("devices takes no argument (see `gpuslice devices --help`)")
			}
			devices, err := connect(c).Devices(c.Context)
			if err != nil {
				return err
			}
			return printList(c, devices, show.Devices)
		},
	}
}

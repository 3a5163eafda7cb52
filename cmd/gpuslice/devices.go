// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
)

func devicesCommand() *cli.Command {
	return &cli.Command{
		Name:      "devices",
		Usage:     "list the devices of this host: memory used, granted and free",
		ArgsUsage: " ",
		Description: `USED is what the driver says is in use, by whomever, and OUTSIDE what processes of no slice hold
of that; they are listed below. GIVEN is what slices were promised, whether they use it or not, FREE what
the next one can still be given: the operator may keep a reserve, or give more than there is (overcommit).

   gpuslice devices
   gpuslice devices --watch --sort -free
   gpuslice devices --json | jq '[.[].free] | add'` + fmt.Sprintf(listHelp, "Free"),
		Flags:        append(listFlags(&show.DeviceTable), watchFlags()...),
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			if err := takesNothing(c); err != nil {
				return err
			}
			return list(c, &show.DeviceTable, connect(c).Devices)
		},
	}
}

// SPDX-License-Identifier: Apache-2.0

package show

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// Devices prints a row for each device. Long UUIDs are shortened unless whole.
func Devices(out io.Writer, devices []api.Device, whole bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "INDEX\tDEVICE\tNAME\tTOTAL\tGIVEN\tFREE\tSLICES")
	for _, d := range devices {
		index, name, free := "-", "-", "unknown"
		if d.Index >= 0 {
			index = strconv.Itoa(d.Index)
		}
		if d.Name != "" {
			name = d.Name
		}
		if d.Free != nil {
			free = api.FormatSize(*d.Free)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\n",
			index, device(api.DeviceUse{Device: d.UUID}, whole), name, api.FormatSize(d.Total), api.FormatSize(d.Quotas), free, d.Slices)
	}
	return w.Flush()
}

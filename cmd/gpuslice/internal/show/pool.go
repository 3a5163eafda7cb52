// SPDX-License-Identifier: Apache-2.0

package show

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// Pools prints a row for each device of each pool. UUIDs are shortened unless whole.
func Pools(out io.Writer, pools []api.Pool, whole bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "POOL\tDEVICE\tUSED\tOVERHEAD\tLIMIT\tMEMBERS\tPROCESSES\tSTATE")
	for _, p := range pools {
		row := func(device, used, overhead, limit, note string) {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s%s\n", p.Name, device, used, overhead, limit, len(p.Members), p.ProcessCount, p.State, note)
		}
		if len(p.Devices) == 0 {
			row("-", "-", "-", "-", "") // no process has looked at a device yet, and nothing else knows them
		}
		for _, d := range p.Devices {
			note := ""
			if d.Used+d.Overhead > d.Limit {
				note = ", over"
			}
			row(numbered(d.Device, d.Index, whole), api.FormatSize(d.Used), api.FormatSize(d.Overhead), api.FormatSize(d.Limit), note)
		}
	}
	return w.Flush()
}

// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// Devices prints a row for each device, and then one for each process of no slice that holds memory. Long UUIDs are shortened unless whole.
func Devices(out io.Writer, devices []api.Device, whole bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "INDEX\tDEVICE\tNAME\tTOTAL\tUSED\tOUTSIDE\tGIVEN\tFREE\tSLICES")
	for _, d := range devices {
		index, outside := "-", "unknown"
		if d.Index >= 0 {
			index = strconv.Itoa(d.Index)
		}
		if d.Used != nil {
			outside = api.FormatSize(d.OutsideUsed)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", index, device(api.DeviceUse{Device: d.UUID}, whole), cmp.Or(d.Name, "-"),
			api.FormatSize(d.Total), size(d.Used), outside, api.FormatSize(d.Quotas), size(d.Free), d.Slices)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return outside(out, devices, whole)
}

// outside prints who uses devices outside slices; nothing if nobody does.
func outside(out io.Writer, devices []api.Device, whole bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := "\nOutside slices:\nDEVICE\tPID\tUSED\tCOMMAND\n"
	for _, d := range devices {
		name := numbered(d.UUID, d.Index, whole)
		for _, p := range d.Outside {
			fmt.Fprintf(w, "%s%s\t%d\t%s\t%s\n", head, name, p.PID, size(p.Bytes), Plain(cmp.Or(p.Command, "-")))
			head = ""
		}
		if more := d.OutsideCount - len(d.Outside); more > 0 {
			fmt.Fprintf(w, "%s%s\t%d more\t\t\n", head, name, more)
			head = ""
		}
	}
	return w.Flush()
}

// Plain is a stranger's text with what a terminal would take for more than text escaped.
func Plain(text string) string {
	quoted := strconv.Quote(text)
	if quoted == `"`+text+`"` {
		return text
	}
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

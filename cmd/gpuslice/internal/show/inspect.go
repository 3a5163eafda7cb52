// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Slice prints all details of a slice.
func Slice(out io.Writer, s api.Slice) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s:\t%s\n", name, value)
		}
	}
	row("Slice", s.ID)
	row("Container", s.Container)
	row("Name", Plain(s.Path()))
	row("Image", Plain(s.Image))
	row("State", state(s))
	row("Why", Plain(s.Reason))
	row("Tenant", s.Tenant)
	row("Pool", s.Pools.String())
	row("Of", Plain(strings.Join(s.PoolLabels, ", ")))
	var quotas []string
	for _, q := range s.Quotas {
		size := api.FormatSize(q.Bytes)
		if q.Percent > 0 {
			size = fmt.Sprintf("%d%%", q.Percent)
		}
		if q.Device != api.AllDevices {
			size += " on " + q.Device
		}
		quotas = append(quotas, size)
	}
	row("Quota", strings.Join(quotas, ", "))
	row("Began", fmt.Sprintf("%s, with process %d", s.Created.Local().Format(time.DateTime), s.PID))
	if s.Expires != nil {
		row("Expires", remaining(s))
	}
	row("Cgroup", Plain(s.Cgroup))
	if e := s.Elastic; e != nil {
		row("Elastic", elastic(*e))
		row("Obstacle", Plain(e.Obstacle))
	}
	var away uint64
	for _, d := range s.Devices {
		away += d.Suspended
	}
	if away > 0 {
		row("Suspended", api.FormatSize(away)+" in host memory")
	}
	if len(s.Devices) > 0 {
		fmt.Fprintln(w, "\nDEVICE\tUSED\tOVERHEAD\tLIMIT\tPEAK\tALLOCATIONS\tREFUSALS\tRECOVERED\tENFORCEMENT")
	}
	names := make(map[string]string)
	for _, d := range s.Devices {
		names[d.Device] = Numbered(d.Device, d.Index, false)
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", names[d.Device], api.FormatSize(d.Used), api.FormatSize(d.Overhead),
			limitOf(s, d), api.FormatSize(d.Peak), d.Allocations, d.Refusals, api.FormatSize(d.Recovered), d.Enforcement)
	}
	busy := func(string) string { return "" }
	for _, p := range s.Processes {
		if slices.ContainsFunc(p.Devices, func(d api.ProcessUse) bool { return d.Busy != nil }) {
			busy = func(text string) string { return text + "\t" }
		}
	}
	if len(s.Processes) > 0 {
		fmt.Fprintln(w, "\nPROCESS\tCOMMAND\tDEVICE\tUSED\tOVERHEAD\tDRIVER\t"+busy("BUSY")+"NOTE")
	}
	for _, p := range s.Processes {
		note, command := "", cmp.Or(Plain(p.Command), "-")
		switch {
		case p.Bypass != "":
			note = "holds memory past the ledger: " + p.Bypass
		case !p.Attached:
			note = "not attached"
		case suspended(p) > 0:
			note = "suspended: " + api.FormatSize(suspended(p)) + " in host memory"
		}
		if len(p.Devices) == 0 {
			fmt.Fprintf(w, "%d\t%s\t-\t-\t-\t-\t%s%s\n", p.PID, command, busy("-"), cmp.Or(note, "-"))
		}
		for _, d := range p.Devices {
			percent := "unknown"
			if d.Busy != nil {
				percent = fmt.Sprintf("%d%%", *d.Busy)
			}
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s%s\n", p.PID, command, cmp.Or(names[d.Device], Device(d.Device)), api.FormatSize(d.Used), api.FormatSize(d.Overhead), size(d.Driver), busy(percent), cmp.Or(note, "-"))
		}
	}
	if err := w.Flush(); err != nil || s.Refusal == nil {
		return err
	}
	fmt.Fprintln(out, "\nLast refusal:")
	of := make(Indices)
	for _, d := range s.Devices {
		of[d.Device] = d.Index
	}
	return Explain(out, api.Run{Slice: s.ID, Refusal: s.Refusal}, api.Slice{}, of)
}

func elastic(e api.Elastic) string {
	said := fmt.Sprintf("priority %d, evicted %s, waited %s in all", e.Priority, Count(e.Evictions, "time"), e.Waited.Round(100*time.Millisecond))
	if e.Waits != nil {
		return said + ", waits for its memory since " + since(*e.Waits)
	}
	return said + fmt.Sprintf(", idle for %s", e.Idle.Round(100*time.Millisecond))
}

func since(t time.Time) string {
	return fmt.Sprintf("%s (%s)", t.Local().Format(time.TimeOnly), api.FormatTTL(max(0, time.Since(t)).Truncate(time.Second)))
}

func suspended(p api.Process) (sum uint64) {
	for _, d := range p.Devices {
		sum += d.Suspended
	}
	return sum
}

func limitOf(s api.Slice, d api.DeviceUse) string {
	if d.Limit == 0 && s.Mode == api.Record {
		return "none"
	}
	return api.FormatSize(d.Limit)
}

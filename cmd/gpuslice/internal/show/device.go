// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/table"
	"github.com/gpuslice/gpuslice/enforcer/driver"
)

// DeviceTable lists devices, and then the processes of no slice that hold memory of them.
var DeviceTable = table.Table[api.Device]{
	ID:     func(d api.Device) string { return d.UUID },
	Object: func(d api.Device) any { return d },
	After:  outside,
	Columns: []table.Column[api.Device]{
		{Head: "INDEX", Field: "Index", Number: func(d api.Device) uint64 { return uint64(d.Index + 1) }, Text: func(d api.Device) string {
			if d.Index < 0 {
				return ""
			}
			return strconv.Itoa(d.Index)
		}},
		{Head: "DEVICE", Field: "ID", Text: func(d api.Device) string { return d.UUID }, Short: func(d api.Device) string { return Device(d.UUID) }},
		{Head: "NAME", Field: "Name", Text: func(d api.Device) string { return d.Name }},
		{Head: "TOTAL", Field: "Total", Number: func(d api.Device) uint64 { return d.Total }, Text: func(d api.Device) string { return api.FormatSize(d.Total) }},
		{Head: "USED", Field: "Used", Number: func(d api.Device) uint64 { return known(d.Used) }, Text: func(d api.Device) string { return size(d.Used) }},
		{Head: "OUTSIDE", Field: "Outside", Number: func(d api.Device) uint64 { return d.OutsideUsed }, Text: func(d api.Device) string {
			if d.Used == nil {
				return "unknown"
			}
			return api.FormatSize(d.OutsideUsed)
		}},
		{Head: "GIVEN", Field: "Given", Number: func(d api.Device) uint64 { return d.Quotas }, Text: func(d api.Device) string { return api.FormatSize(d.Quotas) }},
		{Head: "FREE", Field: "Free", Number: func(d api.Device) uint64 { return known(d.Free) }, Text: func(d api.Device) string { return size(d.Free) }},
		someOf("SUSPENDED", "Suspended", func(d api.Device) uint64 { return d.Suspended }),
		someOf("PROMISED", "Promised", promised),
		{Head: "SLICES", Field: "Slices", Number: func(d api.Device) uint64 { return uint64(max(d.Slices, 0)) }, Text: func(d api.Device) string { return strconv.Itoa(d.Slices) }},
		{Head: "RESERVE", Field: "Reserve", Wide: true, Number: func(d api.Device) uint64 { return d.Reserve }, Text: func(d api.Device) string { return api.FormatSize(d.Reserve) }},
		{Head: "CONTEXT", Field: "Context", Wide: true, Number: func(d api.Device) uint64 { return d.Context }, Text: func(d api.Device) string {
			if d.Context == 0 {
				return "unknown"
			}
			return api.FormatSize(d.Context)
		}},
		{Head: "PCI", Field: "PCI", Wide: true, Text: func(d api.Device) string { return d.PCI }},
		{Head: "COMPUTE", Field: "Compute", Wide: true, Text: func(d api.Device) string { return d.ComputeCapability }},
		{Head: "ENFORCEMENT", Field: "Enforcement", Wide: true, Text: func(d api.Device) string { return string(d.Enforcement) }},
	},
	Filters: []table.Filter[api.Device]{
		{Key: "device", Matches: func(d api.Device, value string) bool { return value != "" && deviceIs(value, d.UUID, d.Index) }},
		{Key: "name", Matches: func(d api.Device, value string) bool {
			return strings.Contains(strings.ToLower(d.Name), strings.ToLower(value))
		}},
		table.OneOf("enforcement", func(d api.Device) string { return string(d.Enforcement) }, string(api.Intercept), string(api.Native)),
		table.If("mig", func(d api.Device) bool { return strings.HasPrefix(d.UUID, "MIG-") }),
	},
}

// someOf returns a column of bytes that appears if any device has some.
func someOf(head, field string, of func(api.Device) uint64) table.Column[api.Device] {
	return table.Column[api.Device]{Head: head, Field: field, Optional: true, Number: of, Text: func(d api.Device) string {
		if of(d) == 0 {
			return ""
		}
		return api.FormatSize(of(d))
	}}
}

// promised returns the quotas of elastic slices and pools, including evicted ones.
func promised(d api.Device) uint64 {
	if d.Elastic == nil {
		return 0
	}
	return d.Elastic.Promised
}

// known returns an optional figure for sorting; 0 if unknown.
func known(bytes *uint64) uint64 {
	if bytes == nil {
		return 0
	}
	return *bytes
}

// WithSensors returns DeviceTable with the sensors of each device by UUID, if any is known.
func WithSensors(of map[string]driver.Sensors) *table.Table[api.Device] {
	t := DeviceTable
	t.Columns = append(slices.Clip(t.Columns), table.Column[api.Device]{
		Head: "SENSORS", Optional: true, Text: func(d api.Device) string { return Sensors(of[d.UUID]) },
	})
	return &t
}

// Sensors returns what is known of how busy a device is, how warm, and how much power it draws.
func Sensors(s driver.Sensors) string {
	var known []string
	add := func(r driver.Reading, format string, value uint32) {
		if r.Known {
			known = append(known, fmt.Sprintf(format, value))
		}
	}
	watts := func(r driver.Reading) uint32 { return (r.Value + 500) / 1000 }
	add(s.Busy, "GPU %d %%", s.Busy.Value)
	add(s.Temperature, "%d °C", s.Temperature.Value)
	add(s.Power, "%d W", watts(s.Power))
	text := strings.Join(known, "  ")
	if s.Power.Known && s.Limit.Known {
		text += fmt.Sprintf(" of %d W", watts(s.Limit))
	}
	return text
}

func outside(out io.Writer, devices []api.Device, whole bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := "\nOutside slices:\nDEVICE\tPID\tUSED\tCOMMAND\n"
	for _, d := range devices {
		name := Numbered(d.UUID, d.Index, whole)
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

// Plain escapes text of other users for a terminal, as api.Plain does.
func Plain(text string) string { return api.Plain(text) }

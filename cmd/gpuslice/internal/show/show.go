// SPDX-License-Identifier: Apache-2.0

// Package show prints slices, pools, devices and events as text (tables) and JSON. The JSON is that of the control API, and as
// stable. It must never request data itself.
package show

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/table"
)

// Short is the length of a shortened container id, as in docker.
const Short = 12

// widest is the maximum length of a shortened name. Both of its ends are kept, as either may distinguish it.
const widest = 40

const gap = "…"

// JSON prints v, indented.
func JSON(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// SliceUse is a slice on one of its devices.
type SliceUse struct {
	api.Slice
	Use  *api.DeviceUse // nil if no process has used a device yet
	User string         // of a session: its user's name, or number
}

// SliceRows returns the rows of slices, one per device.
func SliceRows(all []api.Slice) []SliceUse {
	var rows []SliceUse
	for _, s := range all {
		for i := range s.Devices {
			rows = append(rows, SliceUse{Slice: s, Use: &s.Devices[i]})
		}
		if len(s.Devices) == 0 {
			rows = append(rows, SliceUse{Slice: s})
		}
	}
	return rows
}

// exceedsLimit reports whether the slice exceeds its limit: after a lower limit was set, or with memory past the ledger.
func (u SliceUse) exceedsLimit() bool {
	return u.Use != nil && u.Mode != api.Record && u.Use.Used+u.Use.Overhead > u.Use.Limit
}

// figure returns a figure of the row's device, or 0 without one.
func figure(of func(api.DeviceUse) uint64) func(SliceUse) uint64 {
	return func(u SliceUse) uint64 {
		if u.Use == nil {
			return 0
		}
		return of(*u.Use)
	}
}

func sized(c table.Column[SliceUse], of func(api.DeviceUse) uint64) table.Column[SliceUse] {
	c.Number = figure(of)
	c.Text = func(u SliceUse) string {
		if u.Use == nil {
			return ""
		}
		return api.FormatSize(of(*u.Use))
	}
	return c
}

func counted(c table.Column[SliceUse], of func(api.DeviceUse) uint64) table.Column[SliceUse] {
	c = sized(c, of)
	c.Text = func(u SliceUse) string {
		if u.Use == nil {
			return ""
		}
		return strconv.FormatUint(of(*u.Use), 10)
	}
	return c
}

// SliceTable lists slices, one row per device.
var SliceTable = table.Table[SliceUse]{
	ID:     func(u SliceUse) string { return u.ID },
	Key:    func(u SliceUse) string { return u.ID + " " + strconv.FormatUint(u.Generation, 10) },
	Object: func(u SliceUse) any { return u.Slice },
	Columns: []table.Column[SliceUse]{
		shortened("SLICE", "ID", func(u SliceUse) string { return u.ID }),
		shortened("CONTAINER", "Container", func(u SliceUse) string { return u.Container }),
		optional(shortened("NAME", "Name", func(u SliceUse) string { return u.Path() })),
		optional(shortened("TENANT", "Tenant", func(u SliceUse) string { return u.Tenant })),
		{Head: "DEVICE", Field: "Device", Text: func(u SliceUse) string { return u.device() }, Short: func(u SliceUse) string {
			if u.Use == nil {
				return ""
			}
			return Numbered(u.Use.Device, u.Use.Index, false)
		}},
		sized(table.Column[SliceUse]{Head: "USED", Field: "Used"}, func(d api.DeviceUse) uint64 { return d.Used }),
		sized(table.Column[SliceUse]{Head: "OVERHEAD", Field: "Overhead"}, func(d api.DeviceUse) uint64 { return d.Overhead }),
		{Head: "SUSPENDED", Field: "Suspended", Optional: true, Number: figure(func(d api.DeviceUse) uint64 { return d.Suspended }), Text: func(u SliceUse) string {
			if u.Use == nil || u.Use.Suspended == 0 {
				return ""
			}
			return api.FormatSize(u.Use.Suspended)
		}},
		{Head: "LIMIT", Field: "Limit", Number: figure(func(d api.DeviceUse) uint64 { return d.Limit }), Text: func(u SliceUse) string {
			if u.Use == nil {
				return ""
			}
			return limitOf(u.Slice, *u.Use)
		}},
		{Head: "PROCESSES", Field: "Processes", Number: func(u SliceUse) uint64 { return uint64(max(u.ProcessCount, 0)) },
			Text: func(u SliceUse) string { return strconv.Itoa(u.ProcessCount) }},
		{Head: "EXPIRES", Field: "Expires", Optional: true, None: "never", Number: func(u SliceUse) uint64 {
			if u.Expires == nil {
				return math.MaxUint64
			}
			return uint64(max(u.Remaining, 0))
		}, Text: func(u SliceUse) string {
			if u.Expires == nil {
				return ""
			}
			return remaining(u.Slice)
		}},
		{Head: "STATE", Field: "State", Alarm: func(u SliceUse) bool { return u.State != api.Active || u.exceedsLimit() }, Text: func(u SliceUse) string {
			if u.exceedsLimit() {
				return state(u.Slice) + ", over"
			}
			return state(u.Slice)
		}},
		{Head: "USER", Field: "User", Wide: true, Text: func(u SliceUse) string { return u.User }},
		wide(shortened("COMMAND", "Command", func(u SliceUse) string { return u.Command })),
		{Head: "AGE", Field: "Age", Wide: true, Number: func(u SliceUse) uint64 { return uint64(u.age()) }, Text: func(u SliceUse) string {
			return api.FormatTTL(u.age().Truncate(time.Second))
		}},
		wide(shortened("IMAGE", "Image", func(u SliceUse) string { return u.Image })),
		{Head: "MODE", Field: "Mode", Wide: true, Text: func(u SliceUse) string { return mode(u.Slice) }},
		{Head: "POOL", Field: "Pool", Wide: true, Text: func(u SliceUse) string { return u.Pools.String() }},
		wide(sized(table.Column[SliceUse]{Head: "PEAK", Field: "Peak"}, func(d api.DeviceUse) uint64 { return d.Peak })),
		wide(counted(table.Column[SliceUse]{Head: "ALLOCATIONS", Field: "Allocations"}, func(d api.DeviceUse) uint64 { return d.Allocations })),
		wide(counted(table.Column[SliceUse]{Head: "REFUSALS", Field: "Refusals"}, func(d api.DeviceUse) uint64 { return d.Refusals })),
		{Head: "BEGAN", Field: "Began", Wide: true, Number: func(u SliceUse) uint64 { return uint64(max(u.Created.UnixNano(), 0)) },
			Text: func(u SliceUse) string { return u.Created.Local().Format(time.DateTime) }},
		{Head: "ENFORCEMENT", Field: "Enforcement", Wide: true, Text: func(u SliceUse) string {
			if u.Use == nil {
				return ""
			}
			return string(u.Use.Enforcement)
		}},
	},
	Filters: []table.Filter[SliceUse]{
		{Key: "id", Matches: func(u SliceUse, value string) bool { return value != "" && begins(value, u.ID) }},
		{Key: "container", Matches: func(u SliceUse, value string) bool {
			return value == u.Container || value != "" && begins(value, u.Container)
		}},
		table.Is("name", func(u SliceUse) string { return u.Name }),
		table.Is("pod", func(u SliceUse) string { return u.Pod }),
		table.Is("namespace", func(u SliceUse) string { return u.Namespace }),
		table.Is("image", func(u SliceUse) string { return u.Image }),
		table.Is("tenant", func(u SliceUse) string { return u.Tenant }),
		{Key: "pool", Matches: func(u SliceUse, value string) bool {
			return slices.Contains(u.Pools, value) || value == "" && len(u.Pools) == 0
		}},
		{Key: "device", Matches: func(u SliceUse, value string) bool {
			return u.Use != nil && deviceIs(value, u.Use.Device, u.Use.Index) || u.Use == nil && value == ""
		}},
		table.OneOf("mode", func(u SliceUse) string { return mode(u.Slice) }, string(api.Enforce), string(api.Record)),
		table.OneOf("state", func(u SliceUse) string { return string(State(&u.Slice)) },
			string(api.Active), string(api.Released), string(api.Damaged), string(api.Frozen), string(api.Expired),
			string(api.Suspending), string(api.Suspended), string(api.Resuming),
			string(api.Evicting), string(api.Evicted), string(Waiting), string(api.Returning)),
		table.If("over", SliceUse.exceedsLimit),
	},
}

func (u SliceUse) age() time.Duration { return max(time.Since(u.Created), 0) }

func (u SliceUse) device() string {
	if u.Use == nil {
		return ""
	}
	return u.Use.Device
}

func mode(s api.Slice) string { return string(cmp.Or(s.Mode, api.Enforce)) }

// shortened returns a column of names, shortened in tables.
func shortened[R any](head, field string, of func(R) string) table.Column[R] {
	return table.Column[R]{Head: head, Field: field, Text: of, Short: func(r R) string { return shortID(of(r)) }}
}

// optional returns a column that appears only if any row has a value.
func optional[R any](c table.Column[R]) table.Column[R] {
	c.Optional = true
	return c
}

func wide[R any](c table.Column[R]) table.Column[R] {
	c.Wide = true
	return c
}

// deviceIs reports whether value names a device: by index, by UUID or its prefix, or as tables show it.
func deviceIs(value, uuid string, index int) bool {
	switch {
	case value == "" || uuid == "":
		return value == uuid
	case index >= 0 && value == strconv.Itoa(index), value == Numbered(uuid, index, false):
		return true
	}
	_, err := strconv.Atoi(value) // an index is no prefix
	return err != nil && strings.HasPrefix(strings.ToLower(uuid), strings.ToLower(value))
}

// Slices prints a row for each device of each slice. It shortens ids unless whole is set.
func Slices(out io.Writer, all []api.Slice, whole bool) error {
	return SliceTable.Print(out, SliceRows(all), whole)
}

func remaining(s api.Slice) string {
	switch {
	case s.Expires == nil:
		return "never"
	case s.Remaining <= 0:
		return "now"
	default:
		return "in " + api.FormatTTL(max(s.Remaining, time.Second))
	}
}

// Waiting is shown in place of api.Evicted if a process waits for the slice's return.
const Waiting api.State = "waiting"

// State returns the state of a slice as tables show it.
func State(s *api.Slice) api.State {
	if s.State == api.Evicted && s.Elastic != nil && s.Elastic.Waits != nil {
		return Waiting
	}
	return s.State
}

func state(s api.Slice) string {
	text := string(State(&s))
	if s.Mode == api.Record {
		text += ", record"
	}
	if len(s.Pools) > 0 {
		text += ", pool " + s.Pools.String()
	}
	return text
}

// device returns the kind and first part of a UUID (GPU-1b2c3d4e). An index would be ambiguous between CUDA and NVML.
func device(d api.DeviceUse, whole bool) string {
	if whole {
		return d.Device
	}
	parts := strings.SplitN(d.Device, "-", 3)
	if len(parts) < 3 {
		return d.Device
	}
	return parts[0] + "-" + parts[1]
}

// Device returns a UUID as tables show it.
func Device(uuid string) string { return device(api.DeviceUse{Device: uuid}, false) }

// Numbered returns the same with NVML's index before it (0:GPU-1b2c3d4e), as in --device and `gpuslice devices`. The index
// distinguishes devices with a common prefix.
func Numbered(uuid string, index int, whole bool) string {
	text := device(api.DeviceUse{Device: uuid}, whole)
	if whole || index < 0 { // a MIG device has none
		return text
	}
	return strconv.Itoa(index) + ":" + text
}

// Count returns a number with its noun. The plural adds an s.
func Count[N int | uint64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// Indices has NVML's index of each known device, by UUID.
type Indices map[string]int

func (n Indices) of(uuid string) int {
	if index, known := n[uuid]; known {
		return index
	}
	return -1
}

// Name returns a device as tables show it.
func (n Indices) Name(uuid string) string { return Numbered(uuid, n.of(uuid), false) }

// Is reports whether value names a device: its index, a beginning of its UUID, or as tables show it.
func (n Indices) Is(value, uuid string) bool { return deviceIs(value, uuid, n.of(uuid)) }

// shortID shortens ids made by engines (64 hexadecimal digits), and very long names.
func shortID(id string) string {
	switch {
	case generated(id):
		return id[:Short]
	case len(id) > widest:
		return id[:widest/2-1] + gap + id[len(id)-widest/2:]
	}
	return id
}

// ShortID returns an id as tables show it.
func ShortID(id string) string { return shortID(id) }

func generated(id string) bool {
	return len(id) == 64 && isHex(id)
}

func isHex(text string) bool { return strings.Trim(text, "0123456789abcdef") == "" }

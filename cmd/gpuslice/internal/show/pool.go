// SPDX-License-Identifier: Apache-2.0

package show

import (
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/table"
)

// PoolUse is a pool on one device.
type PoolUse struct {
	api.Pool
	Use *api.PoolUse // nil if the devices are unknown, as no process has used one
}

// PoolRows returns the rows of pools, one per device.
func PoolRows(pools []api.Pool) []PoolUse {
	var rows []PoolUse
	for _, p := range pools {
		for i := range p.Devices {
			rows = append(rows, PoolUse{p, &p.Devices[i]})
		}
		if len(p.Devices) == 0 {
			rows = append(rows, PoolUse{Pool: p})
		}
	}
	return rows
}

func (u PoolUse) exceedsLimit() bool { return u.Use != nil && u.Use.Used+u.Use.Overhead > u.Use.Limit }

func ofPool(head, field string, of func(api.PoolUse) uint64, text func(uint64) string) table.Column[PoolUse] {
	return table.Column[PoolUse]{Head: head, Field: field, Number: func(u PoolUse) uint64 {
		if u.Use == nil {
			return 0
		}
		return of(*u.Use)
	}, Text: func(u PoolUse) string {
		if u.Use == nil {
			return ""
		}
		return text(of(*u.Use))
	}}
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// PoolTable lists pools, one row per device.
var PoolTable = table.Table[PoolUse]{
	ID:     func(u PoolUse) string { return u.Name },
	Object: func(u PoolUse) any { return u.Pool },
	Columns: []table.Column[PoolUse]{
		{Head: "POOL", Field: "Name", Text: func(u PoolUse) string { return u.Name }},
		{Head: "DEVICE", Field: "Device", Text: func(u PoolUse) string {
			if u.Use == nil {
				return ""
			}
			return u.Use.Device
		}, Short: func(u PoolUse) string {
			if u.Use == nil {
				return ""
			}
			return Numbered(u.Use.Device, u.Use.Index, false)
		}},
		ofPool("USED", "Used", func(d api.PoolUse) uint64 { return d.Used }, api.FormatSize),
		ofPool("OVERHEAD", "Overhead", func(d api.PoolUse) uint64 { return d.Overhead }, api.FormatSize),
		ofPool("LIMIT", "Limit", func(d api.PoolUse) uint64 { return d.Limit }, api.FormatSize),
		{Head: "MEMBERS", Field: "Members", Number: func(u PoolUse) uint64 { return uint64(len(u.Members)) },
			Text: func(u PoolUse) string { return strconv.Itoa(len(u.Members)) }},
		{Head: "PROCESSES", Field: "Processes", Number: func(u PoolUse) uint64 { return uint64(max(u.ProcessCount, 0)) },
			Text: func(u PoolUse) string { return strconv.Itoa(u.ProcessCount) }},
		{Head: "STATE", Field: "State", Alarm: func(u PoolUse) bool { return u.State == api.Damaged || u.exceedsLimit() }, Text: func(u PoolUse) string {
			if u.exceedsLimit() {
				return string(u.State) + ", over"
			}
			return string(u.State)
		}},
		{Head: "TENANT", Field: "Tenant", Wide: true, Text: func(u PoolUse) string { return u.Tenant }},
		wide(ofPool("PEAK", "Peak", func(d api.PoolUse) uint64 { return d.Peak }, api.FormatSize)),
		wide(ofPool("REFUSALS", "Refusals", func(d api.PoolUse) uint64 { return d.Refusals }, decimal)),
		{Head: "CREATED", Field: "Created", Wide: true, Number: func(u PoolUse) uint64 { return uint64(max(u.Created.UnixNano(), 0)) },
			Text: func(u PoolUse) string { return u.Created.Local().Format(time.DateTime) }},
		{Head: "LABEL", Field: "Label", Wide: true, Text: func(u PoolUse) string { return u.Label }},
	},
	Filters: []table.Filter[PoolUse]{
		{Key: "name", Matches: func(u PoolUse, value string) bool { return value != "" && strings.HasPrefix(u.Name, value) }},
		table.Is("tenant", func(u PoolUse) string { return u.Tenant }),
		{Key: "device", Matches: func(u PoolUse, value string) bool {
			return u.Use != nil && deviceIs(value, u.Use.Device, u.Use.Index) || u.Use == nil && value == ""
		}},
		table.OneOf("state", func(u PoolUse) string { return string(u.State) }, string(api.Active), string(api.Damaged), string(api.Evicted)),
		table.If("over", PoolUse.exceedsLimit),
	},
}

// Pools prints a row for each device of each pool. It shortens UUIDs unless whole is set.
func Pools(out io.Writer, pools []api.Pool, whole bool) error {
	return PoolTable.Print(out, PoolRows(pools), whole)
}

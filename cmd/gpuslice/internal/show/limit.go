// SPDX-License-Identifier: Apache-2.0

package show

import (
	"strconv"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/table"
)

// UserLimit is what a user may have of one device.
type UserLimit struct {
	api.UserLimits
	On *api.DeviceLimit // nil if no device is known
}

// LimitRows returns the rows of a user's limits, one per device.
func LimitRows(l api.UserLimits) (rows []UserLimit) {
	for i := range l.Devices {
		rows = append(rows, UserLimit{l, &l.Devices[i]})
	}
	if len(rows) == 0 {
		rows = append(rows, UserLimit{UserLimits: l})
	}
	return rows
}

func (l UserLimit) uid() string { return strconv.FormatUint(uint64(l.UID), 10) }

func (l UserLimit) device() string {
	if l.On == nil {
		return ""
	}
	return l.On.Device
}

// LimitTable lists what a user may have, one row per device.
var LimitTable = table.Table[UserLimit]{
	ID:     UserLimit.device,
	Key:    UserLimit.uid,
	Object: func(l UserLimit) any { return l.UserLimits },
	Columns: []table.Column[UserLimit]{
		{Head: "INDEX", Field: "Index", Number: func(l UserLimit) uint64 {
			if l.On == nil {
				return 0
			}
			return uint64(l.On.Index + 1)
		}, Text: func(l UserLimit) string {
			if l.On == nil || l.On.Index < 0 {
				return ""
			}
			return strconv.Itoa(l.On.Index)
		}},
		{Head: "DEVICE", Field: "ID", None: "any", Text: UserLimit.device, Short: func(l UserLimit) string { return Device(l.device()) }},
		{Head: "NAME", Field: "Name", Text: func(l UserLimit) string {
			if l.On == nil {
				return ""
			}
			return l.On.Name
		}},
		limited("LIMIT", "Limit", func(l UserLimit) string { return l.MaxVRAM }, func(d *api.DeviceLimit) uint64 { return d.Limit }),
		limited("GIVEN", "Given", nil, func(d *api.DeviceLimit) uint64 { return d.Given }),
		limited("LEFT", "Left", nil, func(d *api.DeviceLimit) uint64 { return d.Left }),
		{Head: "SESSIONS", Field: "Sessions", Number: func(l UserLimit) uint64 { return uint64(max(l.Sessions, 0)) }, Text: func(l UserLimit) string {
			if l.MaxSessions == 0 {
				return strconv.Itoa(l.Sessions)
			}
			return strconv.Itoa(l.Sessions) + " of " + strconv.Itoa(l.MaxSessions)
		}},
		{Head: "TTL", Field: "TTL", None: "any", Number: func(l UserLimit) uint64 { return uint64(max(l.MaxTTL-1, -1)) }, Text: func(l UserLimit) string {
			if l.MaxTTL == 0 {
				return ""
			}
			return api.FormatTTL(l.MaxTTL)
		}},
		{Head: "UID", Field: "UID", Wide: true, Number: func(l UserLimit) uint64 { return uint64(l.UID) }, Text: UserLimit.uid},
	},
	Filters: []table.Filter[UserLimit]{
		{Key: "device", Matches: func(l UserLimit, value string) bool {
			return l.On != nil && value != "" && deviceIs(value, l.On.Device, l.On.Index)
		}},
	},
}

// limited returns a column of bytes; unknown, or what without returns, if no device is known.
func limited(head, field string, without func(UserLimit) string, of func(*api.DeviceLimit) uint64) table.Column[UserLimit] {
	return table.Column[UserLimit]{Head: head, Field: field, Number: func(l UserLimit) uint64 {
		if l.On == nil {
			return 0
		}
		return of(l.On)
	}, Text: func(l UserLimit) string {
		switch {
		case l.On != nil:
			return api.FormatSize(of(l.On))
		case without != nil:
			return without(l)
		}
		return "unknown"
	}}
}

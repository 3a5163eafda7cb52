// SPDX-License-Identifier: Apache-2.0

// Package admission records how many bytes of each device slices and pools were granted. It is core.Accounts, which decides, behind a lock. A granted quota
// is kept, so a request that does not fit is refused at once, in a sentence that names the holders of the rest.
package admission

import (
	"maps"
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// Device, Holder, Limits and User are those of package refusal.
type (
	Device = refusal.Device
	Holder = refusal.Holder
	Limits = refusal.Limits
	User   = refusal.User
)

// Book is what is granted, on all devices.
type Book struct {
	config  core.Config
	devices map[string]Device // nil without driver truth

	mu       guard.Mutex[guard.Book] // guards accounts
	accounts *core.Accounts
}

// New returns a Book in which nothing is granted. Without NVML config has no devices: their sizes are unknown, and nothing is refused because of what
// others were granted.
func New(config core.Config) *Book {
	b := &Book{config: config, accounts: core.NewAccounts(config)}
	if config.Devices != nil {
		b.devices = make(map[string]Device)
		for _, d := range config.Devices {
			b.devices[d.UUID] = d
		}
	}
	return b
}

// Do calls f with the accounts.
func (b *Book) Do(f func(*core.Accounts)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b.accounts)
}

// Enter notes a holder from before a restart, and returns its generation.
func (b *Book) Enter(h *Holder, r core.Record, pools ...*Holder) (generation uint64) {
	b.Do(func(a *core.Accounts) { generation = a.Enter(h, r, pools...) })
	return generation
}

// Set notes the record of a restored holder, and returns the Op with which core.Used reports what the holder holds.
func (b *Book) Set(h *Holder, r core.Record) (op uint64) {
	b.Do(func(a *core.Accounts) { op = a.Set(h, r) })
	return op
}

// Has returns the bytes that a holder counts for, by device; with pools, those of a slice's pools, too.
func (b *Book) Has(h *Holder, pools bool) (has core.Bytes) {
	b.Do(func(a *core.Accounts) { has = a.Has(h, pools) })
	return has
}

// Promised returns what was promised of a device to elastic holders, at one moment.
func (b *Book) Promised(uuid string) (shown api.ElasticDevice) {
	d, known := b.devices[uuid]
	if !known {
		return shown
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	shown.Promised, shown.Most = b.accounts.On(uuid).Promised, b.config.Limits.Capacity(d.Total)
	capacity := refusal.Promisable(d.Total, b.config.Elastic.Overcommit)
	shown.Free = capacity - min(capacity, shown.Promised)
	b.accounts.Holders(uuid, func(h *Holder, _, promised uint64) { note(&shown.Pools, h, promised) })
	return shown
}

// note adds a pool's bytes to pools; it ignores other holders.
func note(pools *map[string]uint64, h *Holder, bytes uint64) {
	if h.Pool == "" || bytes == 0 {
		return
	}
	if *pools == nil {
		*pools = make(map[string]uint64)
	}
	(*pools)[h.Pool] = bytes
}

// Granted is what was granted of a device, at one moment.
type Granted struct {
	Bytes   uint64 // of all holders
	Holders int
	Pools   map[string]uint64 // bytes of the pools that are not elastic, by name
	Reserve uint64
	Free    *uint64 // nil if the size of the device is unknown
}

// Granted returns what was granted of a device.
func (b *Book) Granted(uuid string) Granted {
	b.mu.Lock()
	defer b.mu.Unlock()
	granted := Granted{Bytes: b.accounts.On(uuid).Granted}
	b.accounts.Holders(uuid, func(h *Holder, has, promised uint64) {
		if has > 0 {
			granted.Holders++
		}
		if promised == 0 {
			note(&granted.Pools, h, has)
		}
	})
	if d, known := b.devices[uuid]; known {
		capacity := b.config.Limits.Capacity(d.Total)
		free := capacity - min(capacity, granted.Bytes)
		granted.Reserve, granted.Free = min(b.config.Limits.Reserve, d.Total), &free
	}
	return granted
}

// Left returns the number of a user's sessions, and by device the user's limit, what is granted and what is left; no devices without NVML. limit is nil if
// the user has none.
func (b *Book) Left(uid uint32, limit *User) (sessions int, devices map[string]api.DeviceLimit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	devices = make(map[string]api.DeviceLimit)
	for uuid := range b.devices {
		d := api.DeviceLimit{Device: uuid}
		d.Limit, d.Given, d.Left = b.accounts.Left(uid, limit, uuid)
		devices[uuid] = d
	}
	return b.accounts.Sessions(uid), devices
}

// TenantBounds returns the bytes that all slices of a tenant may be granted together, by device; none without a bound, nor without driver truth.
func (b *Book) TenantBounds(tenant string) map[string]uint64 {
	bounds := make(map[string]uint64)
	for uuid, d := range b.devices {
		if bound, known := refusal.BoundOn(b.config.Limits.Tenant(tenant), &d); known {
			bounds[uuid] = bound
		}
	}
	return bounds
}

// CheckSize checks a slice's quotas while the sizes of devices are unknown, before it is known which devices the slice will use.
func (b *Book) CheckSize(name string, quotas []api.Quota) error {
	if b.devices != nil {
		return nil
	}
	return b.config.Limits.CheckSize(name, quotas)
}

// Over is a grant above a bound, after a change of the configuration or of a device. The holders keep it.
type Over struct {
	Device  string
	Tenant  *string // whose bound it is; nil if it is the device's capacity
	Granted uint64
	Limit   uint64
}

// Overcommitted returns where more is granted than may be.
func (b *Book) Overcommitted() (all []Over) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, uuid := range slices.Sorted(maps.Keys(b.devices)) {
		d, on := b.devices[uuid], b.accounts.On(uuid)
		if capacity := b.config.Limits.Capacity(d.Total); on.Granted > capacity {
			all = append(all, Over{Device: uuid, Granted: on.Granted, Limit: capacity})
		}
		for _, name := range slices.Sorted(maps.Keys(on.Tenants)) {
			if bound, known := refusal.BoundOn(b.config.Limits.Tenant(name), &d); known && on.Tenants[name] > bound {
				all = append(all, Over{Device: uuid, Tenant: &name, Granted: on.Tenants[name], Limit: bound})
			}
		}
	}
	return all
}

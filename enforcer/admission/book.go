// SPDX-License-Identifier: Apache-2.0

// Package admission records how many bytes of each device slices and pools were granted. It is core.Grants, which decides, behind a lock. A granted quota
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

// Ask is what a holder asks for.
type Ask = core.Ask

// Book is what is granted, on all devices.
type Book struct {
	limits     Limits
	overcommit uint64            // thousandths of a device that elastic holders may be promised together
	devices    map[string]Device // nil without driver truth

	mu     guard.Mutex[guard.Book] // guards grants
	grants *core.Grants
}

// New returns a Book in which nothing is granted. Without NVML devices is nil: their sizes are unknown, and nothing is refused because of what others were
// granted. overcommit is in thousandths of a device.
func New(limits Limits, devices []Device, overcommit uint64) *Book {
	b := &Book{limits: limits, overcommit: overcommit}
	b.grants = core.NewGrants(core.Config{Limits: limits, Devices: devices, Elastic: core.Elastic{Overcommit: overcommit}})
	if devices != nil {
		b.devices = make(map[string]Device)
		for _, d := range devices {
			b.devices[d.UUID] = d
		}
	}
	return b
}

// Begin grants a request of a holder that is new or comes back, within the limit of its user, and counts its quotas for that user. Nothing undoes it but
// Set or Drop.
func (b *Book) Begin(a Ask) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := b.admit(a); err != nil {
		return err
	}
	b.grants.Note(a.Holder, a.Quotas)
	return nil
}

// Admit grants a holder the bytes in wants on all devices. Otherwise it grants nothing and returns an *api.Error. It lowers no grant: Set does, once a lower
// quota is in force. undo restores what the holder had on these devices.
func (b *Book) Admit(h *Holder, wants map[string]uint64) (undo func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	had, err := b.admit(Ask{Holder: h, Bytes: wants})
	if err != nil {
		return nil, err
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		has := b.grants.Has(h)
		for uuid := range wants {
			has[uuid] = had[uuid]
		}
		b.grants.Set(h, has)
	}, nil
}

// admit checks and makes a grant, and returns what the holder had before. Called with mu held.
func (b *Book) admit(a Ask) (had map[string]uint64, err error) {
	if err := b.grants.Check(a); err != nil {
		return nil, err
	}
	had = b.grants.Has(a.Holder)
	has := maps.Clone(had)
	for uuid, bytes := range a.Bytes {
		has[uuid] = max(has[uuid], bytes)
	}
	b.grants.Set(a.Holder, has)
	return had, nil
}

// Note records the quotas that a holder asks for. They count against its user's limit while the sizes of devices are unknown.
func (b *Book) Note(h *Holder, quotas []api.Quota) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.grants.Note(h, quotas)
}

// Set notes the bytes that a holder has from now on, and none on other devices. It refuses nothing.
func (b *Book) Set(h *Holder, has map[string]uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.grants.Set(h, has)
}

// Drop forgets a holder. A session counts for its user until then, even if nothing is granted to it any more.
func (b *Book) Drop(h *Holder) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.grants.Drop(h)
}

// Promise notes that an elastic holder may be granted these bytes later, or returns why it never can: alone on the host, or beside the
// other promises.
func (b *Book) Promise(a Ask) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.grants.CheckPromise(a); err != nil {
		return err
	}
	b.grants.Promise(a.Holder, a.Bytes)
	return nil
}

// NotePromise records a promise from before a restart, without a check.
func (b *Book) NotePromise(h *Holder, wants map[string]uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.grants.Promise(h, wants)
}

// Promised returns what was promised of a device to elastic holders, at one moment.
func (b *Book) Promised(uuid string) (shown api.ElasticDevice) {
	d, known := b.devices[uuid]
	if !known {
		return shown
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	shown.Promised, shown.Most = b.grants.On(uuid).Promised, b.limits.Capacity(d.Total)
	capacity := refusal.Promisable(d.Total, b.overcommit)
	shown.Free = capacity - min(capacity, shown.Promised)
	b.grants.Holders(uuid, func(h *Holder, _, promised uint64) { note(&shown.Pools, h, promised) })
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

// Has returns what a holder was granted, by device.
func (b *Book) Has(h *Holder) map[string]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.grants.Has(h)
}

// Granted is what was granted of a device, at one moment.
type Granted struct {
	Bytes   uint64 // of all holders
	Holders int
	Pools   map[string]uint64 // bytes of the pools that are not elastic, by name
	Among   uint64            // bytes of the holders that the caller named
	Reserve uint64
	Free    *uint64 // nil if the size of the device is unknown
}

// Granted returns what was granted of a device, and among these holders.
func (b *Book) Granted(uuid string, among ...*Holder) Granted {
	b.mu.Lock()
	defer b.mu.Unlock()
	shown := Granted{Bytes: b.grants.On(uuid).Granted}
	b.grants.Holders(uuid, func(h *Holder, has, promised uint64) {
		if has > 0 {
			shown.Holders++
		}
		if promised == 0 {
			note(&shown.Pools, h, has)
		}
	})
	for _, h := range among {
		shown.Among += b.grants.Has(h)[uuid]
	}
	if d, known := b.devices[uuid]; known {
		capacity := b.limits.Capacity(d.Total)
		free := capacity - min(capacity, shown.Bytes)
		shown.Reserve, shown.Free = min(b.limits.Reserve, d.Total), &free
	}
	return shown
}

// Left returns the number of a user's sessions, and by device the user's limit, what is granted and what is left; no devices without NVML. limit is nil if
// the user has none.
func (b *Book) Left(uid uint32, limit *User) (sessions int, devices map[string]api.DeviceLimit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	devices = make(map[string]api.DeviceLimit)
	for uuid := range b.devices {
		d := api.DeviceLimit{Device: uuid}
		d.Limit, d.Given, d.Left = b.grants.Left(uid, limit, uuid)
		devices[uuid] = d
	}
	return b.grants.Sessions(uid), devices
}

// Which returns the indexes in may of the holders to evict for a request. It prefers those at the beginning of may. enough is false if evicting all of
// them would not do.
func (b *Book) Which(a Ask, may []*Holder) (which []int, enough bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.grants.Which(a, may)
}

// Beside returns the bytes, by device, that the holder goes may keep there if the request is granted and the holders in gone are evicted.
func (b *Book) Beside(a Ask, goes *Holder, gone []*Holder) map[string]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.grants.Beside(a, goes, gone)
}

// TenantBounds returns the bytes that all slices of a tenant may be granted together, by device; none without a bound, nor without driver truth.
func (b *Book) TenantBounds(tenant string) map[string]uint64 {
	bounds := make(map[string]uint64)
	for uuid, d := range b.devices {
		if bound, known := refusal.BoundOn(b.limits.Tenant(tenant), &d); known {
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
	return b.limits.CheckSize(name, quotas)
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
		d, on := b.devices[uuid], b.grants.On(uuid)
		if capacity := b.limits.Capacity(d.Total); on.Granted > capacity {
			all = append(all, Over{Device: uuid, Granted: on.Granted, Limit: capacity})
		}
		for _, name := range slices.Sorted(maps.Keys(on.Tenants)) {
			if bound, known := refusal.BoundOn(b.limits.Tenant(name), &d); known && on.Tenants[name] > bound {
				all = append(all, Over{Device: uuid, Tenant: &name, Granted: on.Tenants[name], Limit: bound})
			}
		}
	}
	return all
}

// SPDX-License-Identifier: Apache-2.0

// Package admission keeps the book of what is granted of each device, and to whom. A quota that was granted is kept, so one that does
// not fit is refused when it is asked for, in a sentence that names who has the rest.
//
// It knows quotas, not what is used of them; what its holders are is its callers' affair. It does no I/O.
package admission

import (
	"maps"
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// Device, Holder, Limits and User are those of package refusal.
type (
	Device = refusal.Device
	Holder = refusal.Holder
	Limits = refusal.Limits
	User   = refusal.User
)

// Book is what is granted, on all devices. Its methods may be called by any number of goroutines.
type Book struct {
	limits  Limits
	devices map[string]Device // nil without driver truth

	mu       guard.Mutex[guard.Book]       // guards what is granted of each device, and to whom
	granted  map[string]*granted           // by UUID
	sessions map[*Holder][]api.Quota       // of users: what each asks for, until Drop
	promised map[*Holder]map[string]uint64 // to elastic holders, by UUID: what each may have while it is on its devices, until Drop
}

// granted of one device, in bytes. The sums are of what holders have.
type granted struct {
	sum     uint64
	tenants map[string]uint64
	holders map[*Holder]uint64 // none has 0
}

// New returns a Book in which nothing is granted. Without driver truth devices is nil: nobody knows how much there is, and nothing is
// refused for what others have.
func New(limits Limits, devices []Device) *Book {
	b := (&Book{limits: limits}).empty()
	if devices == nil {
		return b
	}
	b.devices = make(map[string]Device)
	for _, d := range devices {
		b.devices[d.UUID] = d
	}
	return b
}

// empty is a Book of its own, of the same devices and limits, in which nothing is granted.
func (b *Book) empty() *Book {
	return &Book{
		limits: b.limits, devices: b.devices,
		granted: make(map[string]*granted), sessions: make(map[*Holder][]api.Quota), promised: make(map[*Holder]map[string]uint64),
	}
}

// device is nil for one that driver truth does not know.
func (b *Book) device(uuid string) *Device {
	if d, ok := b.devices[uuid]; ok {
		return &d
	}
	return nil
}

// set what a holder has. Called with mu held.
func (b *Book) set(uuid string, h *Holder, bytes uint64) {
	g := b.granted[uuid]
	if g == nil {
		if bytes == 0 {
			return
		}
		g = &granted{tenants: make(map[string]uint64), holders: make(map[*Holder]uint64)}
		b.granted[uuid] = g
	}
	// Without driver truth a size may be any process's claim. Sums that overflow come back when it is taken off again.
	change := bytes - g.holders[h]
	g.sum += change
	if h.Bounded() {
		if g.tenants[h.Tenant] += change; g.tenants[h.Tenant] == 0 {
			delete(g.tenants, h.Tenant)
		}
	}
	if g.holders[h] = bytes; bytes == 0 {
		delete(g.holders, h)
	}
}

// Begin is Admit for a holder that the book does not know, within its user's limit unless that is nil. quotas are what it asks
// for.
func (b *Book) Begin(h *Holder, wants map[string]uint64, quotas []api.Quota, limit *User) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if limit != nil {
		if err := b.withinUser(h, wants, quotas, limit); err != nil {
			return err
		}
	}
	if _, err := b.admit(h, wants); err != nil {
		return err
	}
	b.note(h, quotas)
	return nil
}

// Admit grants a holder what it wants, in bytes by device: on all of them, or on none and says why (an *api.Error). What it has
// beyond that it keeps: who lowers a quota calls Set when the lower one is in force. undo puts back what it had on these devices, for
// who could not use what was granted.
func (b *Book) Admit(h *Holder, wants map[string]uint64) (undo func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	had, err := b.admit(h, wants)
	if err != nil {
		return nil, err
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for uuid, bytes := range had {
			b.set(uuid, h, bytes)
		}
	}, nil
}

// admit returns what the holder had before. Called with mu held.
func (b *Book) admit(h *Holder, wants map[string]uint64) (had map[string]uint64, err error) {
	for _, uuid := range slices.Sorted(maps.Keys(wants)) { // so that the same request is refused for the same reason
		if err := b.limits.Check(b.ask(h, uuid, wants[uuid])); err != nil {
			return nil, err
		}
	}
	had = make(map[string]uint64)
	for uuid, bytes := range wants {
		had[uuid] = b.on(uuid).holders[h]
		if bytes > had[uuid] {
			b.set(uuid, h, bytes)
		}
	}
	return had, nil
}

// Note says what a holder asks for by now: without driver truth that is what counts for its user.
func (b *Book) Note(h *Holder, quotas []api.Quota) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note(h, quotas)
}

// note is called with mu held.
func (b *Book) note(h *Holder, quotas []api.Quota) {
	if h.UID != nil {
		b.sessions[h] = quotas
	}
}

// Set notes what a holder has from now on, in bytes by device, and nothing on any other. It refuses nothing: what is so is
// noted.
func (b *Book) Set(h *Holder, has map[string]uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setAll(h, has)
}

// setAll is called with mu held.
func (b *Book) setAll(h *Holder, has map[string]uint64) {
	for uuid := range b.granted {
		if _, keeps := has[uuid]; !keeps {
			b.set(uuid, h, 0)
		}
	}
	for uuid, bytes := range has {
		b.set(uuid, h, bytes)
	}
}

// Drop forgets a holder. A session counts for its user until then, also if nothing is granted to it any more.
func (b *Book) Drop(h *Holder) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setAll(h, nil)
	delete(b.sessions, h)
	delete(b.promised, h)
}

// Promise notes that a holder wants so much now and then, in bytes by device, or says why it could never have that: alone on the host, within
// its user's limit unless that is nil; or with what others were promised, of which there may be overcommit thousandths of a device.
func (b *Book) Promise(h *Holder, wants map[string]uint64, overcommit uint64, limit *User) error {
	if err := b.empty().Begin(h, wants, nil, limit); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, uuid := range slices.Sorted(maps.Keys(wants)) {
		if err := refusal.CheckPromise(b.ask(h, uuid, wants[uuid]), overcommit, b.promisedOn(uuid)-b.promised[h][uuid]); err != nil {
			return err
		}
	}
	b.promised[h] = wants
	return nil
}

// promisedOn is what was promised of a device. Called with mu held.
func (b *Book) promisedOn(uuid string) (sum uint64) {
	for _, has := range b.promised {
		sum += has[uuid]
	}
	return sum
}

// Promised is what was promised of a device to elastic holders, at one moment.
func (b *Book) Promised(uuid string, overcommit uint64) (shown api.ElasticDevice) {
	d := b.device(uuid)
	if d == nil {
		return shown
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	shown.Promised, shown.Most = b.promisedOn(uuid), b.limits.Capacity(d.Total)
	capacity := refusal.Promisable(d.Total, overcommit)
	shown.Free = capacity - min(capacity, shown.Promised)
	for h, has := range b.promised {
		note(&shown.Pools, h, has[uuid])
	}
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

// NotePromise notes what was promised by a former enforcer.
func (b *Book) NotePromise(h *Holder, wants map[string]uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.promised[h] = wants
}

// Has is what a holder was granted, by device.
func (b *Book) Has(h *Holder) map[string]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	has := make(map[string]uint64)
	for uuid, g := range b.granted {
		if bytes := g.holders[h]; bytes > 0 {
			has[uuid] = bytes
		}
	}
	return has
}

// Granted is what was granted of a device, at one moment.
type Granted struct {
	Bytes   uint64 // of all holders
	Holders int
	Pools   map[string]uint64 // bytes of the pools that are not elastic, by name
	Among   uint64            // bytes of the holders that the caller named
	Reserve uint64
	Free    *uint64 // nil if its size is not known
}

// Granted of a device, and among these holders.
func (b *Book) Granted(uuid string, among ...*Holder) Granted {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.on(uuid)
	shown := Granted{Bytes: g.sum, Holders: len(g.holders)}
	for h, bytes := range g.holders {
		if b.promised[h] == nil {
			note(&shown.Pools, h, bytes)
		}
	}
	for _, h := range among {
		shown.Among += g.holders[h]
	}
	if d := b.device(uuid); d != nil {
		capacity := b.limits.Capacity(d.Total)
		free := capacity - min(capacity, g.sum)
		shown.Reserve, shown.Free = min(b.limits.Reserve, d.Total), &free
	}
	return shown
}

// on is never nil. Called with mu held.
func (b *Book) on(uuid string) *granted {
	if g := b.granted[uuid]; g != nil {
		return g
	}
	return &nothing
}

var nothing granted

// ask is a request for bytes of a device by a holder. Called with mu held.
func (b *Book) ask(h *Holder, uuid string, bytes uint64) refusal.Ask {
	g := b.on(uuid)
	return refusal.Ask{
		Holder: h, UUID: uuid, Device: b.device(uuid), Bytes: bytes,
		Had: g.holders[h], Sum: g.sum, Tenant: g.tenants[h.Tenant], Holders: maps.All(g.holders),
	}
}

// withinUser says why a user may not have another session. Called with mu held.
func (b *Book) withinUser(h *Holder, wants map[string]uint64, quotas []api.Quota, l *User) error {
	others := make(map[*Holder][]api.Quota)
	for other, asks := range b.sessions {
		if other != h && *other.UID == l.UID {
			others[other] = asks
		}
	}
	if err := l.CheckSessions(len(others)); err != nil {
		return err
	}
	if b.devices == nil {
		return l.CheckUnknown(h, quotas, maps.Values(others))
	}
	for _, uuid := range slices.Sorted(maps.Keys(wants)) {
		var used uint64
		for other := range others {
			used += b.on(uuid).holders[other]
		}
		if err := l.Check(b.ask(h, uuid, wants[uuid]), used); err != nil {
			return err
		}
	}
	return nil
}

// TenantBounds are the bytes that all slices of a tenant may be granted together, by device; none without a bound, nor without driver
// truth.
func (b *Book) TenantBounds(tenant string) map[string]uint64 {
	bounds := make(map[string]uint64)
	for uuid, d := range b.devices {
		if bound, known := refusal.BoundOn(b.limits.Tenant(tenant), &d); known {
			bounds[uuid] = bound
		}
	}
	return bounds
}

// CheckSize says why a slice may not ask for so much without driver truth, when its devices are not known before they are used.
func (b *Book) CheckSize(name string, quotas []api.Quota) error {
	if b.devices != nil {
		return nil
	}
	return b.limits.CheckSize(name, quotas)
}

// Over is more than may be granted: the configuration was changed, or a device. Nothing is taken away for that.
type Over struct {
	Device  string
	Tenant  *string // whose bound it is; nil if it is the device's capacity
	Granted uint64
	Limit   uint64
}

// Overcommitted is where more is granted than may be.
func (b *Book) Overcommitted() (all []Over) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, uuid := range slices.Sorted(maps.Keys(b.devices)) {
		d, g := b.device(uuid), b.on(uuid)
		if capacity := b.limits.Capacity(d.Total); g.sum > capacity {
			all = append(all, Over{Device: uuid, Granted: g.sum, Limit: capacity})
		}
		for _, name := range slices.Sorted(maps.Keys(g.tenants)) {
			if bound, known := refusal.BoundOn(b.limits.Tenant(name), d); known && g.tenants[name] > bound {
				all = append(all, Over{Device: uuid, Tenant: &name, Granted: g.tenants[name], Limit: bound})
			}
		}
	}
	return all
}

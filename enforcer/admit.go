// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
)

// newHolder is to whom what a slice gets is granted.
func newHolder(r *api.RegisterRequest) *admission.Holder {
	h := &admission.Holder{Name: cmp.Or(r.Container, r.ID), Tenant: r.Tenant}
	const short, full = 12, 64 // of an id that an engine made up, as engines show it
	if len(h.Name) == full {
		h.Name = h.Name[:short]
	}
	switch uid := r.UID; {
	case r.For != nil:
		uid = r.For.UID
		fallthrough
	case r.Session:
		h.UID = &uid
	}
	return h
}

// bookDevices are the devices that driver truth knows; nil without it.
func (t *driverTruth) bookDevices() []admission.Device {
	if t == nil {
		return nil
	}
	devices := []admission.Device{}
	for _, g := range t.devices {
		devices = append(devices, admission.Device{UUID: g.UUID, Shown: g.called(g.UUID), Total: g.Total})
	}
	return devices
}

// showGranted fills in what was granted of a device, and of that what idle holders have.
func (e *Enforcer) showGranted(d *api.Device, idle []*admission.Holder) {
	g := e.book.Granted(d.UUID, idle...)
	d.Quotas, d.Slices, d.Pools, d.Reserve, d.Free = g.Bytes, g.Holders, g.Pools, g.Reserve, g.Free
	if e.movesElastic() && e.gpuOf(d.UUID) != nil {
		promised := e.book.Promised(d.UUID)
		promised.Idle, d.Elastic = g.Among, &promised
	}
}

// TenantBounds are the bytes that all slices of a tenant may be granted together, by device.
func (e *Enforcer) TenantBounds(tenant string) map[string]uint64 { return e.book.TenantBounds(tenant) }

// called is a device as people know it: by its index as nvidia-smi counts, and its UUID. g may be nil.
func (g *gpu) called(uuid string) string {
	if g == nil || g.Index < 0 {
		return uuid
	}
	return strconv.Itoa(g.Index) + " (" + uuid + ")"
}

// gpuOf is a device by its UUID; nil without driver truth.
func (e *Enforcer) gpuOf(uuid string) *gpu {
	if e.truth == nil {
		return nil
	}
	for _, g := range e.truth.devices {
		if g.UUID == uuid {
			return g
		}
	}
	return nil
}

// commitment is what a slice is given of each device while it can charge: its quota, or the whole device if that is less (a
// quota on all devices may be larger than one of them). That its processes hold less, or that some are checkpointed, changes
// nothing. One that is suspended is given what it has left there until it is resumed. Called with mu held, or before anybody knows the slice.
func (s *slice) commitment() map[string]uint64 {
	switch {
	case !s.counts():
		return make(map[string]uint64)
	case s.isAway():
		return s.left()
	}
	return s.quota.Commitment()
}

// recommit notes what the slice is given by the quotas that are in force now. Where less than it uses, it has what it uses, and
// less as that becomes less, which the regular check finds, as it does of what one that is away has left: it can get no more of it, and who
// were given it would find the device full. Called with mu held.
func (s *slice) recommit() {
	has := s.commitment()
	left := s.isAway() && len(s.left()) > 0
	s.lowered = s.quota.AtLeastUsed(has, s.e.book.Has(s.holder)) || left
	s.e.book.Set(s.holder, has)
	for _, p := range s.pools {
		p.follow(s)
	}
}

// counts says whether the slice's quotas are given to itself: one that nothing is refused to is promised nothing, and
// those of a pool's members are parts of the pool's.
func (s *slice) counts() bool { return !s.record() && len(s.pools) == 0 }

// admitDevice grants the slice a device that it was not known to use. undo takes that back. Called with mu held.
func (s *slice) admitDevice(uuid string, bytes uint64) (undo func(), err error) {
	if !s.counts() || s.isAway() {
		return func() {}, nil
	}
	return s.e.book.Admit(s.holder, map[string]uint64{uuid: bytes})
}

// remainder is what a released slice still counts for, until it is cleared away: what those who are alive held when it was closed.
// It can become no more, and by how much it becomes less nobody checks any more; whoever got those bytes would find the device
// full. A slice that holds nothing gets nothing, and counts for nothing. What its page says can be a process's own
// word, and memory that a dead process lent is another's by now: the driver is asked. If it does not say, or if the page is damaged, all
// that the slice was given counts. Called in the slice's turn; was is the state that it had.
func (s *slice) remainder(was api.State) map[string]uint64 {
	ask := s.counts() && s.e.truth != nil && s.lingers()
	s.mu.Lock()
	has, devices := s.commitment(), s.quota.Devices
	used := make([]uint64, len(devices))
	for i := range devices {
		used[i] = s.quota.Used(i)
	}
	none := s.quota.Ledger == nil && (!ask || s.request.Session)
	s.mu.Unlock()
	for uuid, bytes := range s.e.book.Has(s.holder) {
		has[uuid] = max(has[uuid], bytes)
	}
	switch {
	case was == api.Damaged, none:
		return has
	case !ask:
		for i, d := range devices {
			has[d.Name] = min(has[d.Name], used[i])
		}
		return has
	}
	holders, err := s.holders() // first: what the last of them lent, if he ends meanwhile, is another's when the driver is asked
	for i, d := range devices {
		var held uint64
		if err == nil {
			held, err = s.stillOn(i, d, holders)
		}
		if err == nil {
			has[d.Name] = min(has[d.Name], held)
			continue
		}
		s.log.Warn("it is not known what the slice's processes hold: all that it was given counts", "device", d.Name, "err", err)
		if errors.Is(err, errUntold) {
			err = nil // of the others it may be
		}
	}
	return has
}

// holders are the living processes that may hold what a slice that ends was given, each with its lanes. Called in the slice's turn.
func (s *slice) holders() (map[int][]uint32, error) {
	all := make(map[int][]uint32)
	if !s.request.Session {
		pids, err := cgroup.PIDs(s.cgroup)
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			all[pid] = nil
		}
	}
	var left map[uint32]ledger.Owner // lanes that nobody has taken up: finish
	s.mu.Lock()
	for _, p := range s.remaining.All() {
		all[p.PID] = nil
	}
	for _, f := range s.found {
		for pid := range f.processes {
			all[pid] = nil
		}
	}
	for l := range s.quota.Lanes() {
		if l.Process.Alive() {
			all[l.Process.PID] = append(all[l.Process.PID], l.Number)
		}
	}
	if s.quota.Ledger != nil && s.quota.Count() == 0 {
		left = s.quota.Owners()
	}
	s.mu.Unlock()
	for number, owner := range left {
		if p, err := process.Again(owner.PID, owner.Start); err == nil {
			all[p.PID] = append(all[p.PID], number)
			p.Close()
		}
	}
	return all, nil
}

// stillOn is what they hold on a device: each what the driver says, or its lanes if that is more. Who is checkpointed holds nothing,
// and gets nothing back. Called in the slice's turn.
func (s *slice) stillOn(index int, d *quota.Device, holders map[int][]uint32) (bytes uint64, err error) {
	g := s.e.truth.device(d.UUID)
	if g == nil || !s.e.tells(d.UUID) {
		return 0, errUntold
	}
	truth, err := s.e.truth.processes(g, patienceOfRelease)
	if err != nil {
		s.e.failing(g, err)
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.quota.Ledger != nil && index < s.quota.Ledger.DeviceCount()
	var past uint64 // the ledger
	for pid, lanes := range holders {
		var charged uint64
		for _, number := range lanes {
			if known && !d.Lends(number) && !s.quota.IsAway(number) {
				charged += s.quota.Ledger.Held(index, number)
			}
		}
		if truth[pid] == driver.Unknown {
			return 0, errUntold
		}
		bytes += max(charged, truth[pid])
		past += truth[pid] - min(charged, truth[pid])
	}
	if known && s.noted(d).sampled.IsZero() && s.request.Session { // who held it was not noted by the enforcer before this one
		held := s.quota.Ledger.Held(index, 0)
		bytes += held - min(held, past)
	}
	return bytes, nil
}

// admitSlice is for one that is about to be made, within its user's limit unless that is nil. Those whose end was not noticed yet
// are not in its way. Called in its turn, before it is registered.
func (e *Enforcer) admitSlice(s *slice, limit *admission.User) error {
	s.quota.Devices = s.foresee()
	if limit != nil && e.truth != nil && len(s.quota.Devices) == 0 {
		return api.Errorf(api.CodeBadRequest, "session %s has a quota on no device that is there, or on more than a slice can have", s.id())
	}
	if err := s.roomForContexts(s.quota.Devices); err != nil {
		return err
	}
	if s.request.Elastic && s.counts() {
		if err := s.promise(limit); err != nil {
			return err
		}
	}
	ask := admission.Ask{Holder: s.holder, Bytes: s.commitment(), Quotas: s.quotas, User: limit}
	if e.book.Begin(ask) == nil {
		return nil
	}
	for _, other := range e.all() {
		// A cgroup is not read for each of thousands that are as alive as they seem.
		if limit != nil && other.isOf(limit.UID) || !process.Exists(other.request.PID) {
			e.ended(other)
		}
	}
	for _, other := range e.allReleased() {
		if !other.lingers() {
			e.clearReleased(other)
		}
	}
	err := e.book.Begin(ask)
	if err != nil {
		err = e.evictFor(err, want{Ask: ask})
		e.book.Drop(s.holder)
	}
	return err
}

// roomForContexts says on which of the devices a slice could run nothing. Called before anybody knows the slice, or in its turn.
func (s *slice) roomForContexts(devices []*quota.Device) error {
	if s.record() {
		return nil
	}
	return s.e.roomForContexts("slice "+s.id(), quota.Commitment(devices))
}

// roomForContexts refuses a quota in which nothing could run: one below what a context is known to cost. A process can show as high a cost as
// it likes, so that no more counts than the operator expects of a context.
func (e *Enforcer) roomForContexts(who string, wants map[string]uint64) error {
	for _, uuid := range slices.Sorted(maps.Keys(wants)) {
		g := e.gpuOf(uuid)
		if g == nil {
			continue
		}
		if cost := min(e.truth.learned(g), e.options.ContextBytes); wants[uuid] < cost {
			return api.Errorf(api.CodeBadRequest, "%s asks for %s on device %s, where a CUDA context alone takes %s: nothing could run in that; more is accepted",
				who, api.FormatSize(wants[uuid]), g.called(uuid), api.FormatSize(e.truth.learned(g)))
		}
	}
	return nil
}

// logOvercommitted says of which devices more is granted than may be.
func (e *Enforcer) logOvercommitted() {
	for _, over := range e.book.Overcommitted() {
		if over.Tenant != nil {
			e.log.Warn("device overcommitted to a tenant: its quotas add up to more than its bound; it is granted no new one there",
				"tenant", *over.Tenant, "device", over.Device, "bytes", over.Granted, "limit", over.Limit)
			continue
		}
		e.log.Warn("device overcommitted: quotas add up to more than its capacity; no new quota is granted on it",
			"device", over.Device, "bytes", over.Granted, "limit", over.Limit)
	}
}

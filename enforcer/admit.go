// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/devices"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// newHolder returns the holder to which the slice's quotas are granted.
func newHolder(r *api.RegisterRequest) *admission.Holder {
	h := &admission.Holder{Name: cmp.Or(r.Container, r.ID), Tenant: r.Tenant}
	const short, full = 12, 64 // digits of a generated container id, as engines show it and in full
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

// idleAfter is api.IdleAfter. Tests use a shorter time.
var idleAfter = func() time.Duration { return api.IdleAfter }

// showGranted fills in what is granted of a device.
func (e *Enforcer) showGranted(d *api.Device) {
	g := e.book.Granted(d.UUID)
	d.Quotas, d.Slices, d.Pools, d.Reserve, d.Free = g.Bytes, g.Holders, g.Pools, g.Reserve, g.Free
	if e.movesElastic() && e.gpuOf(d.UUID) != nil {
		promised := e.book.Promised(d.UUID)
		e.book.Do(func(a *core.Accounts) { promised.Idle = a.Idle(d.UUID, idleAfter()) })
		d.Elastic = &promised
	}
}

// TenantBounds returns the bytes that all slices of a tenant together may be granted, by device.
func (e *Enforcer) TenantBounds(tenant string) map[string]uint64 { return e.book.TenantBounds(tenant) }

// gpuOf returns a device by its UUID; nil without driver truth.
func (e *Enforcer) gpuOf(uuid string) *devices.Device { return e.truth.Of(uuid) }

// account returns the slice's record for admission. Called with mu held, or before the slice is registered.
func (s *slice) account() core.Record {
	r := s.rec
	r.Limits = s.quota.Limits()
	r.Kept = s.quota.Beyond()
	if s.isAway() {
		r.Left = s.left()
	}
	return r
}

// place notes in the record where the slice's memory is. Called before the slice is registered.
func (s *slice) place(to *store.Suspension) {
	switch s.suspension = to; {
	case to == nil:
		return
	case s.isAway():
		s.rec.Residence = core.Away
	default: // a move was interrupted, and the memory is brought back
		s.rec.Residence = core.Returning
	}
	s.rec.Manual = !to.Evicted
}

// recount has core count the restored slice by its ledger. Called in the slice's turn.
func (s *slice) recount() {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.account()
	s.rec.Kept, s.rec.Left = r.Kept, r.Left
	s.op = s.e.book.Set(s.holder, r)
}

// reportUse tells core what the slice's processes hold, if it counts more than the limits: bytes beyond a lowered quota, or left on a device by a
// suspended slice, stay granted until they are released, since others would find the device full. Called in the slice's turn.
func (s *slice) reportUse() {
	s.mu.Lock()
	used, beyond := s.holds(), s.beyond()
	s.mu.Unlock()
	if beyond {
		s.e.note(s, core.Used{Generation: s.generation, Op: s.op, Bytes: used})
	}
}

// beyond reports whether core counts more than the limits, and the ledger says what the processes hold. Called with mu held.
func (s *slice) beyond() bool {
	return len(s.rec.Kept)+len(s.rec.Left) > 0 && (s.quota.State == api.Active || s.quota.State == api.Expired)
}

// holds returns the bytes that the slice's processes hold on devices. Called with mu held.
func (s *slice) holds() core.Bytes {
	used := core.Bytes(s.quota.InUse())
	if s.isAway() {
		for uuid, n := range s.left() {
			used[uuid] = max(used[uuid], n)
		}
	}
	return used
}

// counts reports whether the slice has a grant of its own. In record mode nothing is promised, and a member's quotas are part of the pool's.
func (s *slice) counts() bool { return !s.record() && len(s.pools) == 0 }

func (s *slice) poolHolders() (pools []*admission.Holder) {
	for _, p := range s.pools {
		pools = append(pools, p.holder)
	}
	return pools
}

// remainder returns the bytes that stay granted to a released slice until it is cleared: those that its living processes held when it was closed. They
// are at most the bytes in has, cannot grow, and are not sampled. The driver's figure is read, since the page may have a process's false claim, and
// memory that an exited process lent may be another's by now. The whole grant stays if the driver does not know, or the page is damaged. was is the
// state before the release. Called in the slice's turn.
func (s *slice) remainder(was api.State, has core.Bytes) core.Bytes {
	ask := s.counts() && s.e.truth != nil && s.group.Lingers()
	s.mu.Lock()
	devices := s.quota.Devices
	used := make([]uint64, len(devices))
	for i := range devices {
		used[i] = s.quota.Used(i)
	}
	none := s.quota.Ledger == nil && (!ask || s.request.Session)
	s.mu.Unlock()
	switch {
	case was == api.Damaged, none:
		return has
	case !ask:
		for i, d := range devices {
			has[d.Name] = min(has[d.Name], used[i])
		}
		return has
	}
	holders, err := s.holders() // before the driver is queried: if the last holder exits in between, what it lent is another's
	for i, d := range devices {
		var held uint64
		if err == nil {
			held, err = s.stillOn(i, d, holders)
		}
		if err == nil {
			has[d.Name] = min(has[d.Name], held)
			continue
		}
		s.log.Warn("memory of the slice's processes unknown: its whole quota counts", "device", d.Name, "err", err)
		if errors.Is(err, driver.ErrUntold) {
			err = nil // the other devices may be known
		}
	}
	return has
}

// holders returns the living processes that may hold what an ending slice was granted, each with its lanes. Called in the slice's turn.
func (s *slice) holders() (map[int][]uint32, error) {
	all := make(map[int][]uint32)
	if !s.request.Session {
		pids, err := cgroup.PIDs(s.group.Cgroup)
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			all[pid] = nil
		}
	}
	var left map[uint32]ledger.Owner // lanes not taken up after a restart: finish
	s.mu.Lock()
	for _, p := range s.group.Remaining() {
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

// stillOn returns the holders' bytes on a device: for each the driver's figure, or its lanes if they hold more. A checkpointed process holds
// nothing, and gets nothing back. Called in the slice's turn.
func (s *slice) stillOn(index int, d *quota.Device, holders map[int][]uint32) (bytes uint64, err error) {
	g := s.e.truth.At(d.UUID)
	if g == nil || !s.e.tells(d.UUID) {
		return 0, driver.ErrUntold
	}
	truth, err := g.Processes(patienceOfRelease)
	if err != nil {
		s.e.failing(g, err)
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.quota.Ledger != nil && index < s.quota.Ledger.DeviceCount()
	var past uint64 // bytes beyond the lanes
	for pid, lanes := range holders {
		var charged uint64
		for _, number := range lanes {
			if known && !d.Lends(number) && !s.quota.IsAway(number) {
				charged += s.quota.Ledger.Held(index, number)
			}
		}
		if truth[pid] == driver.Unknown {
			return 0, driver.ErrUntold
		}
		bytes += max(charged, truth[pid])
		past += truth[pid] - min(charged, truth[pid])
	}
	if known && s.noted(d).sampled.IsZero() && s.request.Session { // only the former enforcer knew the holders of this excess
		held := s.quota.Ledger.Held(index, 0)
		bytes += held - min(held, past)
	}
	return bytes, nil
}

// admit has core register a new slice, within its user's limit unless that is nil. Slices that ended unnoticed are released if it needs their room.
// Called in its turn.
func (e *Enforcer) admit(s *slice, limit *admission.User) error {
	s.quota.Devices = s.foresee()
	if limit != nil && e.truth != nil && len(s.quota.Devices) == 0 {
		return api.Errorf(api.CodeBadRequest, "session %s has quotas only on missing devices, or on more devices than a slice can have", s.id())
	}
	if err := s.roomForContexts(s.quota.Devices); err != nil {
		return err
	}
	register := core.Register{Slice: s.account(), Holder: s.holder, User: limit, Grant: s.request.ByGrant, Stay: true}
	ask := func(client uint64) core.Command {
		register.Client = client
		return register
	}
	if err := e.ask(s, ask); !errors.Is(err, api.ErrQuotaExceeded) {
		return err
	}
	for _, other := range e.all() {
		// Reading the cgroups of thousands of living slices would take too long.
		if limit != nil && other.isOf(limit.UID) || !process.Exists(other.request.PID) {
			e.ended(other)
		}
	}
	for _, other := range e.allReleased() {
		if !other.group.Lingers() {
			e.clearReleased(other)
		}
	}
	register.Stay = false
	return e.command(s, ask)
}

// roomForContexts rejects a quota too small for a context. Called before the slice is registered, or in its turn.
func (s *slice) roomForContexts(devices []*quota.Device) error {
	if s.record() {
		return nil
	}
	return s.e.roomForContexts("slice "+s.id(), quota.Commitment(devices))
}

// roomForContexts rejects a quota below the known cost of a context. The cost counts up to ContextBytes only, since a process can make it appear
// higher.
func (e *Enforcer) roomForContexts(who string, wants map[string]uint64) error {
	for _, uuid := range slices.Sorted(maps.Keys(wants)) {
		g := e.gpuOf(uuid)
		if g == nil {
			continue
		}
		if _, learned := e.truth.Context(g); wants[uuid] < min(learned, e.options.ContextBytes) {
			return api.Errorf(api.CodeBadRequest, "%s asks for %s on device %s, where a CUDA context alone takes %s: ask for more",
				who, api.FormatSize(wants[uuid]), g.Called(uuid), api.FormatSize(learned))
		}
	}
	return nil
}

func (e *Enforcer) logOvercommitted() {
	for _, over := range e.book.Overcommitted() {
		if over.Tenant != nil {
			e.log.Warn("device overcommitted to a tenant: its quotas exceed its bound, and it gets no new quota there",
				"tenant", *over.Tenant, "device", over.Device, "bytes", over.Granted, "limit", over.Limit)
			continue
		}
		e.log.Warn("device overcommitted: quotas exceed its capacity, and no new quota is granted on it",
			"device", over.Device, "bytes", over.Granted, "limit", over.Limit)
	}
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// What the driver is told of slices, on the devices where it enforces (backend.go). The interceptor is there all the same:
// by it programs see their quota, and are refused before the driver is asked. The driver's limit is the same number, and
// is for whoever has gone around the interceptor. It stands on the slice's cgroup, so a session has none, and it goes
// with the cgroup: nothing of it is left when that is removed first.
//
// The store knows before the driver does that a cgroup may have limits (store.Slice.Native), so that an enforcer that
// does not enforce by the driver any more finds whose to take away.

// limitable says whether the driver can hold the slice to anything, and should.
func (s *slice) limitable() bool {
	return !s.request.Session && !s.record() && s.cgroup.V2 && s.e.native.backend != nil
}

// enforcesOn says whether the driver is to hold a slice to its quotas, on any device.
func (e *Enforcer) enforcesOn(s *slice) bool {
	for _, d := range e.native.devices {
		if d.why == "" && s.limitable() {
			return true
		}
	}
	return false
}

// byDriver says whether the driver holds the slice to its quota on a device. Called with mu held.
func (s *slice) byDriver(d *nativeDevice) bool {
	return d != nil && d.why == "" && s.limitable() && !s.unlimited[d.Raw]
}

// enforcementOn is who enforces the slice's quota on a device. Called with mu held.
func (s *slice) enforcementOn(raw [16]byte) api.Enforcement {
	if s.byDriver(s.e.native.devices[raw]) && !s.stale[raw] {
		return api.Native
	}
	return api.Intercept
}

// driverLimit is the bytes that the driver is to hold the slice to on a device; false if the slice has no quota there. It is what
// the page has, but for what is lent by checkpointed processes, whose memory the driver does not count; and the pool's for
// a member that has none of its own. Called with mu held.
func (s *slice) driverLimit(d *nativeDevice) (uint64, bool) {
	if i := s.find(d.Raw); i >= 0 {
		has := s.devices[i]
		if has.frozen {
			return 0, true
		}
		return min(has.shownLimit(), d.Total), true
	}
	bytes, ok := s.quota(d.Raw, d.Total) // it is not known to see the device, and may use it yet
	if ok && bytes == ledger.NoLimit {
		bytes = s.pool.quotaOn(d.Raw, d.Total)
	}
	return min(bytes, d.Total), ok
}

// quotaOn is the pool's quota on a device of total bytes; 0 if it has none there.
func (p *pool) quotaOn(raw [16]byte, total uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	bytes, _ := quotaOn(p.quotas, raw, total)
	return bytes
}

// setNative sets the driver's limits of the slice's cgroup; or takes them away, where a former enforcer has set them
// and this one sets none. It can be called again and again. What fails is told to failed, which says whether to go on. limitOn is
// called with mu held. Called in the slice's turn, since the driver must have what was decided last.
func (s *slice) setNative(limitOn func(*nativeDevice) (uint64, bool), failed func(*nativeDevice, error) error) error {
	n := &s.e.native
	if !s.mayBeLimited || n.backend == nil || len(n.devices) == 0 || !sameCgroup(s.cgroup) {
		return nil // nobody to ask, or the kernel has taken the limits away with the cgroup
	}
	var hangs error
	for _, g := range s.e.truth.devices {
		d := n.devices[g.Raw]
		s.mu.Lock()
		bytes, has := limitOn(d)
		mine, inherited := has && s.byDriver(d), s.inherited
		s.mu.Unlock()
		err := hangs // on one device, and then nothing more is asked
		switch {
		case !mine && !inherited:
			continue
		case err != nil:
		case mine:
			err = s.limitTo(d, bytes)
		default:
			err = n.ask(d, func(b Backend) error { return unlimit(b, s.cgroup.Dir(), d.UUID) })
		}
		if errors.Is(err, errHangs) {
			hangs = err
		}
		switch {
		case err == nil:
		case errors.Is(err, driver.ErrNoController) && s.e.options.Enforcement != api.Native:
			s.mu.Lock()
			if s.unlimited == nil {
				s.unlimited = make(map[[16]byte]bool)
			}
			s.unlimited[d.Raw] = true
			s.mu.Unlock()
			_ = s.sayNative(d, err)
		default:
			if err := failed(d, err); err != nil {
				return err
			}
		}
	}
	if hangs == nil {
		s.mu.Lock()
		s.inherited, s.mayBeLimited = false, s.e.enforcesOn(s) // then or now, on one device or another
		s.mu.Unlock()
	}
	return nil
}

// limitTo has the driver hold the slice's cgroup to a limit. Called in the slice's turn.
func (s *slice) limitTo(d *nativeDevice, bytes uint64) error {
	n := &s.e.native
	err := n.ask(d, func(b Backend) error { return limit(b, n.mount, s.cgroup.Dir(), d.UUID, bytes) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.stale[d.Raw] {
		delete(s.stale, d.Raw)
		s.log.Info("the driver's limit of the slice's cgroup is what it should be again", "device", d.UUID, "cgroup", s.cgroup.String())
	}
	return err
}

// startNative is for a slice that is stored and that nobody can use yet: it is not given if the driver does not hold it.
func (s *slice) startNative() error {
	err := s.setNative(s.driverLimit, func(d *nativeDevice, err error) error {
		refusal := api.Errorf(api.CodeInternal, "the driver does not hold slice %s to its quota on device %s: %v (enforcement = %q in the configuration does without it)", s.id(), d.called(d.UUID), err, api.Intercept)
		refusal.Device = d.UUID
		return refusal
	})
	killpoint.Pass("register.limited")
	return err
}

// followNative brings the driver's limits to what the slice's are now, unless it gets nothing any more. It is in use: its
// ledger counts, whatever the driver says. Called in the slice's turn.
func (s *slice) followNative() {
	s.mu.Lock()
	s.behind = false
	follows := s.state == api.Active || s.state == api.Damaged
	s.mu.Unlock()
	if follows {
		_ = s.setNative(s.driverLimit, s.sayNative)
	}
}

// followLater has keepNative do that soon: for who must not wait. Called with mu held.
func (s *slice) followLater() {
	s.behind = true
	select {
	case s.e.native.behind <- struct{}{}:
	default: // it is going to look
	}
}

// followNative is the like for the members of a pool that has another quota.
func (p *pool) followNative() {
	for _, s := range p.allMembers() {
		if s.turn.TryTake() {
			s.followNative()
			s.turn.Give()
			continue
		}
		s.mu.Lock()
		s.followLater()
		s.mu.Unlock()
	}
}

// denyNative lets the slice's processes have nothing more. Called in the slice's turn.
func (s *slice) denyNative() {
	_ = s.setNative(func(d *nativeDevice) (uint64, bool) {
		_, has := s.driverLimit(d)
		return 0, has
	}, s.sayNative)
}

// storeNative has the store know that a slice's cgroup may have limits of which its record says nothing. If it cannot, the slice gets
// none. Called in the slice's turn.
func (s *slice) storeNative(r store.Slice, write func() error) {
	if r.Native || !s.e.enforcesOn(s) {
		return
	}
	s.setLimited(true)
	if err := write(); err != nil {
		s.setLimited(false)
		s.log.Error("record not written: the driver does not enforce the slice's quota until gpusliced is restarted; the interceptor does", "err", err)
	}
}

// setLimited notes whether the driver may have limits of the slice's cgroup. Called in the slice's turn.
func (s *slice) setLimited(may bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mayBeLimited = may
}

// resumeNative tells the driver of a slice that a former enforcer has left, once the store knows. Called in the slice's turn.
func (s *slice) resumeNative(r store.Slice) {
	s.storeNative(r, s.put)
	s.mu.Lock()
	expired := s.state == api.Expired
	s.mu.Unlock()
	if expired {
		s.denyNative()
	}
	s.followNative()
}

// clearNative takes the driver's limits away before the cgroup goes. No other slice may have the cgroup. Called in the slice's turn.
func (s *slice) clearNative() {
	n := &s.e.native
	if !s.mayBeLimited || n.backend == nil || !sameCgroup(s.cgroup) {
		return
	}
	for _, d := range n.devices {
		err := n.ask(d, func(b Backend) error { return unlimit(b, s.cgroup.Dir(), d.UUID) })
		if err == nil {
			continue
		}
		_ = s.sayNative(d, err)
		if errors.Is(err, errHangs) {
			return
		}
	}
	killpoint.Pass("release.unlimited")
}

// sayNative is for an error that nothing is stopped by. It is said once, until the driver's limit is what it should be (keepNative).
func (s *slice) sayNative(d *nativeDevice, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, driver.ErrNoCgroup) || s.stale[d.Raw] {
		return nil // the cgroup has gone this moment, or it was said
	}
	if s.stale == nil {
		s.stale = make(map[[16]byte]bool)
	}
	s.stale[d.Raw] = true
	s.log.Error("the driver's limit of the slice's cgroup is not what it should be; the ledger's is", "device", d.UUID, "cgroup", s.cgroup.String(), "err", err)
	s.tell(api.Event{Kind: api.EventUnlimited, Device: d.UUID, Cause: err.Error()})
	return nil
}

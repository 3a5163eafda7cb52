// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/native"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// What the driver is to limit slices to, on the devices where it enforces (package native). The interceptor is there all the same:
// by it programs see their quota, and are refused before the driver is asked. The driver's limit is the same number, and
// is for whoever has gone around the interceptor. It stands on the slice's cgroup, so a session has none.
//
// The store knows before the driver does that a cgroup may have limits (store.Slice.Native), so that an enforcer that
// does not enforce by the driver any more finds whose to take away.

// openNative finds out on which devices the driver enforces. It fails if the configuration wants it on all devices and it does not on
// one.
func (e *Enforcer) openNative() (err error) {
	o := native.Options{
		Backend: e.options.Backend, Want: e.options.Enforcement,
		Interval: e.options.Interval, Recheck: e.options.IdleInterval,
		Log: e.log, Tell: e.tellUnlimited,
	}
	sum := sha256.Sum256([]byte(e.options.StateDir))
	o.Trial = fmt.Sprintf("gpuslice-probe-%x", sum[:6])
	var devices []native.Device
	if e.truth == nil {
		if o.Want == api.Native {
			return fmt.Errorf("enforcement = %q needs NVML: %s", api.Native, e.options.NoTruth)
		}
	} else {
		o.Mount, o.Why = e.nativeMount()
		for _, g := range e.truth.devices {
			devices = append(devices, native.Device{UUID: g.UUID, Shown: g.called(g.UUID), Total: g.Total, MIG: g.Parent != ""})
		}
	}
	e.native, err = native.Open(devices, o)
	return err
}

// nativeMount is where the cgroups are that the driver can limit, or why it is to limit none.
func (e *Enforcer) nativeMount() (mount, why string) {
	switch {
	case e.options.Enforcement == api.Intercept:
		return "", "the configuration says so"
	case e.options.Unprivileged:
		return "", "this enforcer serves sessions, which have no cgroup of their own"
	case e.options.Backend == nil:
		return "", "there is no NVML"
	}
	mount, alone := e.host.V2()
	if !alone {
		return "", "the driver's limits are for cgroups of version 2, and this host has cgroups of version 1 too"
	}
	return mount, ""
}

// tellUnlimited tells that the driver does not hold a slice's cgroup to its limit.
func (e *Enforcer) tellUnlimited(c cgroup.Path, device string, err error) {
	registered, released := e.ofCgroup(c)
	if of := slices.Concat(registered, released); len(of) > 0 {
		of[0].tell(api.Event{Kind: api.EventUnlimited, Device: device, Cause: err.Error()})
	}
}

// enforcesOn says whether the driver is to limit a slice, on any device.
func (e *Enforcer) enforcesOn(s *slice) bool {
	return !s.request.Session && !s.record() && s.cgroup.V2 && e.native.Anywhere()
}

// enforcementOn is who enforces the slice's quota on a device.
func (s *slice) enforcementOn(uuid string) api.Enforcement { return s.e.native.By(s.cgroup, uuid) }

// driverLimit is the bytes that the driver is to limit the slice to on a device; false if the slice has no quota there. It is what
// the page has, but for what is lent by checkpointed processes, whose memory the driver does not count; and the pool's for
// a member that has none of its own. Called with mu held.
func (s *slice) driverLimit(g *gpu) (uint64, bool) {
	if i := s.quota.Index(g.Raw); i >= 0 {
		has := s.quota.Devices[i]
		if has.Frozen {
			return 0, true
		}
		return min(s.limit(has), g.Total), true
	}
	bytes, ok := s.allowed(g.Raw, g.Total) // it is not known to see the device, and may use it yet
	if ok && bytes == ledger.NoLimit {
		bytes = s.poolOn(g.Raw).quotaOn(g.Raw, g.Total)
	}
	return min(bytes, g.Total), ok
}

// quotaOn is the pool's quota on a device of total bytes; 0 if it has none there.
func (p *pool) quotaOn(raw [16]byte, total uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	bytes, _ := quotaOn(p.quotas, raw, total)
	return bytes
}

// wantNative says what the driver is to limit the slice's cgroup to by now, unless it gets nothing any more. It waits for nothing: see
// reachNative. Called with mu held.
func (s *slice) wantNative() {
	switch {
	case s.isAway():
		s.limitNative(s.onlyLeft)
	case s.quota.State == api.Active || s.quota.State == api.Damaged:
		s.limitNative(s.driverLimit)
	}
}

// nothing is what the driver is to limit a slice to that gets nothing.
func (s *slice) nothing(g *gpu) (uint64, bool) {
	_, has := s.driverLimit(g)
	return 0, has
}

// onlyLeft is what the driver is to limit a slice to that is away. Called with mu held.
func (s *slice) onlyLeft(g *gpu) (uint64, bool) {
	_, has := s.driverLimit(g)
	return s.left()[g.UUID], has
}

// limitNative is called with mu held.
func (s *slice) limitNative(limitOn func(*gpu) (uint64, bool)) {
	if !s.mayBeLimited || s.e.truth == nil {
		return
	}
	limits := make(map[string]uint64)
	for _, g := range s.e.truth.devices {
		if bytes, has := limitOn(g); has && s.e.enforcesOn(s) {
			limits[g.UUID] = bytes
		}
	}
	s.e.native.Want(s.cgroup, limits)
}

func (s *slice) followNative() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wantNative()
}

// followNative is the like for the members of a pool that has another quota.
func (p *pool) followNative() {
	var cgroups []cgroup.Path
	for _, s := range p.allMembers() {
		s.followNative()
		cgroups = append(cgroups, s.cgroup)
	}
	p.e.reachNative(cgroups...)
}

// denyNative lets the slice's processes have nothing more. It waits for nothing either.
func (s *slice) denyNative() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limitNative(s.nothing)
}

// reachNative waits until the driver's limits are as wanted, or are known not to be: a slice that is in use goes on with its ledger,
// whatever the driver does.
func (e *Enforcer) reachNative(cgroups ...cgroup.Path) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, _ = e.native.Reach(ctx, cgroups...) // which is told as an event, and tried again
}

// startNative is for a slice that is stored and that nobody can use yet: it is not given if the driver does not limit it.
func (s *slice) startNative() error {
	s.followNative()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	device, err := s.e.native.Reach(ctx, s.cgroup)
	if err != nil {
		refusal := api.Errorf(api.CodeInternal, "the driver does not hold slice %s to its quota on device %s: %v (enforcement = %q in the configuration does without it)",
			s.id(), s.e.gpuOf(device).called(device), err, api.Intercept)
		refusal.Device = device
		return refusal
	}
	killpoint.Pass("register.limited")
	return nil
}

// storeNative has the store know that a slice's cgroup may have limits of which its record says nothing. If it cannot, the slice gets
// none. Called in the slice's turn.
func (s *slice) storeNative(r store.Slice, write func() error) {
	if r.Native {
		s.e.native.Inherit(s.cgroup)
		return
	}
	if !s.e.enforcesOn(s) {
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
	expired := s.quota.State == api.Expired
	s.mu.Unlock()
	if expired {
		s.denyNative()
	}
	s.followNative()
}

// clearNative takes the driver's limits away before the cgroup goes. No other slice may have the cgroup. Called in the slice's turn.
func (s *slice) clearNative() {
	if !s.mayBeLimited {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.e.native.Drop(ctx, s.cgroup)
	killpoint.Pass("release.unlimited")
}

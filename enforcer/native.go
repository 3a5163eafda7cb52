// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/devices"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/native"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// This file sets the driver's limits of slices, on the devices where the driver enforces (package native). Programs still see their quota by the
// interceptor, which refuses before the driver does. The driver's limit is the same number, for processes that bypass the interceptor. It applies to
// the slice's cgroup, so a session has none.
//
// That a cgroup may have limits is stored before the driver gets them (store.Slice.Native), so that a later enforcer without native enforcement finds
// the limits to remove.

// openNative finds the devices on which the driver enforces. It fails if the configuration requires all devices and one does not.
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
		for _, g := range e.truth.All() {
			devices = append(devices, native.Device{UUID: g.UUID, Shown: g.Called(g.UUID), Total: g.Total, MIG: g.Parent != ""})
		}
	}
	e.native, err = native.Open(devices, o)
	return err
}

// nativeMount returns the mount of the cgroups that the driver can limit, or why it is to limit none.
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

// tellUnlimited reports that the driver does not limit a slice's cgroup.
func (e *Enforcer) tellUnlimited(c cgroup.Path, device string, err error) {
	registered, released := e.ofCgroup(c)
	if of := slices.Concat(registered, released); len(of) > 0 {
		of[0].tell(api.Event{Kind: api.EventUnlimited, Device: device, Cause: err.Error()})
	}
}

// enforcesOn reports whether the driver is to limit the slice, on any device.
func (e *Enforcer) enforcesOn(s *slice) bool {
	return !s.request.Session && !s.record() && s.group.Cgroup.V2 && e.native.Anywhere()
}

func (s *slice) enforcementOn(uuid string) api.Enforcement {
	return s.e.native.By(s.group.Cgroup, uuid)
}

// driverLimit returns the bytes to which the driver is to limit the slice on a device; false if the slice has no quota there. It is the page's limit
// without what checkpointed processes lend, as the driver does not count their memory; for a member without a quota of its own, the pool's. Called
// with mu held.
func (s *slice) driverLimit(g *devices.Device) (uint64, bool) {
	if i := s.quota.Index(g.Raw); i >= 0 {
		has := s.quota.Devices[i]
		if has.Frozen {
			return 0, true
		}
		return min(s.limit(has), g.Total), true
	}
	bytes, ok := s.allowed(g.Raw, g.Total) // the slice is not known to see the device, and may use it all the same
	if ok && bytes == ledger.NoLimit {
		bytes = s.poolOn(g.Raw).quotaOn(g.Raw, g.Total)
	}
	return min(bytes, g.Total), ok
}

// quotaOn returns the pool's quota on a device of total bytes; 0 if it has none there.
func (p *pool) quotaOn(raw [16]byte, total uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	bytes, _ := quotaOn(p.quotas, raw, total)
	return bytes
}

// wantNative sets what the driver is to limit the slice's cgroup to, unless the slice has ended. It does not wait: see reachNative. Called with mu
// held.
func (s *slice) wantNative() {
	switch {
	case s.isAway():
		s.limitNative(s.onlyLeft)
	case s.quota.State == api.Active || s.quota.State == api.Damaged:
		s.limitNative(s.driverLimit)
	}
}

// nothing is the limit of a slice that gets no memory any more.
func (s *slice) nothing(g *devices.Device) (uint64, bool) {
	_, has := s.driverLimit(g)
	return 0, has
}

// onlyLeft is the limit of a suspended slice. Called with mu held.
func (s *slice) onlyLeft(g *devices.Device) (uint64, bool) {
	_, has := s.driverLimit(g)
	return s.left()[g.UUID], has
}

// limitNative sets the wanted limits of the slice's cgroup. Called with mu held.
func (s *slice) limitNative(limitOn func(*devices.Device) (uint64, bool)) {
	if !s.mayBeLimited || s.e.truth == nil {
		return
	}
	limits := make(map[string]uint64)
	for _, g := range s.e.truth.All() {
		if bytes, has := limitOn(g); has && s.e.enforcesOn(s) {
			limits[g.UUID] = bytes
		}
	}
	s.e.native.Want(s.group.Cgroup, limits)
}

func (s *slice) followNative() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wantNative()
}

// followNative does the same for all members, after a change of the pool's quotas.
func (p *pool) followNative() {
	var cgroups []cgroup.Path
	for _, s := range p.allMembers() {
		s.followNative()
		cgroups = append(cgroups, s.group.Cgroup)
	}
	p.e.reachNative(cgroups...)
}

// denyNative limits the slice's processes to nothing. It does not wait, either.
func (s *slice) denyNative() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limitNative(s.nothing)
}

// reachNative waits until the driver's limits are as wanted, or have failed: a slice in use continues with its ledger in any case.
func (e *Enforcer) reachNative(cgroups ...cgroup.Path) {
	ctx, cancel := context.WithTimeout(context.Background(), devices.Timeout)
	defer cancel()
	_, _ = e.native.Reach(ctx, cgroups...) // a failure is reported as an event, and retried
}

// startNative sets the limits of a stored slice that is not in use yet. Without them its registration fails.
func (s *slice) startNative() error {
	s.followNative()
	ctx, cancel := context.WithTimeout(context.Background(), devices.Timeout)
	defer cancel()
	device, err := s.e.native.Reach(ctx, s.group.Cgroup)
	if err != nil {
		refusal := api.Errorf(api.CodeInternal, "the driver does not hold slice %s to its quota on device %s: %v (enforcement = %q in the configuration does without it)",
			s.id(), s.e.gpuOf(device).Called(device), err, api.Intercept)
		refusal.Device = device
		return refusal
	}
	killpoint.Pass("register.limited")
	return nil
}

// storeNative stores that a slice's cgroup may have limits, if its record lacks that. If it cannot, the slice gets none. Called in the slice's turn.
func (s *slice) storeNative(r store.Slice, write func() error) {
	if r.Native {
		s.e.native.Inherit(s.group.Cgroup)
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

// setLimited sets whether the driver may have limits of the slice's cgroup. Called in the slice's turn.
func (s *slice) setLimited(may bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mayBeLimited = may
}

// resumeNative stores, then sets, the limits of a slice of a former enforcer. Called in the slice's turn.
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

// clearNative removes the driver's limits, while the cgroup exists. No other slice may have the cgroup. Called in the slice's turn.
func (s *slice) clearNative() {
	if !s.mayBeLimited {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), devices.Timeout)
	defer cancel()
	s.e.native.Drop(ctx, s.group.Cgroup)
	killpoint.Pass("release.unlimited")
}

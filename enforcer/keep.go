// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// The driver is kept to what it was told (native.go). It may fail to take a limit; and one that is reset or loaded anew has lost those
// that it had, and tells nobody. So what it did not take it is told again at each look until it does, and each few looks it is asked
// whether it has what it took. That has a goroutine of its own, and no lock while it waits for an answer: a driver that hangs keeps neither
// the regular look nor a slice waiting.

const (
	// looksAtLimits is at how many looks the driver is asked once what it has: that is a question for each slice and device.
	looksAtLimits = 8
	// roundedBy is by how many bytes a limit may be more than what was set, with a driver that rounds it.
	roundedBy = 2 << 20
)

var errLimitLost = errors.New("the driver has not the limit any more that was set, as after a reset")

// enforcesAnywhere says whether the driver is to enforce on any device.
func (e *Enforcer) enforcesAnywhere() bool {
	for _, d := range e.native.devices {
		if d.why == "" {
			return true
		}
	}
	return false
}

// keepNative keeps the driver to what it was told, until ctx ends.
func (e *Enforcer) keepNative(ctx context.Context) {
	ticker := time.NewTicker(e.options.Interval)
	defer ticker.Stop()
	for look := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-e.native.behind:
			e.followBehind()
			continue
		case <-ticker.C:
			look++
			e.followBehind() // those that had another turn
		}
		hangs := make(map[*nativeDevice]bool) // and is not asked again at this look
		for _, s := range e.all() {
			for _, l := range s.limits() {
				if ctx.Err() == nil && !hangs[l.device] && (l.stale || look%looksAtLimits == 0) {
					hangs[l.device] = s.keep(l)
				}
			}
		}
	}
}

// followBehind tells the driver of the slices that have other limits than it was told.
func (e *Enforcer) followBehind() {
	for _, s := range e.all() {
		s.mu.Lock()
		behind := s.behind
		s.mu.Unlock()
		if behind && s.turn.TryTake() {
			s.followNative()
			s.turn.Give()
		}
	}
}

// nativeLimit is what the driver is to hold a slice to on a device.
type nativeLimit struct {
	device *nativeDevice
	bytes  uint64
	stale  bool
}

// limits are none for a slice that was released: its cgroup may be another's by now.
func (s *slice) limits() (all []nativeLimit) {
	if s.request.Session || !sameCgroup(s.cgroup) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state {
	case api.Active, api.Damaged, api.Expired:
	default:
		return nil
	}
	if !s.mayBeLimited {
		return nil
	}
	for _, g := range s.e.truth.devices {
		d := s.e.native.devices[g.Raw]
		bytes, has := s.driverLimit(d)
		if s.state == api.Expired {
			bytes = 0
		}
		if has && s.byDriver(d) {
			all = append(all, nativeLimit{d, bytes, s.stale[d.Raw]})
		}
	}
	return all
}

// keep asks the driver what limit it has, and tells it again if it should have another; hangs says that it does not answer.
func (s *slice) keep(l nativeLimit) (hangs bool) {
	has, err := ask(l.device.slot, patienceOfBackend, func() (uint64, error) {
		return s.e.native.backend.Limited(s.cgroup.Dir(), l.device.UUID)
	})
	lost := err == nil && has > l.bytes+roundedBy
	if errors.Is(err, errHangs) {
		return true
	}
	if !lost && !l.stale {
		return false
	}
	if !s.turn.TryTake() { // at the next look
		return false
	}
	defer s.turn.Give()
	if !slices.Contains(s.limits(), l) { // it was told another one meanwhile
		return false
	}
	if lost {
		_ = s.sayNative(l.device, errLimitLost)
	}
	if err = s.limitTo(l.device, l.bytes); err != nil {
		_ = s.sayNative(l.device, err)
	}
	return errors.Is(err, errHangs)
}

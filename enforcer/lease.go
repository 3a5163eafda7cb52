// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/quota"
)

// This file ends slices at their deadlines. A deadline is a time since boot (CLOCK_BOOTTIME), so setting the wall clock moves none. It is stored, and
// valid until the next boot, as the slice is.
//
// A slice expires in steps, and the enforcer may be killed after each: expiry is stored; charges are closed; processes get SIGTERM; its time is
// stored; after the grace the remaining ones get SIGKILL; the slice is released, as any without processes. The next enforcer continues after the last
// stored step.

// DefaultGrace is the time from SIGTERM to SIGKILL.
const DefaultGrace = 10 * time.Second

// maxSleep is the time until the clock is read again, since a sleep does not count the host's suspension.
const maxSleep = time.Second

func sinceBoot() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // fails only on kernels without this clock, before 2.6.39
	return time.Duration(t.Nano())
}

// checkTime wakes keepTime, since a deadline may be earlier than before.
func (e *Enforcer) checkTime() {
	select {
	case e.timeChanged <- struct{}{}:
	default: // a check is due already
	}
}

// keepTime tells core the time at each deadline, and each second, until ctx ends.
func (e *Enforcer) keepTime(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.timeChanged:
		case <-timer.C:
		}
		var next time.Duration
		e.consult(nil, func(a *core.Accounts) {
			a.Note(core.Tick{Now: e.now()})
			next = a.Due(maxSleep)
		})
		timer.Reset(next)
	}
}

// end signals the processes of an expired slice, which takes longer than a turn may.
func (e *Enforcer) end(s *slice, kill bool) {
	if kill {
		e.endByForce(s)
		return
	}
	s.group.Terminate(e.options.Grace)
	killpoint.Pass("expire.asked")
	if e.waitFor(s) {
		defer s.turn.Give()
		e.note(s, core.Signalled{Generation: s.generation})
		killpoint.Pass("expire.noted")
	}
}

// endByForce kills the slice's processes until none is left, and then releases it. It returns then, or when the enforcer stops.
func (e *Enforcer) endByForce(s *slice) {
	s.group.Kill(func(wait time.Duration) bool {
		e.ended(s) // unless noticed already
		select {
		case <-e.stopping:
			return false
		case <-time.After(wait):
			return e.find(s.id()) == s
		}
	})
}

// put stores the slice's record, unless the slice is gone. Called in the slice's turn.
func (s *slice) put() error {
	s.mu.Lock()
	gone := s.quota.State == api.Released || s.quota.State == quota.Left
	s.mu.Unlock()
	if gone {
		return nil
	}
	return s.e.store.PutSlice(s.storedNow())
}

// showLease fills in the slice's time to live. Called with mu held.
func (s *slice) showLease(shown *api.Slice) {
	shown.TTL = s.rec.TTL
	if s.rec.Deadline == 0 {
		return
	}
	remaining := s.rec.Deadline - s.e.now()
	at := time.Now().UTC().Add(remaining).Round(time.Second)
	shown.Expires, shown.Remaining = &at, max(remaining, 0)
}

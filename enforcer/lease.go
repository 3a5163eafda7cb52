// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"context"
	"sync"
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

// timeIsOver reports whether the slice's deadline has passed, or it is ended before. Called with mu held.
func (s *slice) timeIsOver() bool {
	return s.overstayed != "" || s.rec.Deadline != 0 && s.e.now() >= s.rec.Deadline
}

// checkLeases wakes keepTime, since a deadline may be earlier than before.
func (e *Enforcer) checkLeases() {
	select {
	case e.leases <- struct{}{}:
	default: // a check is due already
	}
}

// keepTime ends slices at their deadlines, until ctx ends.
func (e *Enforcer) keepTime(ctx context.Context) {
	var ending sync.WaitGroup
	defer ending.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.leases:
		case <-timer.C:
		}
		next := time.Duration(0)
		for _, s := range e.all() {
			left, due := s.due()
			if due {
				ending.Go(func() { e.end(ctx, s) })
			} else if left > 0 && (next == 0 || left < next) {
				next = left
			}
		}
		if next > 0 {
			timer.Reset(min(next, maxSleep))
		} else {
			timer.Stop()
		}
	}
}

// due reports whether the slice is to be ended now, and marks it as ending; if not, it returns the time that is left, 0 for no deadline.
func (s *slice) due() (left time.Duration, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ending:
		return 0, false
	case s.timeIsOver():
		s.ending = true
		return 0, true
	case s.rec.Deadline == 0:
		return 0, false
	}
	return s.rec.Deadline - s.e.now(), false
}

// end takes an expired slice through these steps.
func (e *Enforcer) end(ctx context.Context, s *slice) {
	if !e.expire(s) {
		// The slice was renewed in between, or released.
		s.mu.Lock()
		s.ending = false
		s.mu.Unlock()
		e.checkLeases()
		return
	}
	asked := e.askToEnd(s)
	for e.now() < asked+e.options.Grace {
		if !e.sleep(ctx, s, min(asked+e.options.Grace-e.now(), maxSleep)) {
			return
		}
	}
	e.endByForce(ctx, s)
}

// askToEnd sends SIGTERM to the slice's processes, and returns when they have had it.
func (e *Enforcer) askToEnd(s *slice) time.Duration {
	asked := func() time.Duration {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.rec.Asked
	}
	if asked() != 0 { // by a former enforcer
		return asked()
	}
	s.group.Terminate(e.options.Grace)
	killpoint.Pass("expire.asked")
	if e.waitFor(s) {
		defer s.turn.Give()
		e.note(s, core.Signalled{Generation: s.generation})
		killpoint.Pass("expire.noted")
	}
	return cmp.Or(asked(), e.now())
}

// sleep waits, and reports whether the slice is still registered and ctx has not ended.
func (e *Enforcer) sleep(ctx context.Context, s *slice, time_ time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time_):
		return e.find(s.id()) == s
	}
}

// endByForce kills the slice's processes until none is left, and then releases it. It returns then, or when ctx ends.
func (e *Enforcer) endByForce(ctx context.Context, s *slice) {
	s.group.Kill(func(wait time.Duration) bool {
		e.ended(s) // unless noticed already
		return e.sleep(ctx, s, wait)
	})
}

// expire has core close an expired slice. It returns false if the deadline has not passed, or the slice is gone.
func (e *Enforcer) expire(s *slice) bool {
	if !e.waitFor(s) {
		return false
	}
	defer s.turn.Give()
	e.consult(s, func(a *core.Accounts) { a.CheckTime(s.generation) })
	e.work(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Phase == core.Expiring
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

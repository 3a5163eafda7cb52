// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
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

// until returns the deadline of a slice with this time to live from now.
func (e *Enforcer) until(ttl time.Duration) time.Duration {
	if ttl == 0 {
		return 0
	}
	return e.now() + ttl
}

// timeIsOver reports whether the slice's deadline has passed. Called with mu held.
func (s *slice) timeIsOver() bool { return s.deadline != 0 && s.e.now() >= s.deadline }

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
	if s.deadline == 0 || s.ending {
		return 0, false
	}
	if s.timeIsOver() {
		s.ending = true
		return 0, true
	}
	return s.deadline - s.e.now(), false
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

// expire closes an expired slice to charges. It returns false if the deadline has not passed, or the slice is gone.
func (e *Enforcer) expire(s *slice) bool {
	if !e.waitFor(s) {
		return false
	}
	defer s.turn.Give()
	s.mu.Lock()
	over, before := s.timeIsOver(), s.expired
	s.expired = before || over
	s.mu.Unlock()
	if !over || before { // before: set by a former enforcer
		return over
	}
	if err := s.put(); err != nil {
		s.log.Error("expiry not stored: the next enforcer expires the slice again", "err", err)
	}
	killpoint.Pass("expire.marked")
	s.log.Info("slice expired: charges closed, SIGTERM sent", "ttl", s.ttl, "grace", e.options.Grace)
	s.mu.Lock()
	told := s.overstayed != ""
	s.mu.Unlock()
	if !told {
		s.tell(api.Event{Kind: api.EventExpired, TTL: s.ttl})
	}
	s.mu.Lock()
	active := s.quota.State == api.Active
	if active {
		s.reportCounts()
		s.quota.Expire()
	}
	s.mu.Unlock()
	if active {
		s.denyNative()
	}
	killpoint.Pass("expire.closed")
	return true
}

// askToEnd sends SIGTERM to the slice's processes, and returns when it did.
func (e *Enforcer) askToEnd(s *slice) time.Duration {
	s.mu.Lock()
	asked := s.asked
	s.mu.Unlock()
	if asked != 0 { // by a former enforcer
		return asked
	}
	asked = e.now()
	s.group.Terminate(e.options.Grace)
	killpoint.Pass("expire.asked")
	if !e.waitFor(s) {
		return asked
	}
	defer s.turn.Give()
	s.mu.Lock()
	s.asked = asked
	s.mu.Unlock()
	if err := s.put(); err != nil {
		s.log.Error("SIGTERM not stored: the next enforcer sends it again", "err", err)
	}
	killpoint.Pass("expire.noted")
	return asked
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
	shown.TTL = s.ttl
	if s.deadline == 0 {
		return
	}
	remaining := s.deadline - s.e.now()
	at := time.Now().UTC().Add(remaining).Round(time.Second)
	shown.Expires, shown.Remaining = &at, max(remaining, 0)
}

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

// How long slices live. A deadline is a time since boot (CLOCK_BOOTTIME), which nobody sets and which goes on while the
// host is suspended: setting the wall clock moves no deadline, only what is shown of it. It is stored, and means
// something until the next boot, as the slice does.
//
// What comes after it is done in steps, each of which may be the last of this enforcer: that the slice has expired is stored; nothing
// more can be charged; its processes are asked to end; that they were, and when, is stored; after the grace those that
// remain are killed; the slice is released as any whose processes have exited. The next enforcer goes on behind the
// step that it finds in the store.

// DefaultGrace is from SIGTERM to SIGKILL.
const DefaultGrace = 10 * time.Second

// maxSleep until the clock is read again: a sleep counts no time that the host was suspended.
const maxSleep = time.Second

// sinceBoot is CLOCK_BOOTTIME.
func sinceBoot() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // fails for a clock only that the kernel does not have: since 2.6.39
	return time.Duration(t.Nano())
}

// until is the deadline of a slice that lives so long from now.
func (e *Enforcer) until(ttl time.Duration) time.Duration {
	if ttl == 0 {
		return 0
	}
	return e.now() + ttl
}

// timeIsOver says whether the slice's time is over. Called with mu held.
func (s *slice) timeIsOver() bool { return s.deadline != 0 && s.e.now() >= s.deadline }

// checkLeases is for when there may be an earlier deadline than there was.
func (e *Enforcer) checkLeases() {
	select {
	case e.leases <- struct{}{}:
	default: // they are going to be checked
	}
}

// keepTime ends the slices whose time is over, until ctx ends.
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

// due says whether the slice is to be ended now, which is then begun; and if not, in what time it is; 0 is never.
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

// end takes a slice whose time is over to its end.
func (e *Enforcer) end(ctx context.Context, s *slice) {
	if !e.expire(s) {
		// It was renewed meanwhile, or is gone.
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

// sleep says whether the slice is still there after that time, and the enforcer goes on.
func (e *Enforcer) sleep(ctx context.Context, s *slice, time_ time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time_):
		return e.find(s.id()) == s
	}
}

// expire lets nothing more be charged in a slice whose time is over. It says no if its time is not over, or it is not there.
func (e *Enforcer) expire(s *slice) bool {
	if !e.waitFor(s) {
		return false
	}
	defer s.turn.Give()
	s.mu.Lock()
	over, before := s.timeIsOver(), s.expired
	s.expired = before || over
	s.mu.Unlock()
	if !over || before { // before: by a former enforcer
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

// askToEnd sends SIGTERM to the slice's processes, and says when that was.
func (e *Enforcer) askToEnd(s *slice) time.Duration {
	s.mu.Lock()
	asked := s.asked
	s.mu.Unlock()
	if asked != 0 { // by a former enforcer
		return asked
	}
	asked = e.now()
	e.terminate(s)
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

// put writes the slice to the store, unless it is not there any more. Called in the slice's turn.
func (s *slice) put() error {
	s.mu.Lock()
	gone := s.quota.State == api.Released || s.quota.State == quota.Left
	s.mu.Unlock()
	if gone {
		return nil
	}
	return s.e.store.PutSlice(s.storedNow())
}

// showLease is called with mu held.
func (s *slice) showLease(shown *api.Slice) {
	shown.TTL = s.ttl
	if s.deadline == 0 {
		return
	}
	remaining := s.deadline - s.e.now()
	at := time.Now().UTC().Add(remaining).Round(time.Second)
	shown.Expires, shown.Remaining = &at, max(remaining, 0)
}

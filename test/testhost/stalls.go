// SPDX-License-Identifier: Apache-2.0

package testhost

import (
	"sync"
	"time"
)

// Stalls are the times for which nothing ran here, as far as one can tell who sleeps for Nap again and again: what it overslept.
// A busy machine may stand still for seconds, and then the enforcer is not the one that is slow.
type Stalls struct {
	Nap time.Duration

	mu      sync.Mutex
	woke    time.Time // from the last nap; zero before the first
	list    []stall   // of late
	longest time.Duration
}

type stall struct{ from, to time.Time }

const (
	short  = 10 * time.Millisecond // is not noted
	ofLate = 2 * time.Minute       // nobody asks for what was before
)

// Watch sleeps, and never returns.
func (s *Stalls) Watch() {
	for ; ; time.Sleep(s.Nap) {
		s.wake(time.Now())
	}
}

// wake notes for how long the nap that ends now was too long.
func (s *Stalls) wake(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if over := now.Sub(s.woke) - s.Nap; !s.woke.IsZero() && over > short {
		s.list = append(s.list, stall{now.Add(-over), now})
		s.longest = max(s.longest, over)
	}
	s.woke = now
	for len(s.list) > 0 && now.Sub(s.list[0].to) > ofLate {
		s.list = s.list[1:]
	}
}

// Between is for how long it stood still in that time, which has just ended: perhaps it still does.
func (s *Stalls) Between(begin, end time.Time) (total time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.list
	if over := end.Sub(s.woke) - s.Nap; !s.woke.IsZero() && over > short {
		list = append(list[:len(list):len(list)], stall{end.Add(-over), end})
	}
	for _, one := range list {
		if one.from.Before(begin) {
			one.from = begin
		}
		if one.to.After(end) {
			one.to = end
		}
		total += max(0, one.to.Sub(one.from))
	}
	return total
}

// Longest is the longest one.
func (s *Stalls) Longest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.longest
}

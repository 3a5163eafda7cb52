// SPDX-License-Identifier: Apache-2.0

package testhost

import (
	"sync"
	"time"
)

// Stalls records naps that took longer than Nap: the machine stalled, and the enforcer is not to blame.
type Stalls struct {
	Nap time.Duration

	mu      sync.Mutex
	napEnd  time.Time // end of the last nap; zero before the first
	list    []stall   // recent stalls
	longest time.Duration
}

type stall struct{ from, to time.Time }

const (
	short  = 10 * time.Millisecond // shorter stalls are ignored
	ofLate = 2 * time.Minute       // older stalls are dropped
)

// Watch records stalls, and never returns.
func (s *Stalls) Watch() {
	for ; ; time.Sleep(s.Nap) {
		s.recordNap(time.Now())
	}
}

// recordNap records the stall of a nap that ends now.
func (s *Stalls) recordNap(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if late := now.Sub(s.napEnd) - s.Nap; !s.napEnd.IsZero() && late > short {
		s.list = append(s.list, stall{now.Add(-late), now})
		s.longest = max(s.longest, late)
	}
	s.napEnd = now
	for len(s.list) > 0 && now.Sub(s.list[0].to) > ofLate {
		s.list = s.list[1:]
	}
}

// Between returns the total stall time from begin to end. end is now: a stall in progress counts.
func (s *Stalls) Between(begin, end time.Time) (total time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.list
	if late := end.Sub(s.napEnd) - s.Nap; !s.napEnd.IsZero() && late > short {
		list = append(list[:len(list):len(list)], stall{end.Add(-late), end})
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

func (s *Stalls) Longest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.longest
}

//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"sync"
	"testing"
	"time"
)

// stalls are the times for which nothing ran here, as far as one can tell who sleeps for a nap again and again: what it overslept.
// A busy machine may stand still for seconds, and then the enforcer is not the one that is slow.
type stalls struct {
	mu      sync.Mutex
	woke    time.Time // from the last nap; zero before the first
	list    []stall   // of late
	longest time.Duration
}

type stall struct{ from, to time.Time }

const (
	nap   = 50 * time.Millisecond
	short = 10 * time.Millisecond // is not noted
)

// machine is the one that this runs on.
var machine stalls

func (s *stalls) watch() {
	for ; ; time.Sleep(nap) {
		s.wake(time.Now())
	}
}

// wake notes for how long the nap that ends now was too long.
func (s *stalls) wake(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if over := now.Sub(s.woke) - nap; !s.woke.IsZero() && over > short {
		s.list = append(s.list, stall{now.Add(-over), now})
		s.longest = max(s.longest, over)
	}
	s.woke = now
	for len(s.list) > 0 && now.Sub(s.list[0].to) > 4*patience { // nobody asks for that
		s.list = s.list[1:]
	}
}

// between is for how long it stood still in that time, which has just ended: perhaps it still does.
func (s *stalls) between(begin, end time.Time) (total time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.list
	if over := end.Sub(s.woke) - nap; !s.woke.IsZero() && over > short {
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

// most is the longest one.
func (s *stalls) most() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.longest
}

func TestTimeForWhichTheMachineStoodStillIsNotTheEnforcers(t *testing.T) {
	var s stalls
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	for _, ms := range []int{0, 51, 102, 3152, 3203} { // from 152 to 3152 it stood still
		s.wake(at(ms))
	}
	for _, c := range []struct{ begin, end, want int }{
		{0, 100, 0}, {100, 3160, 3000}, {1152, 3160, 2000}, {152, 1152, 1000}, {3152, 3250, 0},
		{3203, 5253, 2000}, {1152, 5253, 4000}, // and still does, since 3253
	} {
		if got := s.between(at(c.begin), at(c.end)); got != time.Duration(c.want)*time.Millisecond {
			t.Errorf("between %d and %d ms it stood still for %v, want %d ms", c.begin, c.end, got, c.want)
		}
	}
	if got := s.most(); got != 3*time.Second {
		t.Errorf("the longest was %v", got)
	}
}

//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
)

// lease bounds a slice's expiry in time since boot; 0 is never.
type lease struct {
	from, to      time.Duration
	changeUnknown bool // whether it was changed is unknown (mayBe)
}

// sinceBoot reads CLOCK_BOOTTIME, which cannot be set.
func sinceBoot() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return time.Duration(t.Nano())
}

// expire runs a container with one second to live. Some of its processes ignore the request to end.
func expire(w *world, r *rand.Rand) bool { return expireWhile(w, r, func() {}) }

func expireWhile(w *world, r *rand.Rand, meanwhile func()) bool {
	const ttl = time.Second
	s := &slice{id: w.name(), limit: gib, state: active}
	s.cgroup = w.newCgroup(s.id)
	w.add(s)
	w.say("begin a container that lives for a second, %s", s.id)
	w.create(s, map[string]string{"gpuslice.vram": toMiB(s.limit), "gpuslice.ttl": ttl.String()})
	begin := time.Now()
	s.over = begin.Add(ttl)
	if err := w.hook("prestart", s); err != nil {
		if w.mayFail == "" && !s.mayBeOver() {
			w.fail("%v", err)
		}
		w.stopContainer(s)
		return true
	}
	s.state = damaged // the model predicts nothing for a slice about to end
	w.begin(s)
	stubborn := r.IntN(2) == 0
	for range 2 {
		cmd := []string{"context 0", "alloc 0 4194304 0"}
		p := w.join(s)
		if stubborn {
			cmd = append(cmd, "stubborn")
		}
		for _, c := range cmd {
			p.ask("%s", c)
		}
	}
	meanwhile()
	w.eventually("its time is over and its processes are gone", func() bool {
		for _, p := range s.workers {
			if alive(p.pid) {
				return false
			}
		}
		return true
	})
	if lived := time.Since(begin); lived < ttl {
		w.fail("%s has lived for %v, but was given %v", s.id, lived, ttl)
	}
	for _, p := range slices.Clone(s.workers) {
		p.wantGone()
	}
	w.stopContainer(s)
	return true
}

func renew(w *world, r *rand.Rand) bool {
	s := w.pickSlice(r, func(s *slice) bool { return s.state == active })
	if s == nil {
		return false
	}
	ttl := []time.Duration{0, time.Hour, 100 * time.Hour}[r.IntN(3)]
	w.say("%s lives for %v from now", s.id, ttl)
	begin := sinceBoot()
	_, err := w.client.Renew(w.Context(), s.id, api.RenewRequest{TTL: &ttl})
	switch {
	case err != nil && w.mayFail == "":
		w.fail("renew %s: %v", s.id, err)
	case err != nil:
		w.say("… %v", err)
		if w.mayBe(err) {
			s.lease = lease{changeUnknown: true}
		}
	case ttl == 0:
		s.lease = lease{}
	default:
		s.lease = lease{from: begin + ttl, to: sinceBoot() + ttl}
	}
	return true
}

// differs returns an error if a slice's expiry, shown between begin and end since boot, differs from the model. The wall clock
// is ahead by the given time.
func (l lease) differs(got api.Slice, begin, end, ahead time.Duration) error {
	switch {
	case l.changeUnknown:
		return nil
	case l.to == 0 && (got.Expires != nil || got.Remaining != 0):
		return fmt.Errorf("slice %s has %v left, want no deadline", got.ID, got.Remaining)
	case l.to == 0:
		return nil
	case got.Expires == nil || got.Remaining < l.from-end || got.Remaining > l.to-begin:
		return fmt.Errorf("slice %s has %v left, the model between %v and %v", got.ID, got.Remaining, l.from-end, l.to-begin)
	}
	// Converts the shown wall-clock time to time since boot.
	const rounded = 2 * time.Second // to a second, and the clock is slewed
	shown := time.Until(*got.Expires) + sinceBoot() - ahead - got.Remaining
	if shown < begin-rounded || shown > end+rounded {
		return fmt.Errorf("slice %s is shown to end at %v, which is %v off", got.ID, got.Expires, max(begin-shown, shown-end))
	}
	return nil
}

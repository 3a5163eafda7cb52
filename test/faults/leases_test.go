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

// lease is between which times since boot a slice's own is over; 0 is never.
type lease struct {
	from, to time.Duration
	unsure   bool // it was changed, or not (mayBe)
}

// sinceBoot is by CLOCK_BOOTTIME, which nobody sets.
func sinceBoot() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return time.Duration(t.Nano())
}

// expire is the whole life of a container that may live for a second. Some of its processes do not end when they are
// asked to.
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
		if w.doubt == "" && !s.mayBeOver() {
			w.fail("%v", err)
		}
		w.stopContainer(s)
		return true
	}
	s.state = spoilt // nothing is foretold of one that ends any moment
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
		w.fail("%s has lived for %v, and was given %v", s.id, lived, ttl)
	}
	for _, p := range slices.Clone(s.workers) {
		p.gone()
	}
	w.stopContainer(s)
	return true
}

// renew gives time, or takes it back.
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
	case err != nil && w.doubt == "":
		w.fail("renew %s: %v", s.id, err)
	case err != nil:
		w.say("… %v", err)
		if w.mayBe(err) {
			s.lease = lease{unsure: true}
		}
	case ttl == 0:
		s.lease = lease{}
	default:
		s.lease = lease{from: begin + ttl, to: sinceBoot() + ttl}
	}
	return true
}

// differs says in what a slice's time, as it was shown between two times since boot, is not the model's. The wall clock is
// so much ahead.
func (l lease) differs(got api.Slice, begin, end, ahead time.Duration) error {
	switch {
	case l.unsure:
		return nil
	case l.to == 0 && (got.Expires != nil || got.Remaining != 0):
		return fmt.Errorf("slice %s has %v left, and should have no end", got.ID, got.Remaining)
	case l.to == 0:
		return nil
	case got.Expires == nil || got.Remaining < l.from-end || got.Remaining > l.to-begin:
		return fmt.Errorf("slice %s has %v left, the model between %v and %v", got.ID, got.Remaining, l.from-end, l.to-begin)
	}
	// It was shown between begin and end, by the wall clock.
	const rounded = 2 * time.Second // to a second, and that clock is slewed
	shown := time.Until(*got.Expires) + sinceBoot() - ahead - got.Remaining
	if shown < begin-rounded || shown > end+rounded {
		return fmt.Errorf("slice %s is shown to end at %v, which is %v off", got.ID, got.Expires, max(begin-shown, shown-end))
	}
	return nil
}

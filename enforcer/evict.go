// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
)

// Who goes when somebody wants room that elastic slices have, and how he is moved aside: what elastic.go says of it.

const (
	drainPace = time.Millisecond
	// obstacleLasts is how long it is not tried again to evict a slice that could not be moved.
	obstacleLasts = 10 * time.Second
)

// drainPatience is for calls under way when the gate is shut. One of them may wait for what another thread would do behind the gate. Tests have
// less.
var drainPatience = 5 * time.Second

// unit is who can be evicted as one: a slice, or all members of an elastic pool.
type unit struct {
	holder   *admission.Holder
	priority int
	slices   []*slice
}

// units of these slices.
func units(all []*slice) (each []unit) {
	pools := make(map[*pool]bool)
	for _, s := range all {
		if len(s.pools) == 0 {
			each = append(each, unit{s.holder, s.request.Priority, []*slice{s}})
		}
		for _, p := range s.pools {
			if !pools[p] {
				pools[p] = true
				each = append(each, unit{p.holder, p.asked.Priority, p.allMembers()})
			}
		}
	}
	return each
}

// candidate is who may be evicted, or who is, and may have to leave nothing.
type candidate struct {
	unit    // with the slices to act on
	away    bool
	stay    map[string]uint64 // what of its devices they may leave together
	devices []string          // where they are
	idle    time.Duration
	busy    bool // it is not idle, and its time is over
}

// want is what a holder was refused.
type want struct {
	admission.Ask
	priority int
	busy     bool // slices that are not idle may be evicted for it, too
	refusal  *api.Error
	device   bool // the device may lack the room, and not the book
}

// victim is who goes next so that it can be had; nil if nobody may go whose going would be enough, as where it is a user's or a tenant's bound that
// others do not count for. None has to go, and it can be had, where there is room since it was refused.
func (e *Enforcer) victim(w want, all []*slice) (_ *candidate, enough bool) {
	var may []candidate
	now := time.Now()
	for _, u := range units(all) {
		if u.holder == w.Holder {
			continue
		}
		if c, goes := u.mayGo(now, e.options.Elastic); goes && (!c.busy || w.busy && c.priority <= w.priority) {
			may = append(may, c)
		}
	}
	early := map[bool]int{true: -1} // those who are away lose nothing
	slices.SortFunc(may, func(a, b candidate) int {
		return cmp.Or(early[a.away]-early[b.away], cmp.Compare(a.priority, b.priority), cmp.Compare(b.idle, a.idle))
	})
	holders := make([]*admission.Holder, len(may))
	for i := range may {
		holders[i] = may[i].holder
	}
	which, enough := e.book.Which(w.Ask, holders)
	if !enough || len(which) == 0 && !w.device {
		return nil, enough
	}
	if len(which) > 0 {
		first := &may[which[0]]
		first.stay = e.book.Beside(w.Ask, first.holder)
		return first, true
	}
	// By the book there is room, and on the device there is not: somebody holds what was not granted to him.
	uuid, lacks := w.refusal.Device, w.refusal.Requested-min(w.refusal.Requested, w.refusal.Limit-min(w.refusal.Limit, w.refusal.Current))
	var first *candidate
	for i := range may {
		if bytes := e.book.Has(may[i].holder)[uuid]; bytes > 0 {
			if first == nil {
				first = &may[i]
			}
			lacks -= min(lacks, bytes)
		}
	}
	if lacks > 0 || first == nil {
		return nil, false
	}
	first.stay = make(map[string]uint64)
	return first, true
}

// mayGo says whether all of them may be evicted who are on their devices, and how idle they are; or if none is, whether some may have to leave nothing.
func (u unit) mayGo(now time.Time, o Elastic) (c candidate, goes bool) {
	c = candidate{unit: u, away: true, idle: math.MaxInt64}
	c.slices = nil
	var leave []*slice
	for _, s := range u.slices {
		place, idle, busy := s.place(now, o)
		switch place {
		case staysPut:
			return c, false
		case canGo:
			c.slices, c.away = append(c.slices, s), false
			c.idle, c.busy = min(c.idle, idle), c.busy || busy
		case canLeave:
			leave = append(leave, s)
		}
	}
	if c.away {
		c.slices = leave
	}
	return c, len(c.slices) > 0
}

// place is whether a slice is on its devices, and may leave them.
type place int

const (
	staysPut place = iota // where it is, for now
	canGo                 // to host memory
	hasGone               // with all that it had
	canLeave              // what is still there
)

// place also says how long the slice has been idle, and whether it is busy, and its time is over.
func (s *slice) place(now time.Time, o Elastic) (p place, idle time.Duration, busy bool) {
	s.observe(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.residency
	switch {
	case s.quota.State != api.Active:
		return staysPut, 0, false
	case s.isAway() && len(s.left()) > 0 && now.Sub(r.stuck) >= obstacleLasts:
		return canLeave, 0, false
	case s.isAway():
		return hasGone, 0, false
	case s.suspension != nil, !r.obstructed.IsZero() && now.Sub(r.obstructed) < obstacleLasts:
		return staysPut, 0, false
	}
	idle = now.Sub(r.active)
	busy = min(idle, now.Sub(r.returned)) < o.MinResident
	if busy && now.Sub(r.returned) < o.Quantum {
		return staysPut, idle, busy
	}
	return canGo, idle, busy
}

// evict moves slices aside, one after the other, until one of them cannot be.
func (e *Enforcer) evict(c *candidate) {
	defer e.evictions.add(c.devices, -1)
	for _, s := range c.slices {
		if !e.evictOne(s, c) {
			return
		}
		s.mu.Lock()
		if s.isAway() {
			for uuid, bytes := range s.left() {
				c.stay[uuid] -= min(bytes, c.stay[uuid])
			}
		}
		s.mu.Unlock()
	}
}

// evictOne moves a slice aside, or all of it, or notes why that cannot be done. One that is not busy stays if a call does not end.
func (e *Enforcer) evictOne(s *slice, c *candidate) (gone bool) {
	if !e.waitFor(s) {
		return false
	}
	defer s.turn.Give()
	if c.away {
		if err := s.leaveLess(c.stay, true); err != nil {
			s.log.Error("what the evicted slice has left on its devices stays there", "why", err)
			s.mu.Lock()
			s.residency.stuck = time.Now()
			s.mu.Unlock()
			return false
		}
		return true
	}
	s.mu.Lock()
	gone = s.suspension != nil // for somebody else, or by hand, while this waited for its turn
	s.mu.Unlock()
	if gone {
		return true
	}
	began, err := time.Now(), s.beginSuspension(true)
	if err == nil {
		killpoint.Pass("evict.shut")
		if err = s.drain(c.busy); err != nil {
			s.setSuspension(nil)
		} else if err = s.suspendAll(c.stay); err == nil {
			s.mu.Lock()
			s.residency.evictions++
			s.mu.Unlock()
		}
	}
	s.overstay(err, began)
	s.obstruct(err)
	return err == nil
}

// unmovable is the error of a slice that cannot be moved because of what its processes do.
type unmovable struct{ error }

func (u unmovable) Unwrap() error { return u.error }

// overstay ends a slice if its own processes have kept it on its devices for Elastic.Patience while others waited. err is that of an attempt to move
// it, which began then.
func (s *slice) overstay(err error, began time.Time) {
	s.mu.Lock()
	r, patience, ends := s.residency, s.e.options.Elastic.Patience, false
	switch {
	case !errors.As(err, new(unmovable)):
		r.overstays = time.Time{}
	case r.overstays.IsZero(), !r.obstructed.IsZero() && began.Sub(r.obstructed) > 3*obstacleLasts: // nobody waited meanwhile
		r.overstays = began
	default:
		ends = patience > 0 && time.Since(r.overstays) >= patience
	}
	s.mu.Unlock()
	if ends {
		s.endForOthers(fmt.Sprintf("others waited for its device for %s (patience in [elastic]): %v", patience, err))
	}
}

// endForOthers ends an elastic slice that keeps others from a device.
func (s *slice) endForOthers(why string) {
	s.mu.Lock()
	before, ttl := s.overstayed, s.ttl
	s.overstayed = cmp.Or(before, why)
	s.deadline = s.e.now()
	s.mu.Unlock()
	if before != "" {
		return
	}
	s.log.Warn("the elastic slice is ended, since it cannot be moved", "why", why)
	s.tell(api.Event{Kind: api.EventExpired, TTL: ttl, Cause: why})
	s.e.checkLeases()
}

// boundMove limits a move of an elastic slice's processes, from now on, to Elastic.Patience and the time that a sound move may take. A longer one ends
// the slice, and its processes are killed, since others wait for the device. Each call on a process returns when the process exits.
func (s *slice) boundMove(all []*moved) (stop func()) {
	patience := s.e.options.Elastic.Patience
	if s.residency == nil || patience == 0 {
		return func() {}
	}
	var bytes uint64
	for _, p := range all {
		bytes += sum(p.Bytes)
	}
	most := patience + moveTimeout + time.Duration(bytes/slowest)*time.Second
	timer := time.AfterFunc(most, func() {
		s.endForOthers(fmt.Sprintf("its move took longer than %s (patience in [elastic], and what %s take at most)", most, api.FormatSize(bytes)))
		for _, p := range all {
			if s.maySignal(p.PID) {
				s.e.signal(s, p.handle, syscall.SIGKILL)
			}
		}
	})
	return func() { timer.Stop() }
}

// drain waits until no process of the slice is in a call of the driver. The gate is shut. It waits for a busy slice, and for a process that does
// not count its calls, for drainPatience: the driver's checkpoint then waits for the work, not for the process's word.
func (s *slice) drain(busy bool) error {
	deadline := time.Now().Add(drainPatience)
	for said := time.Now(); ; time.Sleep(drainPace) {
		pid, uncounted := s.inCall()
		switch {
		case pid == 0:
			return nil
		case time.Now().After(deadline) && (busy || uncounted):
			return nil
		case time.Now().After(deadline):
			return unmovable{api.Errorf(api.CodeBusy, "slice %s stays where it is: a call of process %d has not ended in %s", s.id(), pid, drainPatience)}
		case s.e.ending.Load():
			return ErrClosed
		}
		if now := time.Now(); now.Sub(said) > time.Second {
			s.turn.GoesOn()
			said = now
		}
	}
}

// inCall is a process of the slice that is in a call of the driver, or does not say; 0 if there is none.
func (s *slice) inCall() (pid int, uncounted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.quota.Lanes() {
		gate := s.quota.Ledger.Gated(l.Number)
		if (!gate.Counts || gate.UnderWay > 0) && l.Process.Alive() {
			return l.Process.PID, !gate.Counts
		}
	}
	return 0, false
}

// evictFor returns why somebody was refused what he wants; or has idle ones evicted for him, if that is enough, and then the error is busy: who asks
// is to ask again.
func (e *Enforcer) evictFor(refused error, w want) error {
	if !errors.As(refused, &w.refusal) || w.refusal.Code != api.CodeQuotaExceeded || !e.movesElastic() {
		return refused
	}
	c, enough := e.choose(w, true)
	if !enough {
		return refused
	}
	if c != nil {
		e.ends.Go(func() { e.evict(c) })
	}
	busy := *w.refusal
	busy.Code = api.CodeBusy
	busy.Message += ": idle elastic slices are being evicted for it: ask again"
	return &busy
}

// evictions counts, by device, the candidates that were chosen and are still being evicted. Choosing and counting are one step, so that a
// repeated request does not evict a second candidate.
type evictions struct {
	choosing *guard.Turn
	mu       guard.Mutex[guard.Leaf]
	on       map[string]int
}

func newEvictions() *evictions {
	return &evictions{choosing: guard.NewTurn(), on: make(map[string]int)}
}

func (v *evictions) add(devices []string, n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, uuid := range devices {
		v.on[uuid] += n
	}
}

func (v *evictions) concern(bytes map[string]uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for uuid, n := range bytes {
		if n > 0 && v.on[uuid] > 0 {
			return true
		}
	}
	return false
}

// choose calls victim and counts the candidate that it returns; the caller evicts that. With alone it returns none while an eviction from one of
// these devices is under way.
func (e *Enforcer) choose(w want, alone bool) (c *candidate, enough bool) {
	e.evictions.choosing.Wait()
	defer e.evictions.choosing.Give()
	if alone && e.evictions.concern(w.Bytes) {
		return nil, true
	}
	if c, enough = e.victim(w, e.elasticOnes()); c != nil {
		on := make(map[string]bool)
		for _, s := range c.slices {
			for uuid := range s.has() {
				on[uuid] = true
			}
		}
		c.devices = slices.Collect(maps.Keys(on))
		e.evictions.add(c.devices, 1)
	}
	return c, enough
}

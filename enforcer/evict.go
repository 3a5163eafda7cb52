// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/mover"
)

// This file chooses the elastic slices to evict for a holder that needs room, and evicts them, by the rules in elastic.go.

const drainPace = time.Millisecond

// drainPatience limits the wait for calls under way when the gate is shut. A call may depend on another thread that the gate stops. Tests shorten it.
var drainPatience = 5 * time.Second

// candidate is a slice to evict, or the members of an elastic pool; or evicted ones that have to leave nothing on their devices.
type candidate struct {
	slices  []*slice
	away    bool
	busy    bool              // not idle, but its time on the devices is over
	stay    map[string]uint64 // bytes of each device that they may leave there together
	devices []string          // with their memory
}

// want is a refused request for room.
type want struct {
	*core.Want
	at      time.Time // when slices have to be idle
	refusal *api.Error
	device  bool // the device may lack room that admission has: a process holds memory that was not granted to it
}

// victims returns the candidates to evict. enough is false if evicting all candidates would not make room, as with a user's or tenant's bound to
// which they do not count. No candidates with enough means that room has appeared since the refusal.
func (e *Enforcer) victims(w want, quantum time.Duration) (these []*candidate, enough bool) {
	var lacks uint64
	if r := w.refusal; w.device {
		lacks = r.Requested - min(r.Requested, r.Limit-min(r.Limit, r.Current))
	}
	of := e.observeAll(w.at)
	var found []core.Victim
	e.book.Do(func(a *core.Accounts) { found, enough = a.Victims(w.Want, quantum, w.refusal.Device, lacks) })
	for _, v := range found {
		c := &candidate{away: v.Away, busy: v.Busy, stay: v.Stay}
		for _, who := range v.Slices {
			c.slices = append(c.slices, of[who])
		}
		these = append(these, c)
	}
	return these, enough
}

// observeAll has admission know what elastic slices have done until now, and returns the slices.
func (e *Enforcer) observeAll(now time.Time) map[*admission.Holder]*slice {
	of, all := make(map[*admission.Holder]*slice), make(map[*admission.Holder]core.Activity)
	began, boot := time.Now(), e.now()
	since := func(t time.Time) time.Duration {
		if t.IsZero() {
			return 0
		}
		return boot + t.Sub(began)
	}
	for _, s := range e.elasticOnes() {
		s.observe(now)
		s.mu.Lock()
		r := s.residency
		of[s.holder], all[s.holder] = s, core.Activity{
			Active: since(r.active), Returned: since(r.returned), Obstructed: since(r.obstructed), Stuck: since(r.stuck),
			Fixed: s.quota.State != api.Active || s.suspension != nil && !s.isAway(),
		}
		s.mu.Unlock()
	}
	e.book.Do(func(a *core.Accounts) { a.Observe(since(now), all) })
	return of
}

// evictAll evicts all candidates at one time, so that one that cannot be moved delays the others no further.
func (e *Enforcer) evictAll(these []*candidate) {
	var all sync.WaitGroup
	for _, c := range these {
		all.Go(func() { e.evict(c) })
	}
	all.Wait()
}

// evict evicts a candidate's slices, one after the other, until one cannot be moved.
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

// evictOne evicts a slice, or moves what an evicted one has left, or records why it cannot.
func (e *Enforcer) evictOne(s *slice, c *candidate) (gone bool) {
	if !e.waitFor(s) {
		return false
	}
	defer s.turn.Give()
	s.mu.Lock()
	away, on := s.isAway(), s.suspension == nil
	s.mu.Unlock()
	if c.away && !away || !c.away && !on { // moved since
		return true
	}
	err := s.command(func(client uint64) core.Command {
		return core.Suspend{Client: client, ID: s.id(), Evict: true, Stay: c.stay, Busy: c.busy}
	})
	if c.away {
		return err == nil
	}
	if err == nil {
		s.mu.Lock()
		s.residency.evictions++
		s.mu.Unlock()
	}
	s.obstruct(err)
	return err == nil
}

// endForOthers ends an elastic slice that keeps others from a device.
func (s *slice) endForOthers(why string) {
	s.mu.Lock()
	before, ttl := s.overstayed, s.rec.TTL
	s.overstayed = cmp.Or(before, why)
	s.mu.Unlock()
	s.e.book.Do(func(a *core.Accounts) { a.Overstay(s.generation, why) })
	if before != "" {
		return
	}
	s.log.Warn("elastic slice ended: it cannot be moved", "why", why)
	s.tell(api.Event{Kind: api.EventExpired, TTL: ttl, Cause: why})
	s.e.checkLeases()
}

// boundMove limits a starting move of an elastic slice's processes to Elastic.Patience and the time of a sound move. After that it ends the slice
// and kills its processes, since others wait for the device. Each call on a process returns when the process exits.
func (s *slice) boundMove(m *mover.Move) (stop func()) {
	patience := s.e.options.Elastic.Patience
	if s.residency == nil || patience == 0 {
		return func() {}
	}
	bytes, most := m.Longest()
	most += patience
	timer := time.AfterFunc(most, func() {
		s.endForOthers(fmt.Sprintf("its move took longer than %s (patience in [elastic], plus the longest time for %s)", most, api.FormatSize(bytes)))
		for _, p := range m.Handles() {
			if s.group.MaySignal(p.PID) {
				s.group.Signal(p, syscall.SIGKILL)
			}
		}
	})
	return func() { timer.Stop() }
}

// drain waits until no process of the slice is in a call of the driver that it counts; the gate is shut. For a busy slice it waits at most
// drainPatience. The driver's checkpoint waits for the other calls.
func (s *slice) drain(busy bool) error {
	deadline := time.Now().Add(drainPatience)
	for said := time.Now(); ; time.Sleep(drainPace) {
		pid := s.inCall()
		switch late := time.Now().After(deadline); {
		case pid == 0, late && busy:
			return nil
		case late:
			return mover.Unmovable{Err: api.Errorf(api.CodeBusy, "slice %s stays where it is: a call of process %d has not ended in %s", s.id(), pid, drainPatience)}
		case s.e.ending.Load():
			return ErrClosed
		}
		if now := time.Now(); now.Sub(said) > time.Second {
			s.turn.GoesOn()
			said = now
		}
	}
}

// inCall returns a process of the slice that is in a call of the driver, by its own count; 0 if there is none.
func (s *slice) inCall() (pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.quota.Lanes() {
		if s.quota.Ledger.Gated(l.Number).UnderWay > 0 && l.Process.Alive() {
			return l.Process.PID
		}
	}
	return 0
}

// evictFor evicts idle slices if that makes room for a refused request, and returns a busy error, so that the caller tries again. Otherwise it
// returns the refusal. device is set if the device may lack room that admission has.
func (e *Enforcer) evictFor(refused error, lacks *core.Want, device bool) error {
	w := want{Want: lacks, at: time.Now(), device: device}
	if !errors.As(refused, &w.refusal) || w.refusal.Code != api.CodeQuotaExceeded || lacks == nil || !e.movesElastic() {
		return refused
	}
	these, enough := e.choose(w, true)
	if !enough {
		return refused
	}
	e.ends.Go(func() { e.evictAll(these) })
	busy := *w.refusal
	busy.Code = api.CodeBusy
	busy.Message += ": idle elastic slices are being evicted for it: try again"
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

// choose returns the victims, which the caller evicts, and counts them. With alone it returns none while an eviction from one of these devices is
// under way.
func (e *Enforcer) choose(w want, alone bool) (these []*candidate, enough bool) {
	e.evictions.choosing.Wait()
	defer e.evictions.choosing.Give()
	if alone && e.evictions.concern(w.Bytes) {
		return nil, true
	}
	if these, enough = e.victims(w, e.options.Elastic.Quantum); !enough {
		return nil, false
	}
	for _, c := range these {
		on := make(map[string]bool)
		for _, s := range c.slices {
			for uuid := range e.book.Has(s.holder, true) {
				on[uuid] = true
			}
		}
		c.devices = slices.Collect(maps.Keys(on))
		e.evictions.add(c.devices, 1)
	}
	return these, true
}

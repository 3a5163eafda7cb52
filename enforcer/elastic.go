// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// Elastic slices: who is on the devices, and who is in host memory. A slice's memory is moved as move.go has it, as a whole. Its processes
// pass a gate at each call of the driver (interceptor/gate.h): they count the calls under way in their lanes, and while the gate is shut they
// wait and ask for the slice's return. It is shut exactly as long as the slice is suspended, or on the way.
//
// An elastic slice begins evicted: with nothing. Its quotas count for admission while it is resident, all of them, so what is on a device never
// adds up to more than that has. Who asks to return when there is no room has others evicted: those of lower priority first, then those idle for
// longest. Nobody is evicted who made a call in the last MinResident; one that works all the time goes after a Quantum, if it is of no higher
// priority. A call of it that does not end is then left to wait in the driver, and is taken for one that asks for the return. On each device one
// slice is brought back at a time.

// Elastic is the operator's word on elastic slices.
type Elastic struct {
	Remap       bool          // processes move their memory themselves, where they can
	Overcommit  uint64        // how much of each byte of a device elastic slices may be promised together, in thousandths
	MinResident time.Duration // for so long after its last call nobody is evicted
	Quantum     time.Duration // for so long after its return one that works all the time is not
	HostMemory  uint64        // bytes of all evicted slices together, and of what others keep for the next time; 0 is as much as the host has
}

const (
	drainPace = time.Millisecond
	// elasticPace is between two looks at who waits, and triedLasts between two attempts to bring one back for which there was no room: as many may
	// ask as like to.
	elasticPace = 20 * time.Millisecond
	triedLasts  = 200 * time.Millisecond
	// obstacleLasts is how long it is not tried again to evict a slice that could not be moved.
	obstacleLasts = 10 * time.Second
)

// drainPatience is for calls under way when the gate is shut. One of them may wait for what another thread would do behind the gate. Tests have
// less.
var drainPatience = 5 * time.Second

// returnPatience is how long a process waits for one answer: shorter than its own patience, ASK_SECONDS in attach_client.h. Tests have less.
var returnPatience = 3 * time.Second

// evicted are the states of an elastic slice, by those of its suspension.
var evicted = map[api.State]api.State{api.Suspending: api.Evicting, api.Suspended: api.Evicted, api.Resuming: api.Returning}

// residency is how an elastic slice fares. Guarded by the slice's mu.
type residency struct {
	returned time.Time     // it is on its devices since
	back     chan struct{} // closed when it is; nil while it is
	waits    time.Time     // since when a process waits for that; zero if none does
	asked    time.Time     // when one said so last: it says so again and again, unless it has ended
	waited   time.Duration // in all, before that

	calls  uint64    // what its processes had made when that was seen last
	active time.Time // when it was last seen to make one

	evictions  uint64
	obstacle   string
	obstructed time.Time // when that was found last
	stuck      time.Time // when what it has left on the devices could not be moved, the last time
}

// beElastic is called before anybody knows the slice.
func (s *slice) beElastic() {
	if !s.request.Elastic {
		return
	}
	now := time.Now()
	s.residency = &residency{returned: now, active: now}
	if s.suspension != nil {
		s.residency.back = make(chan struct{})
	}
}

// turnGate has the gate be as the slice is. Called with mu held, whenever suspension or the ledger is another.
func (s *slice) turnGate() {
	r := s.residency
	if r == nil {
		return
	}
	away := s.suspension != nil
	if s.quota.Ledger != nil {
		s.quota.Ledger.SetAway(away)
	}
	switch now := time.Now(); {
	case away && r.back == nil:
		r.back = make(chan struct{})
	case !away && r.back != nil:
		close(r.back)
		r.back, r.returned, r.active = nil, now, now
		if !r.waits.IsZero() {
			r.waited, r.waits = r.waited+now.Sub(r.waits), time.Time{}
		}
	}
}

// want notes that a process waits.
func (r *residency) want(now time.Time) {
	if r.asked = now; r.waits.IsZero() {
		r.waits = now
	}
}

// awaitReturn answers a process that stands at the gate: when the slice is back, or that it is not yet.
func (s *slice) awaitReturn() error {
	s.mu.Lock()
	r, err := s.residency, s.refusal()
	switch {
	case err != nil:
		s.mu.Unlock()
		return err
	case r == nil:
		s.mu.Unlock()
		return ledger.StatusMalformed
	case r.back == nil:
		s.mu.Unlock()
		return nil
	}
	back := r.back
	r.want(time.Now())
	s.mu.Unlock()
	s.e.wakeElastic()
	select {
	case <-back:
		return nil
	case <-time.After(returnPatience):
		return ledger.StatusAway
	}
}

func (e *Enforcer) wakeElastic() {
	select {
	case e.elastic <- struct{}{}:
	default:
	}
}

// returning are the devices to which a slice is being brought back.
type returning struct {
	mu  guard.Mutex[guard.Leaf] // guards the other
	has map[string]bool
}

// begin takes all of the devices, or none if one is taken.
func (r *returning) begin(devices map[string]uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uuid := range devices {
		if r.has[uuid] {
			return false
		}
	}
	for uuid := range devices {
		r.has[uuid] = true
	}
	return true
}

func (r *returning) end(devices map[string]uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uuid := range devices {
		delete(r.has, uuid)
	}
}

// runElastic moves elastic slices until ctx ends.
func (e *Enforcer) runElastic(ctx context.Context) {
	r := &returning{has: make(map[string]bool)}
	var moves sync.WaitGroup
	defer moves.Wait()
	ticker := time.NewTicker(e.options.Interval)
	defer ticker.Stop()
	for ; ; time.Sleep(elasticPace) {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-e.elastic:
		}
		all := e.elasticOnes()
		now := time.Now()
		for _, s := range all {
			s.observe(now)
		}
		for _, s := range waiting(all, now) {
			s.mu.Lock()
			devices := s.quota.Commitment()
			s.mu.Unlock()
			if !r.begin(devices) {
				continue
			}
			moves.Go(func() {
				e.bringBack(ctx, s, all)
				r.end(devices)
				e.wakeElastic() // for the next one
			})
		}
	}
}

func (e *Enforcer) elasticOnes() (all []*slice) {
	for _, s := range e.all() {
		if s.residency != nil {
			all = append(all, s)
		}
	}
	return all
}

// waiting are those for whose return a process waits, and it was not just tried: by priority, then who waits for longest.
func waiting(all []*slice, now time.Time) (wait []*slice) {
	since := make(map[*slice]time.Time)
	for _, s := range all {
		s.mu.Lock()
		r, may := s.residency, s.suspension != nil && s.suspension.Evicted && s.quota.State == api.Active
		if may && r.back != nil && !r.waits.IsZero() && now.Sub(r.obstructed) >= triedLasts {
			since[s] = r.waits
			wait = append(wait, s)
		}
		s.mu.Unlock()
	}
	slices.SortFunc(wait, func(a, b *slice) int {
		return cmp.Or(cmp.Compare(b.request.Priority, a.request.Priority), since[a].Compare(since[b]))
	})
	return wait
}

// observe looks whether the slice's processes have made calls since it was looked last, or are in one.
func (s *slice) observe(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quota.State != api.Active || s.quota.Ledger == nil {
		return
	}
	var made, underWay uint64
	for l := range s.quota.Lanes() {
		gate := s.quota.Ledger.Gated(l.Number)
		made += gate.Made
		underWay += uint64(gate.UnderWay)
	}
	r := s.residency
	switch {
	case made > r.calls || underWay > 0 && r.back == nil:
		r.active = now
	case underWay > 0 && s.suspension != nil && s.suspension.State != api.Suspending:
		r.want(now) // in the driver, where nobody hears it
	case now.Sub(r.asked) > 3*returnPatience:
		r.waits = time.Time{}
	}
	r.calls = made // less than it was if a process has ended, which is no call
}

// bringBack brings a slice back that a process waits for, and has others evicted for it, if that makes room.
func (e *Enforcer) bringBack(ctx context.Context, s *slice, all []*slice) {
	for {
		err := e.tryReturn(s)
		var full *api.Error
		if !errors.As(err, &full) || full.Code != api.CodeQuotaExceeded {
			s.obstruct(err)
			return
		}
		w := s.wantBack(full.Device)
		w.busy, w.refusal = true, full
		victim := e.victim(w, all)
		if victim == nil || ctx.Err() != nil {
			s.obstruct(err)
			return
		}
		e.evict(victim)
	}
}

func (e *Enforcer) tryReturn(s *slice) error {
	if !e.waitFor(s) {
		return nil
	}
	defer s.turn.Give()
	s.mu.Lock()
	none := s.suspension == nil
	s.mu.Unlock()
	if none {
		return nil
	}
	return s.resumeWithin()
}

// obstruct notes why the slice could not be moved; nil if it was.
func (s *slice) obstruct(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.residency
	if err == nil || errors.Is(err, ErrClosed) {
		r.obstacle, r.obstructed = "", time.Time{}
		return
	}
	if said := err.Error(); said != r.obstacle {
		r.obstacle = said
		s.log.Info("the elastic slice is not moved", "why", said)
	}
	r.obstructed = time.Now()
}

// candidate is who may be evicted, or who is, and may have to leave nothing.
type candidate struct {
	unit // of its slices, those whom that concerns
	away bool
	idle time.Duration
	busy bool // it is not idle, and its time is over
}

// want is what somebody was refused.
type want struct {
	holder   *admission.Holder
	priority int
	busy     bool // who is busy may go for it, too
	bytes    map[string]uint64
	quotas   []api.Quota
	limit    *admission.User
	refusal  *api.Error
}

// victim is who goes next so that it can be had; nil if nobody may go whose going would be enough, as where it is a user's or a tenant's bound that
// others do not count for.
func (e *Enforcer) victim(w want, all []*slice) *candidate {
	var may []candidate
	now := time.Now()
	for _, u := range units(all) {
		if u.holder == w.holder {
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
	which, enough := e.book.Which(w.holder, w.bytes, w.quotas, w.limit, holders)
	if !enough {
		return nil
	}
	if len(which) > 0 {
		return &may[which[0]]
	}
	// By the book there is room, and on the device there is not: somebody holds what was not granted to him.
	uuid, lacks := w.refusal.Device, w.refusal.Requested-min(w.refusal.Requested, w.refusal.Limit-min(w.refusal.Limit, w.refusal.Current))
	var first *candidate
	for i := range may {
		if bytes := e.book.Has(may[i].holder)[uuid]; bytes > 0 {
			first = cmp.Or(first, &may[i])
			lacks -= min(lacks, bytes)
		}
	}
	if lacks > 0 {
		return nil
	}
	return first
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
	for _, s := range c.slices {
		if !e.evictOne(s, c) {
			return
		}
	}
}

// evictOne moves a slice aside, or all of it, or notes why that cannot be done. One that is not busy stays if a call does not end.
func (e *Enforcer) evictOne(s *slice, c *candidate) (gone bool) {
	if !e.waitFor(s) {
		return false
	}
	defer s.turn.Give()
	if c.away {
		if err := s.leaveNothing(); err != nil {
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
	err := s.beginSuspension(true)
	if err == nil {
		killpoint.Pass("evict.shut")
		if err = s.drain(c.busy); err != nil {
			s.setSuspension(nil)
		} else if err = s.suspendAll(); err == nil {
			s.mu.Lock()
			s.residency.evictions++
			s.mu.Unlock()
		}
	}
	s.obstruct(err)
	return err == nil
}

// drain waits until no process of the slice is in a call of the driver; of a busy one, for a while. The gate is shut.
func (s *slice) drain(busy bool) error {
	deadline := time.Now().Add(drainPatience)
	for said := time.Now(); ; time.Sleep(drainPace) {
		pid, uncounted := s.inCall()
		switch {
		case pid == 0:
			return s.fitsHost()
		case uncounted:
			return api.Errorf(api.CodeBadRequest, "slice %s stays where it is: process %d has an interceptor that is older than elastic slices", s.id(), pid)
		case time.Now().After(deadline) && busy:
			return s.fitsHost()
		case time.Now().After(deadline):
			return api.Errorf(api.CodeBusy, "slice %s stays where it is: a call of process %d has not ended in %s", s.id(), pid, drainPatience)
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
	all := e.elasticOnes()
	if e.leaving(w.bytes, all) == nil {
		c := e.victim(w, all)
		if c == nil {
			return refused
		}
		e.ends.Go(func() { e.evict(c) })
	}
	busy := *w.refusal
	busy.Code = api.CodeBusy
	busy.Message += ": idle elastic slices are being moved aside for it: ask again"
	return &busy
}

// leaving is a slice that is being evicted from one of these devices; nil if there is none.
func (e *Enforcer) leaving(wants map[string]uint64, all []*slice) *slice {
	for _, s := range all {
		s.mu.Lock()
		leaves := s.suspension != nil && s.suspension.Evicted && s.suspension.State == api.Suspending
		s.mu.Unlock()
		if !leaves {
			continue
		}
		for uuid := range s.has() {
			if wants[uuid] > 0 {
				return s
			}
		}
	}
	return nil
}

// movesElastic says whether slices can be elastic here.
func (e *Enforcer) movesElastic() bool { return e.options.Checkpoint != nil && e.truth != nil }

// promise notes what an elastic slice may ever be given, or says why that is too much. Called in its turn, before it is registered.
func (s *slice) promise(limit *admission.User) error {
	switch {
	case s.e.options.Checkpoint == nil:
		return api.Errorf(api.CodeBadRequest, "slice %s cannot be elastic: this enforcer serves its own sessions only, gpusliced can", s.id())
	case s.e.truth == nil:
		return api.Errorf(api.CodeBadRequest, "slice %s cannot be elastic: without NVML nobody knows when there is room for it (%s)", s.id(), s.e.options.NoTruth)
	}
	return s.e.book.Promise(s.holder, s.quota.Commitment(), s.e.options.Elastic.Overcommit, limit)
}

// showElastic is called with mu held.
func (s *slice) showElastic(shown *api.Slice) {
	r := s.residency
	if r == nil {
		return
	}
	now := time.Now()
	e := &api.Elastic{Priority: s.request.Priority, Evictions: r.evictions, Waited: r.waited, Obstacle: r.obstacle}
	if r.back != nil && !r.waits.IsZero() {
		since := r.waits.UTC()
		e.Waits, e.Waited = &since, e.Waited+now.Sub(since)
	}
	if s.quota.State == api.Active {
		e.Idle = max(0, now.Sub(r.active))
	}
	shown.Elastic = e
}

// movedKind is what is told of a move.
func (s *slice) movedKind(away bool) api.EventKind {
	s.mu.Lock()
	by := s.suspension != nil && s.suspension.Evicted
	s.mu.Unlock()
	switch {
	case away && by:
		return api.EventEvicted
	case away:
		return api.EventSuspended
	case by:
		return api.EventReturned
	default:
		return api.EventResumed
	}
}

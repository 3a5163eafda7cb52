// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// This file decides which elastic slices are on the devices, and which in host memory. A slice's memory is moved as a whole (package mover). Its processes
// pass a gate at each driver call (interceptor/gate.h): they count calls under way in their lanes, and while the gate is shut they wait and request
// the slice's return. The gate is shut exactly while the slice is suspended, or on the way.
//
// An elastic slice begins evicted and empty. While it is resident all its quotas count in admission, so the memory on a device never exceeds its
// capacity. If a returning slice finds no room, others are evicted: lower priorities first, then the longest idle. A slice stays for MinResident after
// its last call. A slice that is never idle can be evicted after Quantum, if its priority is not higher; a call that does not end then waits
// in the driver, and counts as a request for the return. One slice at a time returns to each device. Once a waiter has waited for Quantum, none
// behind it returns to its devices: otherwise smaller slices would take each part of its room when that becomes free.

// Elastic is the configuration of elastic slices.
type Elastic struct {
	Remap       bool          // processes move their memory themselves, if they can
	Overcommit  uint64        // bytes that elastic slices together may be promised for each 1000 bytes of a device
	MinResident time.Duration // a slice is not evicted for this time after its last call
	Quantum     time.Duration // nor for this time after its return, if it is never idle
	Patience    time.Duration // a slice that has prevented its eviction for this time, while others wait, is ended; 0 is never
	MaxPriority int           // limit for containers and users' sessions
	HostMemory  uint64        // bytes of all evicted slices and of what others keep for the next move; 0 is all that the host has
}

const (
	// elasticPace is the time between checks for waiting slices. roundLasts is the least time between two rounds on a device. In a round each waiter is
	// tried once, however often it requests its return.
	elasticPace = 20 * time.Millisecond
	roundLasts  = 200 * time.Millisecond

	// restedAfter is a number of quanta. After that time without a call, a slice returns before those of its priority that made calls.
	restedAfter = 10
)

// returnPatience limits the wait of one request. It is shorter than the process's timeout, ASK_SECONDS in attach_client.h. Tests shorten it.
var returnPatience = 3 * time.Second

// evicted maps the states of a suspension to those of an elastic slice.
var evicted = map[api.State]api.State{api.Suspending: api.Evicting, api.Suspended: api.Evicted, api.Resuming: api.Returning}

// residency is the state of an elastic slice. Guarded by the slice's mu.
type residency struct {
	returned time.Time     // time of its last return to its devices
	back     chan struct{} // closed at its return; nil while it is on its devices
	waits    time.Time     // when a process began to wait for the return; zero if none waits
	asked    time.Time     // when a process last requested it; a waiting process repeats the request
	waited   time.Duration // sum of earlier waits
	rested   bool          // it made no call for restedAfter before it began to wait
	collects bool          // it has waited for a quantum, and the devices are kept for it until there is room

	calls  uint64    // number made by its processes, when last read
	active time.Time // when it was last seen to make one

	evictions  uint64
	obstacle   string
	obstructed time.Time // when that was found last
	stuck      time.Time // last failure to move what it has left on the devices
}

// beElastic initializes an elastic slice. Called before the slice is registered.
func (s *slice) beElastic() {
	if !s.request.Elastic {
		return
	}
	now := time.Now()
	s.residency = &residency{returned: now, active: now}
	if s.suspension != nil {
		s.residency.back, s.residency.calls = make(chan struct{}), math.MaxUint64 // the number of earlier calls is unknown
	}
}

// turnGate shuts or opens the gate. Called with mu held, after each change of suspension or ledger.
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
		r.calls, _ = s.gated() // later calls wait at the gate
		s.e.gates.Ring()
	case !away && r.back != nil:
		close(r.back)
		r.back, r.returned, r.active = nil, now, now
		if !r.waits.IsZero() {
			r.waited, r.waits = r.waited+now.Sub(r.waits), time.Time{}
		}
	}
}

// want notes that a process waits.
func (r *residency) want(now time.Time, quantum time.Duration) {
	if r.asked = now; r.waits.IsZero() {
		r.waits, r.rested, r.collects = now, now.Sub(r.active) >= restedAfter*quantum, false
	}
}

// awaitReturn requests the slice's return for a process that attaches, and waits for it for returnPatience.
func (s *slice) awaitReturn() error {
	s.mu.Lock()
	r, err := s.residency, s.refusal()
	if err != nil || r == nil || r.back == nil {
		s.mu.Unlock()
		return err
	}
	back := r.back
	r.want(time.Now(), s.e.options.Elastic.Quantum)
	s.mu.Unlock()
	s.e.gates.Ring()
	select {
	case <-back:
		return nil
	case <-time.After(returnPatience):
		return ledger.StatusAway
	}
}

// attend adds the slice's gate if it is evicted.
func (s *slice) attend(gates *ledger.Gates) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.residency.back != nil && s.quota.Ledger != nil {
		gates.Add(s.quota.Ledger)
	}
}

// returning has the devices to which a slice is being returned, and when the present round began on each.
type returning struct {
	rounds map[string]time.Time

	mu  guard.Mutex[guard.Leaf] // guards has
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
	r := &returning{rounds: make(map[string]time.Time), has: make(map[string]bool)}
	var moves sync.WaitGroup
	defer moves.Wait()
	defer context.AfterFunc(ctx, e.gates.Ring)()
	// A slice that is idle for MinResident is to be found soon after.
	period := max(elasticPace, min(e.options.Interval, e.options.Elastic.MinResident/2))
	for ctx.Err() == nil {
		all := e.elasticOnes()
		now := time.Now()
		e.gates.Reset()
		for _, s := range all {
			s.attend(&e.gates) // before observe: a request is seen there, or ends the wait
			s.observe(now)
		}
		for _, w := range r.round(unclaimed(waiting(all), all), now) {
			if !r.begin(w.devices) {
				continue
			}
			moves.Go(func() {
				e.bringBack(ctx, w)
				r.end(w.devices)
				e.gates.Ring() // for the next one
			})
		}
		time.Sleep(elasticPace)
		e.gates.Wait(period, elasticPace)
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

// waiter is a slice with a waiting process.
type waiter struct {
	*slice
	since    time.Time
	tried    time.Time // when there was no room for it last
	rested   bool
	collects bool
	devices  map[string]uint64 // that it needs, or its pools
	round    time.Time         // when the round in which it is tried began
}

// waiting returns the waiters by priority, then the rested ones, then by waiting time.
func waiting(all []*slice) (wait []waiter) {
	for _, s := range all {
		s.mu.Lock()
		r, may := s.residency, s.suspension != nil && s.suspension.Evicted && s.quota.State == api.Active
		if may && r.back != nil && !r.waits.IsZero() {
			w := waiter{slice: s, since: r.waits, tried: r.obstructed, rested: r.rested, collects: r.collects, devices: s.quota.Commitment()}
			s.e.book.Do(func(a *core.Accounts) { maps.Copy(w.devices, a.Needs(s.holder)) })
			wait = append(wait, w)
		}
		s.mu.Unlock()
	}
	first := map[bool]int{true: -1}
	slices.SortFunc(wait, func(a, b waiter) int {
		return cmp.Or(cmp.Compare(b.request.Priority, a.request.Priority), first[a.rested]-first[b.rested], a.since.Compare(b.since))
	})
	return wait
}

// unclaimed returns the waiters without those that need a device that is kept for an earlier one. An earlier one keeps its devices if it collects
// room, or if a slice is being ended for it.
func unclaimed(wait []waiter, all []*slice) (may []waiter) {
	ending, claimed := make(map[string]bool), make(map[string]bool)
	for _, s := range all {
		s.mu.Lock()
		if s.overstayed != "" {
			for uuid := range s.quota.Commitment() {
				ending[uuid] = true
			}
		}
		s.mu.Unlock()
	}
	for _, w := range wait {
		free := true
		for uuid := range w.devices {
			free = free && !claimed[uuid]
		}
		if free {
			may = append(may, w)
		}
		for uuid := range w.devices {
			claimed[uuid] = claimed[uuid] || ending[uuid] || w.collects
		}
	}
	return may
}

// round returns the waiters that have not been tried in the present round on one of their devices. The next round begins after roundLasts, once all are
// tried that waited when this one began. So in each round the first of them has the first choice.
func (r *returning) round(wait []waiter, now time.Time) (try []waiter) {
	goesOn := make(map[string]bool)
	for _, w := range wait {
		for uuid := range w.devices {
			began := r.rounds[uuid]
			goesOn[uuid] = goesOn[uuid] || w.tried.Before(began) && w.since.Before(began)
		}
	}
	for _, w := range wait {
		if len(w.devices) == 0 && now.Sub(w.tried) >= roundLasts { // other members of its pool are on the devices
			w.round = now
		}
		for uuid := range w.devices {
			if !goesOn[uuid] && now.Sub(r.rounds[uuid]) >= roundLasts {
				r.rounds[uuid] = now
			}
			if began := r.rounds[uuid]; w.tried.Before(began) && began.After(w.round) {
				w.round = began
			}
		}
		if !w.round.IsZero() {
			try = append(try, w)
		}
	}
	return try
}

// gated returns the numbers of calls that the slice's processes have made, and that are under way. Called with mu held.
func (s *slice) gated() (made, underWay uint64) {
	if s.quota.Ledger == nil {
		return 0, 0
	}
	for l := range s.quota.Lanes() {
		gate := s.quota.Ledger.Gated(l.Number)
		made += gate.Made
		underWay += uint64(gate.UnderWay)
	}
	return made, underWay
}

// observe notes whether the slice's processes have made calls since the last time, or are in one. For an evicted slice either is a request for its
// return: a process at the gate counts a call with each request.
func (s *slice) observe(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quota.State != api.Active || s.quota.Ledger == nil {
		return
	}
	made, underWay := s.gated()
	r := s.residency
	switch {
	case r.back == nil && (made > r.calls || underWay > 0):
		r.active = now
	case r.back != nil && (made > r.calls || underWay > 0 && s.suspension != nil && s.suspension.State != api.Suspending):
		r.want(now, s.e.options.Elastic.Quantum)
	case now.Sub(r.asked) > 3*returnPatience:
		r.waits = time.Time{}
	}
	r.calls = made // less than before if a process has ended
}

// bringBack returns a slice to its devices for a waiting process, and evicts others if that makes room. For all waiters of a round the same slices are
// idle: those at its beginning.
func (e *Enforcer) bringBack(ctx context.Context, waiter waiter) {
	s := waiter.slice
	s.collects(false)
	for {
		err := e.tryReturn(s)
		var full *api.Error
		if !errors.As(err, &full) || full.Code != api.CodeQuotaExceeded || ctx.Err() != nil {
			s.obstruct(err)
			return
		}
		w := want{Want: s.wantOn(full.Device), at: waiter.round, refusal: full, device: true}
		w.Busy = true
		victims, _ := e.choose(w, false)
		if len(victims) == 0 {
			s.collects(s.mayCollect(w))
			s.obstruct(err)
			return
		}
		e.evictAll(victims)
	}
}

// mayCollect reports whether the slice has waited for a quantum, and there would be room for it if the quantum of all others were over.
func (s *slice) mayCollect(w want) bool {
	s.mu.Lock()
	since := s.residency.waits
	s.mu.Unlock()
	if since.IsZero() || time.Since(since) < s.e.options.Elastic.Quantum {
		return false
	}
	_, enough := s.e.victims(w, 0)
	return enough
}

// collects sets whether the room of the slice's devices is kept for it.
func (s *slice) collects(now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.residency.collects = now
}

func (e *Enforcer) tryReturn(s *slice) error {
	if !e.waitFor(s) {
		return nil
	}
	defer s.turn.Give()
	s.mu.Lock()
	none := s.suspension == nil || !s.suspension.Evicted // it is back, or stays suspended
	s.mu.Unlock()
	if none {
		return nil
	}
	return s.resume()
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
		s.log.Info("elastic slice not moved", "why", said)
	}
	r.obstructed = time.Now()
}

func (e *Enforcer) movesElastic() bool { return e.whyNotElastic() == "" }

// whyNotElastic returns why no slice or pool can be elastic; "" if they can.
func (e *Enforcer) whyNotElastic() string {
	switch {
	case e.options.Checkpoint == nil:
		return "this enforcer serves its own sessions only, gpusliced can"
	case e.truth == nil:
		return fmt.Sprintf("without NVML free device memory is unknown (%s)", e.options.NoTruth)
	}
	return ""
}

// wantOn returns the request for room with which the slice can return, after a refusal on a device.
func (s *slice) wantOn(device string) (w *core.Want) {
	limit := s.userLimit()
	s.e.book.Do(func(a *core.Accounts) { w = a.WantOn(s.holder, device, limit) })
	return w
}

// showElastic fills in the elastic part of a slice. Called with mu held.
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

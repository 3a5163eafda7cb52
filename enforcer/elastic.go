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

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/guard"
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
	Patience    time.Duration // a slice that cannot be moved for so long, while others wait, is ended; 0 is never
	MaxPriority int           // of containers and of users' sessions
	HostMemory  uint64        // bytes of all evicted slices together, and of what others keep for the next time; 0 is as much as the host has
}

const (
	// elasticPace is between two looks at who waits, and triedLasts between two attempts to bring one back for which there was no room: as many may
	// ask as like to.
	elasticPace = 20 * time.Millisecond
	triedLasts  = 200 * time.Millisecond
)

// returnPatience is how long a process waits for one answer: shorter than its own patience, ASK_SECONDS in attach_client.h. Tests have less.
var returnPatience = 3 * time.Second

// evicted are the states of an elastic slice, by those of its suspension.
var evicted = map[api.State]api.State{api.Suspending: api.Evicting, api.Suspended: api.Evicted, api.Resuming: api.Returning}

// residency is how an elastic slice fares. Guarded by the slice's mu.
type residency struct {
	returned time.Time     // it is on its devices since
	back     chan struct{} // closed when it is; nil while it is
	hosting  *guard.Turn   // of its processes' requests for host memory: one of them waits for Enforcer.hosting
	waits    time.Time     // since when a process waits for that; zero if none does
	asked    time.Time     // when one said so last: it says so again and again, unless it has ended
	waited   time.Duration // in all, before that

	calls  uint64    // what its processes had made when that was seen last
	active time.Time // when it was last seen to make one

	evictions  uint64
	obstacle   string
	obstructed time.Time // when that was found last
	overstays  time.Time // since when it could not be moved aside because of what its processes do
	stuck      time.Time // when what it has left on the devices could not be moved, the last time
}

// beElastic is called before anybody knows the slice.
func (s *slice) beElastic() {
	if !s.request.Elastic {
		return
	}
	now := time.Now()
	s.residency = &residency{returned: now, active: now, hosting: guard.NewTurn()}
	if s.suspension != nil {
		s.residency.back, s.residency.calls = make(chan struct{}), math.MaxUint64 // it is not known how many they made before
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
		r.calls, _ = s.gated() // the calls after these wait at the gate
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
func (r *residency) want(now time.Time) {
	if r.asked = now; r.waits.IsZero() {
		r.waits = now
	}
}

// awaitReturn requests the return of the slice for a process that is about to attach, and waits for it for some time.
func (s *slice) awaitReturn() error {
	s.mu.Lock()
	r, err := s.residency, s.refusal()
	if err != nil || r == nil || r.back == nil {
		s.mu.Unlock()
		return err
	}
	back := r.back
	r.want(time.Now())
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
	defer context.AfterFunc(ctx, e.gates.Ring)()
	// A slice that has been idle for MinResident is found not much later.
	period := max(elasticPace, min(e.options.Interval, e.options.Elastic.MinResident/2))
	for ctx.Err() == nil {
		all := e.elasticOnes()
		now := time.Now()
		e.gates.Reset()
		for _, s := range all {
			s.attend(&e.gates) // first, so that a request is seen by observe, or ends the wait
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
				e.bringBack(ctx, s)
				r.end(devices)
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

// gated returns how many calls the slice's processes have made, and how many are under way. Called with mu held.
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

// observe notes whether the slice's processes have made calls since the last time, or are in one. While it is evicted, both are requests for its
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
		r.want(now)
	case now.Sub(r.asked) > 3*returnPatience:
		r.waits = time.Time{}
	}
	r.calls = made // less than it was if a process has ended, which is no call
}

// bringBack brings a slice back that a process waits for, and has others evicted for it, if that makes room.
func (e *Enforcer) bringBack(ctx context.Context, s *slice) {
	for {
		err := e.tryReturn(s)
		var full *api.Error
		if !errors.As(err, &full) || full.Code != api.CodeQuotaExceeded || ctx.Err() != nil {
			s.obstruct(err)
			return
		}
		w := s.wantBack(full.Device)
		w.busy, w.device, w.refusal = true, true, full
		victim, _ := e.choose(w, false)
		if victim == nil {
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
	none := s.suspension == nil || !s.suspension.Evicted // it is back, or is to stay
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
		s.log.Info("elastic slice not moved", "why", said)
	}
	r.obstructed = time.Now()
}

// movesElastic says whether slices can be elastic here.
func (e *Enforcer) movesElastic() bool { return e.options.Checkpoint != nil && e.truth != nil }

// promise notes what an elastic slice may ever be given, or says why that is too much. Called in its turn, before it is registered.
func (s *slice) promise(limit *admission.User) error {
	switch {
	case s.e.options.Checkpoint == nil:
		return api.Errorf(api.CodeBadRequest, "slice %s cannot be elastic: this enforcer serves its own sessions only, gpusliced can", s.id())
	case s.e.truth == nil:
		return api.Errorf(api.CodeBadRequest, "slice %s cannot be elastic: without NVML free device memory is unknown (%s)", s.id(), s.e.options.NoTruth)
	}
	return s.e.book.Promise(admission.Ask{Holder: s.holder, Bytes: s.quota.Commitment(), User: limit})
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

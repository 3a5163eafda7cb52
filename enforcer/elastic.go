// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// This file has core know what the processes of elastic slices do; core decides which slices are on the devices, and which in host memory. A slice's memory
// is moved as a whole (move.go). Its processes pass a gate at each driver call (interceptor/gate.h): they count calls under way in their lanes,
// and while the gate is shut they wait and request the slice's return. The gate is shut exactly while the slice is suspended, or on the way.
//
// An elastic slice begins evicted and empty. While it is resident all its quotas count in admission, so the memory on a device never exceeds its
// capacity. If a returning slice finds no room, others are evicted: lower priorities first, then the longest idle. A slice stays for MinResident after
// its last call. A slice that is never idle can be evicted after Quantum, if its priority is not higher; a call that does not end then waits
// in the driver, and counts as a request for the return. Once a waiter has waited for Quantum, none behind it returns to its devices: otherwise
// smaller slices would take each part of its room when that becomes free.

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

// elasticPace is the time between looks at what elastic slices have done.
const elasticPace = 20 * time.Millisecond

// obstacleLasts is the time before another attempt to evict a slice that could not be moved. Tests shorten it.
var obstacleLasts = 10 * time.Second

// returnPatience limits the wait of one request. It is shorter than the process's timeout, ASK_SECONDS in attach_client.h. Tests shorten it.
var returnPatience = 3 * time.Second

// evicted maps the states of a suspension to those of an elastic slice.
var evicted = map[api.State]api.State{api.Suspending: api.Evicting, api.Suspended: api.Evicted, api.Resuming: api.Returning}

// residency is what the host knows of an elastic slice; core has its turns. Guarded by the slice's mu.
type residency struct {
	back  chan struct{} // closed at its return; nil while it is on its devices
	calls uint64        // number made by its processes, when last read

	obstacle string // why it could not be moved, as logged last
}

// beElastic initializes an elastic slice. Called before the slice is registered.
func (s *slice) beElastic() {
	if !s.request.Elastic {
		return
	}
	s.residency = new(residency)
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
	switch {
	case away && r.back == nil:
		r.back = make(chan struct{})
		r.calls, _ = s.gated() // later calls wait at the gate
		s.e.gates.Ring()
	case !away && r.back != nil:
		close(r.back)
		r.back = nil
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
	s.mu.Unlock()
	s.e.consult(nil, func(a *core.Accounts) { a.Do(core.AskReturn{ID: s.id()}) })
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

// runElastic has core know what elastic slices do until ctx ends.
func (e *Enforcer) runElastic(ctx context.Context) {
	defer context.AfterFunc(ctx, e.gates.Ring)()
	// A slice that is idle for MinResident is to be found soon after.
	period := max(elasticPace, min(e.options.Interval, e.options.Elastic.MinResident/2))
	for ctx.Err() == nil {
		e.gates.Reset()
		for _, s := range e.elasticOnes() {
			s.attend(&e.gates) // before observeAll: a request is seen there, or ends the wait
		}
		e.observeAll()
		time.Sleep(elasticPace)
		e.gates.Wait(period, elasticPace)
	}
}

// observeAll has core know what elastic slices have done until now. Core returns those that wait, and evicts others for them. One goroutine observes at a
// time: a call that another has seen and not told core yet would be missed.
func (e *Enforcer) observeAll() {
	all := e.elasticOnes()
	if len(all) == 0 || !e.movesElastic() {
		return
	}
	e.observing.Wait()
	defer e.observing.Give()
	acts := make([]core.Activity, 0, len(all))
	for _, s := range all {
		acts = append(acts, s.observe())
	}
	e.consult(nil, func(a *core.Accounts) { a.Observe(acts) })
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

// observe reports whether the slice's processes have made calls since the last time, or are in one. For an evicted slice either is a request for its
// return: a process at the gate counts a call with each request.
func (s *slice) observe() core.Activity {
	s.mu.Lock()
	defer s.mu.Unlock()
	act := core.Activity{Holder: s.holder}
	if s.quota.State != api.Active || s.quota.Ledger == nil {
		return act
	}
	made, underWay := s.gated()
	r := s.residency
	if calls := made > r.calls; r.back == nil {
		act.Active = calls || underWay > 0
	} else {
		act.Asks = calls || underWay > 0 && s.suspension != nil && s.suspension.State != api.Suspending
	}
	r.calls = made // less than before if a process has ended
	return act
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

// showElastic fills in the elastic part of a slice. Called with mu held.
func (s *slice) showElastic(shown *api.Slice) {
	if s.residency == nil {
		return
	}
	var w core.Waiting
	s.e.book.Do(func(a *core.Accounts) {
		a.At(s.e.now())
		w = a.Waiting(s.holder)
	})
	e := &api.Elastic{Priority: s.request.Priority, Evictions: w.Evictions, Waited: w.Waited, Obstacle: w.Obstacle}
	if w.Leaves && shown.State == api.Evicted { // core learns now that it has left
		shown.State, shown.Reason = api.Evicting, ""
	}
	switch {
	case w.Since == 0:
	case s.residency.back == nil: // it is back, and core learns that now
		e.Obstacle = ""
	default:
		since := time.Now().UTC().Add(w.Since - s.e.now())
		e.Waits = &since
	}
	if s.quota.State == api.Active {
		e.Idle = max(0, w.Idle)
	}
	shown.Elastic = e
}

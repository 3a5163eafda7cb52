// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"maps"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// What a suspended slice is to the rest. Its processes' memory is in host memory by the driver's checkpoint (move.go). Their lanes stay as they are;
// what they are charged for is on no device (quota.SendAway), so samples expect nothing of them, others may have it in the pools, and admission counts
// the slice for nothing. Its quotas stay on record. No process attaches meanwhile: it could take what others were given.
//
// The store knows before anything is done: that processes are about to be moved, that they are away, and that they are about to come back. An enforcer
// that finds the first or the last asks the driver how far each process is, and brings all of them back; it finds the room as its predecessor had
// it, since a slice counts for all of its quotas but while it is Suspended.

// isAway says whether the slice's memory is off its devices, so that others may have its room. Called with mu held, or before anybody knows the slice.
func (s *slice) isAway() bool { return s.suspension != nil && s.suspension.State == api.Suspended }

// unsuspended is why something cannot be done with a slice that is suspended, or on the way; nil if it is not. Called with mu held.
func (s *slice) unsuspended() error {
	if s.suspension == nil {
		return nil
	}
	return api.Errorf(api.CodeBadRequest, "slice %s is %s: `gpuslice resume %s` brings its memory back, after which this can be done", s.id(), s.suspension.State, s.id())
}

// setSuspension is called in the slice's turn; nil is of a slice that goes on. From the moment that it is away the books say that its processes hold
// what they have left, and others get the rest.
func (s *slice) setSuspension(to *store.Suspension) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.suspension = to
	if s.isAway() {
		s.markAway(to.Processes)
		s.recommit()
		s.wantNative()
	}
	s.turnGate()
}

// isEvicted says whether it is away, and comes back when a process asks.
func (s *slice) isEvicted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isAway() && s.suspension.Evicted
}

// comesBack says whether one that is away comes back when a process asks, or by hand alone. Called in the slice's turn.
func (s *slice) comesBack(evicted bool) error {
	s.mu.Lock()
	to := s.suspension
	if !s.isAway() || to.Evicted == evicted {
		s.mu.Unlock()
		return nil
	}
	other := *to
	other.Evicted = evicted
	record := s.stored()
	s.mu.Unlock()
	record.Suspended = &other
	if err := s.e.store.PutSlice(record); err != nil {
		return err
	}
	s.mu.Lock()
	s.suspension = &other
	s.mu.Unlock()
	return nil
}

// keepAway has one that is evicted be suspended, and its processes move what they had left on the devices. Called in the slice's turn.
func (s *slice) keepAway() error {
	if err := s.comesBack(false); err != nil {
		return err
	}
	if err := s.leaveLess(nil, false); err != nil {
		s.log.Error("what the suspended slice has left on its devices stays there", "why", err)
	}
	s.tell(api.Event{Kind: api.EventSuspended})
	return nil
}

// storeSuspension has the store know first. Called in the slice's turn.
func (s *slice) storeSuspension(to *store.Suspension) error {
	record := s.storedNow()
	if to != nil && record.Suspended != nil {
		to.Evicted = record.Suspended.Evicted
	}
	record.Suspended = to
	if err := s.e.store.PutSlice(record); err != nil {
		return err
	}
	s.setSuspension(to)
	return nil
}

// sentAway has the driver's own limits follow. Called in the slice's turn, once it is away.
func (s *slice) sentAway() {
	s.e.reachNative(s.cgroup)
	killpoint.Pass("move.away")
}

// markAway is called with mu held.
func (s *slice) markAway(processes []store.Moved) {
	for _, p := range processes {
		l := s.quota.Of(p.PID)
		if l == nil || l.Process.Start != p.Start {
			continue
		}
		s.quota.SendAway(l, p.Left)
		for _, pool := range s.pools {
			if pool.asked.Elastic {
				continue
			}
			if err := pool.onLane(p.PID, pool.quota.Suspend); err != nil {
				s.log.Error("a suspended process counts in its pool still", "pool", pool.name, "pid", p.PID, "err", err)
			}
		}
	}
}

// takeBack has the books count what the slice is about to hold again: its quotas on all devices, and in its pools what its processes held
// there; all of it or nothing. It counts already if the slice was not Suspended. Called in the slice's turn.
func (s *slice) takeBack(processes []store.Moved, admit func(map[string]uint64) error) (undo func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts() {
		if err := admit(s.quota.Commitment()); err != nil {
			return nil, err
		}
	} else if err := s.admitInPools(); err != nil {
		return nil, err
	}
	var back []store.Moved
	undo = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.isAway() {
			s.markAway(back)
			s.recommit()
		}
	}
	for _, p := range processes {
		if err := resumeIn(s.pools, p.PID); err != nil {
			if s.isAway() {
				s.markAway(back)
				s.recommit()
			}
			return nil, api.Errorf(api.CodeQuotaExceeded, "slice %s needs back what it held of the quota of pool %s, and others of the pool use that: resume it when they use less (`gpuslice ps --filter pool=%s`)",
				s.id(), s.request.Pools, s.pools[0].name)
		}
		back = append(back, p)
	}
	return undo, nil
}

// resumeIn has these pools, or none of them, count again what a process that was away is charged for. A pool's lock is not taken while another's is held.
func resumeIn(pools []*pool, pid int) error {
	var resumed []*pool
	for _, p := range pools {
		err := p.onLane(pid, func(l *quota.Lane) error {
			was, err := p.quota.Resume(l)
			if was {
				resumed = append(resumed, p)
			}
			return err
		})
		if err != nil {
			for _, p := range resumed {
				_ = p.onLane(pid, p.quota.Suspend) // what fails here is seen by the next check
			}
			return err
		}
	}
	return nil
}

// bringBack has samples expect the slice's memory on the devices, before it is there, and the driver allow it. Called in the slice's turn.
func (s *slice) bringBack() {
	s.mu.Lock()
	s.quota.BringBack()
	s.recommit()
	s.wantNative()
	s.mu.Unlock()
	s.e.reachNative(s.cgroup)
}

// tellMoved tells that the memory of the slice's processes is away, or back, and how long that took.
func (s *slice) tellMoved(kind api.EventKind, processes []store.Moved, took time.Duration) {
	sums := make(map[string]uint64)
	for _, p := range processes {
		for uuid := range p.Bytes {
			sums[uuid] += onHost(p)[uuid]
		}
	}
	if len(sums) == 0 {
		s.tell(api.Event{Kind: kind})
	}
	for _, uuid := range slices.Sorted(maps.Keys(sums)) {
		s.tell(api.Event{Kind: kind, Device: uuid, Bytes: sums[uuid]})
		s.log.Info("the slice's memory was moved", "what", kind, "device", uuid, "bytes", sums[uuid], "took", took.Round(time.Millisecond))
	}
}

// recallSuspension goes on with what the predecessor has left of a suspension. Called while the slice is taken up, in its turn.
func (s *slice) recallSuspension() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turnGate()
	switch {
	case s.suspension == nil || s.quota.State != api.Active:
	case s.isAway():
		s.markAway(s.suspension.Processes)
		s.recommit()
	default:
		s.e.ends.Go(func() { s.e.bringBackLeft(s) })
	}
}

// bringBackLeft brings back what the predecessor was moving when it ended.
func (e *Enforcer) bringBackLeft(s *slice) {
	if !e.waitFor(s) {
		return
	}
	defer s.turn.Give()
	err := s.resumeAll(s.admit)
	if err != nil {
		s.log.Error("the memory that was being moved when the enforcer ended is not on the devices again", "err", err)
		return
	}
	s.log.Info("the memory that was being moved when the enforcer ended is on the devices again")
}

// showSuspension is called with mu held.
func (s *slice) showSuspension(shown *api.Slice) {
	if s.suspension == nil || shown.State != api.Active && shown.State != api.Frozen {
		return
	}
	shown.State, shown.Reason = s.suspension.State, s.suspension.Reason
	until := "until it is resumed"
	if s.suspension.Evicted {
		shown.State, until = evicted[shown.State], "until there is room for it: the next of them asks for that"
	}
	if shown.Reason == "" && s.isAway() {
		shown.Reason = "its memory is in host memory, and its processes' CUDA calls wait, " + until
	}
}

// left is what the processes of a slice that is away still hold on each device. Called with mu held, or before anybody knows the slice.
func (s *slice) left() map[string]uint64 {
	sums := make(map[string]uint64)
	for _, p := range s.suspension.Processes {
		if l := s.quota.Of(p.PID); s.quota.Ledger != nil && (l == nil || l.Process.Start != p.Start) { // it has ended
			continue
		}
		for uuid, bytes := range p.Left {
			sums[uuid] += bytes
		}
	}
	return sums
}

// leftSuspended is one of the slice's processes that was suspended and is alive; 0 if there is none.
func (s *slice) leftSuspended() int {
	s.mu.Lock()
	was := s.suspension
	s.mu.Unlock()
	if was == nil {
		return 0
	}
	all := again(was.Processes)
	defer closeAll(all)
	for _, p := range all {
		if p.handle.Alive() {
			return p.PID
		}
	}
	return 0
}

// again takes hold of those of the processes that are alive.
func again(processes []store.Moved) (all []*moved) {
	for _, p := range processes {
		if handle, err := process.Again(p.PID, p.Start); err == nil {
			all = append(all, &moved{Moved: p, handle: handle})
		}
	}
	return all
}

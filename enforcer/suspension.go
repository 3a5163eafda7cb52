// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// This file is about what a suspended slice means to the rest of the enforcer. Its memory is in host memory (package mover). Its lanes stay, but their
// charges are on no device (quota.SendAway): samples expect nothing of its processes, others may use the memory in the pools, and admission counts
// only what it has left. Its quotas stay on record. No process can attach, since it could allocate what others were granted.
//
// Each state is stored before it begins: suspending, suspended, resuming. An enforcer that finds the first or the last reads each process's state
// from the driver, and brings all of them back. The room is still there: a slice counts for all its quotas in every state but Suspended.

// isAway reports whether the slice's memory is off its devices, so that others may use the room. Called with mu held, or before the slice is
// registered.
func (s *slice) isAway() bool { return s.suspension.Away() }

// unsuspended returns an error if the slice is suspended, or on the way. Called with mu held.
func (s *slice) unsuspended() error {
	if s.suspension == nil {
		return nil
	}
	return api.Errorf(api.CodeBadRequest, "slice %s is %s: `gpuslice resume %s` brings its memory back: do that first", s.id(), s.suspension.State, s.id())
}

// setSuspension sets the slice's suspension; nil ends it. A suspended slice counts only for what it has left on its devices. Called in the slice's
// turn.
func (s *slice) setSuspension(to *store.Suspension) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.suspension = to
	if s.isAway() {
		s.markAway(to.Processes)
		s.wantNative()
	}
	s.turnGate()
}

// storePlace notes for core the residence and the bytes beyond the limits. The durable states of a move are stored by the move itself (move.go), and the
// bytes are in the ledger (recount).
func (s *slice) storePlace(r *core.Record) error {
	s.mu.Lock()
	now := s.suspension
	turns := r.Residence != core.Resident && s.isAway() && now.Evicted == r.Manual // from evicted to suspended, or the reverse
	switch {
	case r.Residence == core.Leaving:
		s.suspension = &store.Suspension{State: api.Suspending, Evicted: !r.Manual}
		s.turnGate()
	case turns:
		other := *now
		other.Evicted, now = !r.Manual, &other
	}
	s.mu.Unlock()
	if turns {
		record := s.storedNow()
		record.Suspended = now
		if err := s.e.store.PutSlice(record); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec = *r; turns {
		if s.suspension = now; r.Manual { // to be told, though nothing was moved
			s.moved = new(moved)
		}
	}
	return nil
}

// storeSuspension stores a suspension, then sets it. Called in the slice's turn.
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

// sentAway adjusts the driver's limits to a slice that is off its devices. Called in the slice's turn.
func (s *slice) sentAway() {
	s.e.reachNative(s.group.Cgroup)
	killpoint.Pass("move.away")
}

// markAway takes the processes' charges off the devices, in the slice and in its pools. Called with mu held.
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
				s.log.Error("suspended process still counts in its pool", "pool", pool.name, "pid", p.PID, "err", err)
			}
		}
	}
}

// takeBack counts the processes' charges in the slice's pools again, or none of them.
func (s *slice) takeBack(processes []store.Moved) (undo func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var back []store.Moved
	revert := func() {
		if s.isAway() {
			s.markAway(back)
		}
	}
	for _, p := range processes {
		if err := resumeIn(s.pools, p.PID); err != nil {
			revert()
			return nil, api.Errorf(api.CodeQuotaExceeded, "slice %s needs the part of pool %s's quota that it held, which other members now use: resume it when they use less (`gpuslice ps --filter pool=%s`)",
				s.id(), s.request.Pools, s.pools[0].name)
		}
		back = append(back, p)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		revert()
	}, nil
}

// resumeIn counts a suspended process's charges again in all of these pools, or in none. No two pools' locks are held at a time.
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
				_ = p.onLane(pid, p.quota.Suspend) // the next check finds a failure here
			}
			return err
		}
	}
	return nil
}

// bringBack has samples expect the slice's memory on the devices, and the driver allow it, before the memory returns. Called in the slice's turn.
func (s *slice) bringBack() {
	s.mu.Lock()
	s.quota.BringBack()
	s.wantNative()
	s.mu.Unlock()
	s.e.reachNative(s.group.Cgroup)
}

// moved is a move of which the event is not told yet.
type moved struct {
	processes []store.Moved
	took      time.Duration
}

// tellMoved appends the event of the last move, with the bytes and the time that it took. An attempt that moved nothing has no event.
func (s *slice) tellMoved(event api.Event) {
	m := s.moved
	if s.moved = nil; m == nil {
		return
	}
	sums := make(map[string]uint64)
	for _, p := range m.processes {
		for uuid := range p.Bytes {
			sums[uuid] += p.OnHost()[uuid]
		}
	}
	if len(sums) == 0 {
		s.tell(event)
	}
	for _, uuid := range slices.Sorted(maps.Keys(sums)) {
		event.Device, event.Bytes = uuid, sums[uuid]
		s.tell(event)
		s.log.Info("slice's memory moved", "what", event.Kind, "device", uuid, "bytes", sums[uuid], "took", m.took.Round(time.Millisecond))
	}
}

// recallSuspension continues a suspension that the former enforcer left. Called in the slice's turn, during restore.
func (s *slice) recallSuspension() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turnGate()
	switch {
	case s.suspension == nil || s.quota.State != api.Active:
	case s.isAway():
		s.markAway(s.suspension.Processes)
	default:
		s.e.ends.Go(func() { s.e.bringBackLeft(s) })
	}
}

// bringBackLeft brings back the memory that the former enforcer was moving when it ended.
func (e *Enforcer) bringBackLeft(s *slice) {
	if !e.waitFor(s) {
		return
	}
	defer s.turn.Give()
	err := e.ask(s, func(client uint64) core.Command { return core.Resume{Client: client, ID: s.id()} })
	if err != nil {
		s.log.Error("memory not returned after an interrupted move", "err", err)
		return
	}
	s.log.Info("memory returned after an interrupted move")
}

// showSuspension fills in the state of a suspended slice. Called with mu held.
func (s *slice) showSuspension(shown *api.Slice) {
	if s.suspension == nil || shown.State != api.Active && shown.State != api.Frozen {
		return
	}
	shown.State, shown.Reason = s.suspension.State, s.suspension.Reason
	until := "until it is resumed"
	if s.suspension.Evicted {
		shown.State, until = evicted[shown.State], "until there is room for it: the next call requests that"
	}
	if shown.Reason == "" && s.isAway() {
		shown.Reason = s.whereItIs() + ", and its processes' CUDA calls wait, " + until
	}
}

// whereItIs says where a suspended slice's memory is. Called with mu held.
func (s *slice) whereItIs() string {
	for i := range s.quota.Devices {
		if s.quota.Ledger != nil && s.quota.Away(i) > 0 {
			return "its memory is in host memory"
		}
	}
	if len(s.left()) > 0 {
		return "its memory is still on its devices, since nothing has needed the room"
	}
	return "it holds no memory"
}

// left returns what the processes of a suspended slice still hold on each device. Called with mu held, or before the slice is registered.
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

// leftSuspended returns a living process of the slice that was suspended; 0 if there is none.
func (s *slice) leftSuspended() int {
	s.mu.Lock()
	was := s.suspension
	s.mu.Unlock()
	if was == nil {
		return 0
	}
	for _, p := range was.Processes {
		if handle, err := process.Again(p.PID, p.Start); err == nil {
			handle.Close()
			return p.PID
		}
	}
	return 0
}

// Suspended, Owns and HoldersOn are of mover.Owner. Suspended is called with mu held.
func (s *slice) Suspended() *store.Suspension { return s.suspension }

func (s *slice) Owns(pid int) bool { return s.e.owner(pid) == s }

// named is the number of holders that a refusal names.
const named = 3

// HoldersOn describes the largest holders of a device among those that the slice's user may know.
func (s *slice) HoldersOn(uuid string) string {
	listed, err := s.e.truth.Processes(uuid)
	if err != nil {
		return ""
	}
	of := make(map[string]uint64)
	var unnamed uint64
	for pid, bytes := range listed {
		if bytes == driver.Unknown {
			continue
		}
		holder, who := (*admission.Holder)(nil), fmt.Sprintf("process %d (%s) outside slices", pid, process.Name(pid))
		if other := s.e.owner(pid); other != nil {
			holder, who = other.holder, other.holder.Name
		}
		if s.holder.UID != nil && (holder == nil || !s.holder.MayKnow(holder)) && !s.holder.MayKnow(&admission.Holder{}) {
			unnamed += bytes
		} else {
			of[who] += bytes
		}
	}
	names := slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b)) })
	var said []string
	for i, who := range names {
		if i < named {
			said = append(said, who+" holds "+api.FormatSize(of[who]))
		} else {
			unnamed += of[who]
		}
	}
	if unnamed > 0 {
		said = append(said, "others "+api.FormatSize(unnamed))
	}
	if len(said) == 0 {
		return ""
	}
	return " (" + strings.Join(said, ", ") + ")"
}

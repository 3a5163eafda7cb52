// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/store"
	"github.com/gpuslice/gpuslice/hostmem"
)

// This file has a process of an elastic slice move its memory itself, at several times the speed of the driver's checkpoint. A thread of its
// interceptor obeys a word in the process's lane (struct ledger_move), and writes there where the memory is. The context and small allocations stay
// on the devices (store.Moved.Left). If another slice needs that room, the driver moves them, too (leaveNothing).
//
// The word is the only record of such a move, so it outlives the enforcer. It is the process's own claim, so the driver's list decides what is left. A
// process that cannot or will not move, does not answer, or leaves too much, is left to the driver. A process that finds no room at its return is
// not lost: it is requested to move away again. If it does not, it counts as away, and what the driver lists for it counts as left.
//
// A process keeps its host memory for the next move while the host has plenty: in the operator's cgroup (hostcgroup.go), or in its own cgroup if
// nothing limits that.

// Variables, since tests use shorter times.
var (
	// lockPatience limits the wait until a process's work has ended. If it has more to do, the driver locks it.
	lockPatience = 5 * time.Second
	// answerPatience limits what a process does at once, and is added to the time for moving bytes.
	answerPatience = 10 * time.Second
	// ownSlowest is the least number of bytes that a process moves in a second. The move of one large block shows no progress in between.
	ownSlowest = uint64(slowest)
	// mutePatience limits the wait for a process that did not answer the last time.
	mutePatience = time.Second
)

const (
	wordPace = time.Millisecond
	// mayLeave: a process may leave 1/mayLeave of its memory on the devices, and residue.
	mayLeave = 4
	// hostPlenty: processes keep host memory while 1/hostPlenty of the host's is available.
	hostPlenty = 8
)

// places maps states of the checkpoint to those of a process that moves its memory itself.
var places = map[checkpoint.State]ledger.Place{
	checkpoint.Running: ledger.Running, checkpoint.Locked: ledger.Locked, checkpoint.Checkpointed: ledger.Aside,
}

// mover returns the lane of a process that may move itself; nil if its slice is not elastic, or it has ended. Called with mu held.
func (s *slice) mover(p store.Process) *quota.Lane {
	l := s.quota.Of(p.PID)
	if s.residency == nil || s.quota.Ledger == nil || l == nil || l.Process.Start != p.Start {
		return nil
	}
	return l
}

// word returns the process's claim about its memory, and whether it can move it at all.
func (s *slice) word(p *moved) (m ledger.Move, can bool) {
	s.onLane(p, func(l *quota.Lane) { m = s.quota.Ledger.MoveOf(l.Number) })
	return m, m.Is != ledger.PlaceUnknown
}

// itself returns the state of a process that is moving its memory itself, or has moved it; false for others.
func (s *slice) itself(p *moved) (state checkpoint.State, is bool) {
	switch m, _ := s.word(p); {
	case m.Is == ledger.Aside, m.Is == ledger.Between:
		return checkpoint.Checkpointed, true
	case m.Is == ledger.Locked, m.Is == ledger.Running && (m.Wanted() == ledger.Locked || m.Wanted() == ledger.Aside): // or about to be
		return checkpoint.Locked, true
	}
	return checkpoint.Running, false
}

// goes requests that a process move its memory to a place, and waits until it has. The error says why it has not.
func (s *slice) goes(p *moved, to ledger.Place, patience time.Duration) error {
	s.mu.Lock()
	l := s.mover(p.Process)
	if l == nil {
		s.mu.Unlock()
		return nil
	}
	if m := s.quota.Ledger.MoveOf(l.Number); m.Answered == m.Want {
		l.Mute = false
	}
	if l.Mute {
		patience = mutePatience
	}
	want := s.quota.Ledger.SetWant(l.Number, to)
	s.mu.Unlock()
	answered := func(m ledger.Move) error {
		there := m.Is == to || to == ledger.Bare && m.Is == ledger.Running
		if there && m.Failure == ledger.MoveDone {
			return nil
		}
		var why any = m.Failure
		s.onLane(p, func(l *quota.Lane) {
			if m.Failure == ledger.MoveHost && l.NoHost != nil {
				why = l.NoHost
			}
		})
		return api.Errorf(api.CodeInternal, "slice %s: process %d (%s) does not move its memory itself: %v", s.id(), p.PID, process.Name(p.PID), why)
	}
	return s.longAs(p, func() error {
		for deadline := time.Now().Add(patience); ; time.Sleep(wordPace) {
			m, _ := s.word(p)
			late := time.Now().After(deadline)
			switch {
			case !p.handle.Alive():
				return nil
			case m.Answered == want:
				s.isMute(p, false)
				return answered(m)
			case s.e.ending.Load():
				return ErrClosed
			case late:
				s.isMute(p, true)
				return api.Errorf(api.CodeInternal, "slice %s: process %d (%s) does not move its memory itself: no answer in %s", s.id(), p.PID, process.Name(p.PID), patience)
			}
		}
	})
}

// ownTime limits the time in which a process moves its memory.
func ownTime(p *moved) time.Duration {
	return answerPatience + time.Duration(sum(p.Bytes)/ownSlowest)*time.Second
}

// onLane calls do with the lane of a process that may move itself, if it has one, and mu held.
func (s *slice) onLane(p *moved, do func(*quota.Lane)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.mover(p.Process); l != nil {
		do(l)
	}
}

func (s *slice) isMute(p *moved, mute bool) {
	s.onLane(p, func(l *quota.Lane) { l.Mute = mute })
}

// lock stops a process's work on its devices: by the process itself if it can, else by the driver.
func (s *slice) lock(p *moved) error {
	if _, can := s.word(p); can && !p.byDriver && p.handle.Alive() {
		s.mayStay(p)
		err := s.goes(p, ledger.Locked, lockPatience)
		if err == nil || errors.Is(err, ErrClosed) {
			return err
		}
		return s.leaveLocked(p, err)
	}
	return s.bring(p, checkpoint.Locked)
}

// leaveToDriver has a process bring back what it moved, and then treats it as unable to move itself; why is the reason.
func (s *slice) leaveToDriver(p *moved, why error) error {
	s.log.Info("process's memory left to the driver", "pid", p.PID, "why", why)
	p.byDriver, p.stay = true, nil
	to, patience := ledger.Bare, ownTime(p)
	if m, _ := s.word(p); m.Is == ledger.Running { // it has nothing to bring back, and frees no host memory while the gate is shut
		to, patience = ledger.Running, mutePatience
	}
	err := s.goes(p, to, patience)
	if _, itself := s.itself(p); itself || errors.Is(err, ErrClosed) {
		return errors.Join(why, err)
	}
	if to == ledger.Bare {
		s.keeps(p, 0)
		s.e.takeBackHost(hostmem.Process{PID: p.PID, Start: p.Start}, func() bool { // the slice's turn is held, so the process gets no other request in between
			m, _ := s.word(p)
			return m.Is == ledger.Running
		})
	}
	return s.unlocked(p)
}

// leaveLocked is leaveToDriver for a process that is to be locked.
func (s *slice) leaveLocked(p *moved, why error) error {
	if err := s.leaveToDriver(p, why); err != nil {
		return err
	}
	return s.bring(p, checkpoint.Locked)
}

// bringItself is bring for a process that moves its memory itself.
func (s *slice) bringItself(p *moved, to checkpoint.State) error {
	if m, _ := s.word(p); m.Is == places[to] && m.Wanted() == places[to] && m.Answered == m.Want {
		return nil
	}
	if p.ByDriver && to != checkpoint.Checkpointed {
		if err := s.takeFromDriver(p); err != nil {
			return err
		}
	}
	return s.goes(p, places[to], ownTime(p))
}

// share divides the bytes that may stay on each device among the processes that move themselves, in their order.
func (s *slice) share(all []*moved, stay map[string]uint64) {
	rest := make(map[string]uint64)
	maps.Copy(rest, stay)
	for _, p := range all {
		p.stay = make(map[string]uint64)
		if _, can := s.word(p); !can || p.byDriver {
			continue
		}
		for uuid, bytes := range p.Bytes {
			p.stay[uuid] = min(bytes, rest[uuid])
			rest[uuid] -= p.stay[uuid]
		}
	}
}

// goes returns the most bytes of the process that are moved.
func (p *moved) goes() (bytes uint64) {
	if p.byDriver {
		return sum(p.Bytes)
	}
	for uuid, held := range p.Bytes {
		bytes += held - min(held, p.stay[uuid])
	}
	return bytes
}

// mayStay writes to the ledger what the process may leave on each device in its next move.
func (s *slice) mayStay(p *moved) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quota.Ledger == nil {
		return
	}
	for i, d := range s.quota.Devices {
		s.quota.Ledger.SetStay(i, p.stay[d.Name])
	}
	s.quota.Ledger.SetKeep(math.MaxUint64)
}

// moveAside moves a locked process's memory away: by the driver, if the process does not.
func (s *slice) moveAside(p *moved) error {
	_, itself := s.itself(p)
	s.mayStay(p)
	err := s.bring(p, checkpoint.Checkpointed)
	if itself && err == nil {
		err = s.leftLittle(p)
	}
	if !itself || err == nil || errors.Is(err, ErrClosed) {
		return err
	}
	if err := s.leaveToDriver(p, err); err != nil {
		return err
	}
	if lacks := s.hostHasRoom([]*moved{p}); lacks != nil {
		return s.both(err, lacks)
	}
	if err := s.bring(p, checkpoint.Locked); err != nil {
		return err
	}
	return s.bring(p, checkpoint.Checkpointed)
}

// leftLittle checks by the driver that a process has moved its memory, as it claims.
func (s *slice) leftLittle(p *moved) error {
	left, err := s.noteLeft([]*moved{p})
	if err != nil {
		return err
	}
	if listed, held := sum(left[0]), sum(p.Bytes); listed > max(held/mayLeave, sum(p.stay))+residue && p.handle.Alive() {
		return api.Errorf(api.CodeInternal, "slice %s: process %d (%s) claims to have moved its memory, but the driver still lists %s of %s for it",
			s.id(), p.PID, process.Name(p.PID), api.FormatSize(listed), api.FormatSize(held))
	}
	s.keeps(p, max(s.kept(p), sum(p.OnHost())))
	return nil
}

// takeFromDriver brings back what the driver has moved. The process can then move the rest itself.
func (s *slice) takeFromDriver(p *moved) error {
	state, err := s.driverState(p)
	if err != nil {
		return s.cannot(err)
	}
	if state == checkpoint.Checkpointed {
		if err := s.bringByDriver(p, checkpoint.Locked); err != nil {
			return err
		}
	}
	return s.bringByDriver(p, checkpoint.Running)
}

// leaveLess has the processes of a slice that is off its devices move more of what they left there, to make room for others. If they have nothing
// more to move, and byDriver is set, the driver moves the rest. Called in the slice's turn.
func (s *slice) leaveLess(stay map[string]uint64, byDriver bool) error {
	s.mu.Lock()
	was := s.suspension
	nothing := was == nil || !s.isAway() || len(s.left()) == 0
	s.mu.Unlock()
	if nothing {
		return nil
	}
	all := again(was.Processes)
	defer closeAll(all)
	defer s.hasMoved()
	less, err := s.moveMore(all, stay)
	if err == nil && !less && byDriver {
		err = s.leaveNothing(all, was)
	}
	if err != nil {
		return err
	}
	if err := s.storeSuspension(&store.Suspension{State: was.State, Processes: records(all), Spare: s.spare(all), Reason: was.Reason}); err != nil {
		return err
	}
	s.sentAway()
	return nil
}

// leftOf returns the part of a process's memory that it has left on the devices, as a move of its own.
func leftOf(p *moved) *moved {
	return &moved{Moved: store.Moved{Process: p.Process, Bytes: p.Left}, handle: p.handle, inUse: sum(p.OnHost())}
}

// moveMore has the processes that left memory they can move leave less, and reports whether they did.
func (s *slice) moveMore(all []*moved, stay map[string]uint64) (less bool, err error) {
	var still []*moved
	before := uint64(0)
	for _, p := range all {
		if _, itself := s.itself(p); itself && !p.ByDriver {
			still, before = append(still, leftOf(p)), before+sum(p.Left)
		}
	}
	s.share(still, stay)
	if err := s.bothFit(still); err != nil {
		return false, err
	}
	for _, p := range still {
		s.mayStay(p)
		if err := s.goes(p, ledger.Aside, ownTime(p)); errors.Is(err, ErrClosed) {
			return false, err
		}
	}
	if err := s.renoteLeft(all); err != nil {
		return false, err
	}
	after := uint64(0)
	for _, p := range all {
		after += sum(p.Left)
	}
	return after+residue < before, nil
}

// leaveNothing has the driver move what the processes that moved themselves have left.
func (s *slice) leaveNothing(all []*moved, was *store.Suspension) error {
	var still []*moved
	for _, p := range all {
		_, p.ByDriver = s.itself(p)
		one := leftOf(p)
		one.byDriver = true
		still = append(still, one)
	}
	if err := s.bothFit(still); err != nil {
		return err
	}
	if err := s.storeSuspension(&store.Suspension{State: was.State, Processes: records(all), Spare: was.Spare, Reason: was.Reason}); err != nil {
		return err
	}
	var errs []error
	for _, p := range all {
		if !p.ByDriver {
			continue
		}
		err := s.bringByDriver(p, checkpoint.Locked)
		if err == nil {
			err = s.bringByDriver(p, checkpoint.Checkpointed)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(append(errs, s.renoteLeft(all))...); err != nil {
		return err
	}
	for _, p := range all {
		if len(p.Left) > 0 {
			return api.Errorf(api.CodeInternal, "slice %s: the driver has checkpointed process %d, but still lists %s for it", s.id(), p.PID, api.FormatSize(sum(p.Left)))
		}
	}
	return nil
}

// noteLeft records what processes that move themselves hold on the devices now, and returns the bytes of each process.
func (s *slice) noteLeft(all []*moved) ([]map[string]uint64, error) {
	now := make([]*moved, len(all))
	for i, p := range all {
		now[i] = &moved{Moved: p.Moved, handle: p.handle}
	}
	if _, err := s.measure(now); err != nil {
		return nil, err
	}
	left := make([]map[string]uint64, len(all))
	for i, p := range all {
		left[i], p.Left = now[i].Bytes, nil
		if _, itself := s.itself(p); itself {
			p.Left = maps.Clone(left[i])
			maps.DeleteFunc(p.Left, func(_ string, bytes uint64) bool { return bytes <= residue })
		}
	}
	return left, nil
}

// renoteLeft is noteLeft for processes off their devices, some of which may have come back in part. It does nothing if none of them moves itself.
func (s *slice) renoteLeft(away []*moved) (err error) {
	if slices.ContainsFunc(away, func(p *moved) bool { _, itself := s.itself(p); return itself }) {
		_, err = s.noteLeft(away)
	}
	return err
}

func sum(bytes map[string]uint64) (sum uint64) {
	for _, n := range bytes {
		sum += n
	}
	return sum
}

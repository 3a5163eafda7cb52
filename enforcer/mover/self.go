// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// A process of an elastic slice moves its memory itself, at several times the speed of the driver's checkpoint. A thread of its interceptor obeys a word
// in the process's lane (struct ledger_move), and writes there where the memory is. The context and small allocations stay on the devices
// (store.Moved.Left). If another slice needs that room, the driver moves them, too (Move.OutByDriver).
//
// The word is the only record of such a move, so it outlives the enforcer. It is the process's own claim, so the driver's list decides what is left. A
// process that cannot or will not move, does not answer, or leaves too much, is left to the driver. A process that finds no room at its return is
// not lost: it is requested to move away again. If it does not, it counts as away, and what the driver lists for it counts as left.

const (
	claimPace = time.Millisecond
	// leftShare: a process may leave 1/leftShare of its memory on the devices, and residue.
	leftShare = 4
)

// places maps states of the checkpoint to those of a process that moves its memory itself.
var places = map[checkpoint.State]ledger.Place{
	checkpoint.Running: ledger.Running, checkpoint.Locked: ledger.Locked, checkpoint.Checkpointed: ledger.Aside,
}

// lane returns the lane of a process that may move itself; nil if its slice is not elastic, or it has ended. Called with the lock held.
func (s *Slice) lane(p store.Process) *quota.Lane {
	l := s.Quota.Of(p.PID)
	if !s.Elastic || s.Quota.Ledger == nil || l == nil || l.Process.Start != p.Start {
		return nil
	}
	return l
}

// onLane calls do with the lane of the process, if it may move itself, and the lock held.
func (p *proc) onLane(do func(*quota.Lane)) {
	p.slice.locked(func() {
		if l := p.slice.lane(p.Process); l != nil {
			do(l)
		}
	})
}

// claim returns where the process's memory is by its own claim, and whether it can move it at all.
func (p *proc) claim() (c ledger.Move, can bool) {
	p.onLane(func(l *quota.Lane) { c = p.slice.Quota.Ledger.MoveOf(l.Number) })
	return c, c.Is != ledger.PlaceUnknown
}

// selfState returns the state of a process that is moving its memory itself, or has moved it; false for others.
func (p *proc) selfState() (state checkpoint.State, self bool) {
	switch c, _ := p.claim(); {
	case c.Is == ledger.Aside, c.Is == ledger.Between:
		return checkpoint.Checkpointed, true
	case c.Is == ledger.Locked, c.Is == ledger.Running && (c.Wanted() == ledger.Locked || c.Wanted() == ledger.Aside): // or about to be
		return checkpoint.Locked, true
	}
	return checkpoint.Running, false
}

func (p *proc) movesSelf() bool {
	_, self := p.selfState()
	return self
}

// request has the process move its memory to a place, and waits. It returns an error if the process does not move in time, or fails.
func (p *proc) request(to ledger.Place, patience time.Duration) error {
	var want uint8
	requested := false
	p.onLane(func(l *quota.Lane) {
		page := p.slice.Quota.Ledger
		if c := page.MoveOf(l.Number); c.Answered == c.Want {
			l.Mute = false
		}
		if l.Mute {
			patience = p.slice.mover.Silent
		}
		want, requested = page.SetWant(l.Number, to), true
	})
	if !requested {
		return nil
	}
	return p.slice.await(p, func() error {
		for deadline := time.Now().Add(patience); ; time.Sleep(claimPace) {
			c, _ := p.claim()
			late := time.Now().After(deadline)
			stopping := p.slice.mover.Stopping()
			switch {
			case !p.handle.Alive():
				return nil
			case c.Answered == want:
				return p.answered(to, c)
			case stopping != nil:
				return stopping
			case late:
				p.onLane(func(l *quota.Lane) { l.Mute = true })
				return p.notMoved(fmt.Sprintf("no answer in %s", patience))
			}
		}
	})
}

// answered returns an error if a process that has answered a request is elsewhere.
func (p *proc) answered(to ledger.Place, c ledger.Move) error {
	there := c.Is == to || to == ledger.Bare && c.Is == ledger.Running
	var why any = c.Failure
	p.onLane(func(l *quota.Lane) {
		l.Mute = false
		if c.Failure == ledger.MoveHost && l.NoHost != nil {
			why = l.NoHost
		}
	})
	if there && c.Failure == ledger.MoveDone {
		return nil
	}
	return p.notMoved(why)
}

func (p *proc) notMoved(why any) error {
	return api.Errorf(api.CodeInternal, "slice %s: %s does not move its memory itself: %v", p.slice.ID, p, why)
}

func (p *proc) moveTime() time.Duration {
	return p.slice.mover.Answer + time.Duration(sum(p.Bytes)/p.slice.mover.Slowest)*time.Second
}

// lock stops the process's work on its devices: by the process itself if it can, else by the driver.
func (p *proc) lock() error {
	if _, can := p.claim(); !can || p.toDriver || !p.handle.Alive() {
		return p.bring(checkpoint.Locked)
	}
	p.allowLeaving()
	err := p.request(ledger.Locked, p.slice.mover.Lock)
	if err == nil || p.slice.mover.stopped(err) {
		return err
	}
	return p.lockByDriver(err)
}

// leaveToDriver has the process bring back what it moved, and then treats it as unable to move itself; why is the reason.
func (p *proc) leaveToDriver(why error) error {
	s := p.slice
	s.Quota.Log.Info("process's memory left to the driver", "pid", p.PID, "why", why)
	p.toDriver, p.mayLeave = true, nil
	to, patience := ledger.Bare, p.moveTime()
	if c, _ := p.claim(); c.Is == ledger.Running { // it has nothing to bring back, and frees no host memory while the gate is shut
		to, patience = ledger.Running, s.mover.Silent
	}
	err := p.request(to, patience)
	if p.movesSelf() || s.mover.stopped(err) {
		return errors.Join(why, err)
	}
	if to == ledger.Bare {
		p.onLane(func(l *quota.Lane) { l.Kept = 0 })
		s.mover.takeBack(p.Process, func() bool { // the slice's turn is held, so the process gets no other request in between
			c, _ := p.claim()
			return c.Is == ledger.Running
		})
	}
	return p.driverCanMove()
}

// lockByDriver is leaveToDriver for a process that is to be locked.
func (p *proc) lockByDriver(why error) error {
	if err := p.leaveToDriver(why); err != nil {
		return err
	}
	return p.bring(checkpoint.Locked)
}

func (p *proc) bringBySelf(to checkpoint.State) error {
	if c, _ := p.claim(); c.Is == places[to] && c.Wanted() == places[to] && c.Answered == c.Want {
		return nil
	}
	if p.ByDriver && to != checkpoint.Checkpointed {
		if err := p.takeFromDriver(); err != nil {
			return err
		}
	}
	return p.request(places[to], p.moveTime())
}

// takeFromDriver brings back what the driver has moved. The process can then move the rest itself.
func (p *proc) takeFromDriver() error {
	state, err := p.driverState()
	if err != nil {
		return p.explain(err)
	}
	if state == checkpoint.Checkpointed {
		if err := p.bringByDriver(checkpoint.Locked); err != nil {
			return err
		}
	}
	return p.bringByDriver(checkpoint.Running)
}

// toMove returns the most bytes of the process that are moved.
func (p *proc) toMove() (bytes uint64) {
	if p.toDriver {
		return sum(p.Bytes)
	}
	for uuid, held := range p.Bytes {
		bytes += held - min(held, p.mayLeave[uuid])
	}
	return bytes
}

// allowLeaving writes to the ledger what the process may leave on each device in its next move.
func (p *proc) allowLeaving() {
	q := p.slice.Quota
	p.slice.locked(func() {
		if q.Ledger == nil {
			return
		}
		for i, d := range q.Devices {
			q.Ledger.SetStay(i, p.mayLeave[d.Name])
		}
		q.Ledger.SetKeep(math.MaxUint64)
	})
}

// moveAway moves the locked process's memory to the host: by the driver, if the process does not.
func (p *proc) moveAway() error {
	self := p.movesSelf()
	p.allowLeaving()
	err := p.bring(checkpoint.Checkpointed)
	if self && err == nil {
		err = p.leftLittle()
	}
	if !self || err == nil || p.slice.mover.stopped(err) {
		return err
	}
	if err := p.leaveToDriver(err); err != nil {
		return err
	}
	if lacks := p.slice.fitsHost([]*proc{p}); lacks != nil {
		return p.slice.noHostMemory(err, lacks)
	}
	if err := p.bring(checkpoint.Locked); err != nil {
		return err
	}
	return p.bring(checkpoint.Checkpointed)
}

// leftLittle checks by the driver that the process has moved its memory, as it claims.
func (p *proc) leftLittle() error {
	left, err := p.slice.recordLeft([]*proc{p})
	if err != nil {
		return err
	}
	if listed, held := sum(left[0]), sum(p.Bytes); listed > max(held/leftShare, sum(p.mayLeave))+residue && p.handle.Alive() {
		return api.Errorf(api.CodeInternal, "slice %s: %s claims to have moved its memory, but the driver still lists %s of %s for it",
			p.slice.ID, p, api.FormatSize(listed), api.FormatSize(held))
	}
	p.recordKept()
	return nil
}

func (p *proc) recordKept() {
	p.onLane(func(l *quota.Lane) { l.Kept = max(l.Kept, sum(p.OnHost())) })
}

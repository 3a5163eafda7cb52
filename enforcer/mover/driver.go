// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// proc is a process during a move.
type proc struct {
	store.Moved
	slice    *Slice
	handle   *process.Handle
	toDriver bool              // it can move its memory itself, but the driver does
	mayLeave map[string]uint64 // bytes that it may leave on each device when it moves itself, by UUID
	inUse    uint64            // bytes of host memory that hold its memory already
}

func (p *proc) String() string { return fmt.Sprintf("process %d (%s)", p.PID, process.Name(p.PID)) }

// bring moves the process to a state one step away, unless it is there: by itself or by the driver.
func (p *proc) bring(to checkpoint.State) error {
	if err := p.slice.mover.Stopping(); err != nil {
		return err
	}
	if _, self := p.selfState(); self && p.handle.Alive() {
		return p.bringBySelf(to)
	}
	return p.bringByDriver(to)
}

func (p *proc) bringByDriver(to checkpoint.State) error {
	state, err := p.driverState()
	switch {
	case err != nil && len(p.Bytes) == 0: // it has not used the driver yet
		return nil
	case err != nil:
		return p.explain(err)
	case state == to || !p.handle.Alive():
		return nil
	}
	step := map[[2]checkpoint.State]checkpoint.Action{
		{checkpoint.Running, checkpoint.Locked}:      checkpoint.Lock,
		{checkpoint.Locked, checkpoint.Checkpointed}: checkpoint.Checkpoint,
		{checkpoint.Checkpointed, checkpoint.Locked}: checkpoint.Restore,
		{checkpoint.Locked, checkpoint.Running}:      checkpoint.Unlock,
	}[[2]checkpoint.State{state, to}]
	if step == "" {
		return api.Errorf(api.CodeInternal, "process %d of slice %s is %s, and cannot be made %s", p.PID, p.slice.ID, state, to)
	}
	m := p.slice.mover
	timeout := m.Call + time.Duration(sum(p.Bytes)/slowest)*time.Second
	err = p.slice.await(p, func() error { return m.Checkpoint.Do(step, p.handle.Identity, timeout) })
	if err == nil || !p.handle.Alive() {
		return nil
	}
	if now, unknown := p.driverState(); unknown == nil && now == to {
		return nil // the driver completed the step for another call
	}
	return p.explain(err)
}

// state returns the process's state: by its own claim if it moves itself, else by the driver.
func (p *proc) state() (checkpoint.State, error) {
	state, self := p.selfState()
	if !self || !p.handle.Alive() {
		return p.driverState()
	}
	if p.ByDriver {
		if now, err := p.driverState(); err != nil || now == checkpoint.Failed {
			return now, err
		}
	}
	return state, nil
}

// driverState returns the driver's state of the process; Running without an error if it has exited.
func (p *proc) driverState() (checkpoint.State, error) {
	switch {
	case !p.handle.Alive():
		return checkpoint.Running, nil
	case process.Stopped(p.PID): // on an H200 (driver 580) the call did not return, whatever its time limit
		return 0, Unmovable{api.Errorf(api.CodeBadRequest, "%s of slice %s is stopped, and the driver waits for it: continue it (kill -CONT %d), or end it",
			p, p.slice.ID, p.PID)}
	}
	m := p.slice.mover
	told := make(chan checkpoint.State, 1)
	err := p.slice.await(p, func() error {
		state, err := m.Checkpoint.State(p.handle.Identity, m.Call)
		told <- state
		return err
	})
	switch {
	case err == nil:
		return <-told, nil
	case !p.handle.Alive():
		return checkpoint.Running, nil
	}
	return checkpoint.Running, err
}

// driverCanMove returns an error if it is known in advance that the driver cannot move the process, which is on its devices.
func (p *proc) driverCanMove() error {
	state, err := p.driverState()
	switch {
	case err != nil && len(p.Bytes) == 0: // it has not used the driver yet, or has called execve
		return nil
	case err != nil:
		return p.explain(err)
	case state != checkpoint.Running:
		return Unmovable{api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: %s is %s by a program outside gpuslice: let that program undo it",
			p.slice.ID, p, state)}
	}
	return nil
}

// await waits for do, which has a timeout. It returns early if the process of the call exits; p may be nil.
func (s *Slice) await(p *proc, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			s.Turn.GoesOn()
			if p != nil && !p.handle.Alive() {
				return process.ErrDead
			}
		}
	}
}

func (p *proc) explain(err error) error {
	id := p.slice.ID
	var e *checkpoint.Error
	switch {
	case errors.As(err, new(Unmovable)):
		return err
	case errors.Is(err, checkpoint.ErrHangs):
		return Unmovable{fmt.Errorf("slice %s cannot be suspended: %w", id, err)}
	case errors.Is(err, checkpoint.ErrNone):
		return api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: %v", id, err)
	case !errors.As(err, &e):
		return fmt.Errorf("slice %s: %w", id, err)
	}
	switch {
	case e.Result == checkpoint.ResultNotSupported:
		return Unmovable{api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: the driver cannot move %s (%s): it uses managed memory, or memory that it shares with other processes", id, p, e.Name)}
	case e.Action == checkpoint.Lock && e.Result == checkpoint.ResultNotReady:
		return Unmovable{api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: %s has work on its device that does not finish (%s): try again", id, p, e.Name)}
	}
	return api.Errorf(api.CodeInternal, "slice %s: %s: %v", id, p, err)
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// This file takes one step of a move for one process: by the process itself, or by the driver's checkpoint, which is called with a timeout and its
// result verified.

// bring moves a process to a state one step away, unless it is there.
func (s *slice) bring(p *moved, to checkpoint.State) error {
	if s.e.ending.Load() {
		return ErrClosed
	}
	if _, itself := s.itself(p); itself && p.handle.Alive() {
		return s.bringItself(p, to)
	}
	return s.bringByDriver(p, to)
}

// bringByDriver is bring by the driver.
func (s *slice) bringByDriver(p *moved, to checkpoint.State) error {
	state, err := s.driverState(p)
	switch {
	case err != nil && len(p.Bytes) == 0: // it has not used the driver yet
		return nil
	case err != nil:
		return s.cannot(err)
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
		return api.Errorf(api.CodeInternal, "process %d of slice %s is %s, and cannot be made %s", p.PID, s.id(), state, to)
	}
	timeout := moveTimeout + time.Duration(sum(p.Bytes)/slowest)*time.Second
	err = s.longAs(p, func() error { return s.e.options.Checkpoint.Do(step, p.handle.Identity, timeout) })
	if err == nil || !p.handle.Alive() {
		return nil
	}
	if now, unknown := s.driverState(p); unknown == nil && now == to {
		return nil // the driver completed the step for another call
	}
	return s.cannot(err)
}

// state returns a process's state: by its own claim if it moves itself, else by the driver.
func (s *slice) state(p *moved) (checkpoint.State, error) {
	state, itself := s.itself(p)
	if !itself || !p.handle.Alive() {
		return s.driverState(p)
	}
	if p.ByDriver {
		if now, err := s.driverState(p); err != nil || now == checkpoint.Failed {
			return now, err
		}
	}
	return state, nil
}

// driverState returns the driver's state of a process. For an exited process it is Running, without an error.
func (s *slice) driverState(p *moved) (state checkpoint.State, err error) {
	switch {
	case !p.handle.Alive():
		return checkpoint.Running, nil
	case process.Stopped(p.PID): // on an H200 (driver 580) the call did not return, whatever its time limit
		return 0, unmovable{api.Errorf(api.CodeBadRequest, "process %d (%s) of slice %s is stopped, and the driver waits for it: continue it (kill -CONT %d), or end it",
			p.PID, process.Name(p.PID), s.id(), p.PID)}
	}
	told := make(chan checkpoint.State, 1)
	err = s.longAs(p, func() error {
		state, err := s.e.options.Checkpoint.State(p.handle.Identity, moveTimeout)
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

// longAs waits for do, which has a timeout. It returns early if the process p of the call exits; p may be nil. Once a second it reports that the
// operation with the slice's turn is alive.
func (s *slice) longAs(p *moved, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			s.turn.GoesOn()
			if p != nil && !p.handle.Alive() {
				return process.ErrDead
			}
		}
	}
}

// cannot describes an error of the driver.
func (s *slice) cannot(err error) error {
	var e *checkpoint.Error
	switch {
	case errors.As(err, new(unmovable)):
		return err
	case errors.Is(err, checkpoint.ErrHangs):
		return unmovable{fmt.Errorf("slice %s cannot be suspended: %w", s.id(), err)}
	case errors.Is(err, checkpoint.ErrNone):
		return api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: %v", s.id(), err)
	case !errors.As(err, &e):
		return fmt.Errorf("slice %s: %w", s.id(), err)
	}
	who := fmt.Sprintf("process %d (%s)", e.PID, process.Name(e.PID))
	switch {
	case e.Result == checkpoint.ResultNotSupported:
		return unmovable{api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: the driver cannot move %s (%s): it uses managed memory, or memory that it shares with other processes", s.id(), who, e.Name)}
	case e.Action == checkpoint.Lock && e.Result == checkpoint.ResultNotReady:
		return unmovable{api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: %s has work on its device that does not finish (%s): try again", s.id(), who, e.Name)}
	}
	return api.Errorf(api.CodeInternal, "slice %s: %s: %v", s.id(), who, err)
}

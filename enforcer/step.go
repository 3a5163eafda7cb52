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

// One step of one process: by itself, or by the driver's checkpoint, which is asked with a timeout and never believed without looking.

// bring has a process be in a state that is one step from where it is, unless it is there.
func (s *slice) bring(p *moved, to checkpoint.State) error {
	if s.e.ending.Load() {
		return ErrClosed
	}
	if _, itself := s.itself(p); itself && p.handle.Alive() {
		return s.bringItself(p, to)
	}
	return s.bringByDriver(p, to)
}

// bringByDriver is bring, whatever the process does itself.
func (s *slice) bringByDriver(p *moved, to checkpoint.State) error {
	state, err := s.driverState(p)
	switch {
	case err != nil && len(p.Bytes) == 0: // it has not begun to use the driver
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
		return nil // somebody else's answer was waited for
	}
	return s.cannot(err)
}

// state is a process's by its own word, if it moves its memory itself, or else the driver's.
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

// driverState asks the driver about a process; a process that has ended is in no way.
func (s *slice) driverState(p *moved) (state checkpoint.State, err error) {
	if !p.handle.Alive() {
		return checkpoint.Running, nil
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

// longAs waits for do, which has a timeout. It returns early if do asks about a process that ends; p is nil if it asks about none. Once a second it
// reports that the holder of the slice's turn does not hang.
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

// cannot is an error of the driver in a sentence.
func (s *slice) cannot(err error) error {
	var e *checkpoint.Error
	switch {
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
		return unmovable{api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: the work that %s has given its device does not end (%s): try again", s.id(), who, e.Name)}
	}
	return api.Errorf(api.CodeInternal, "slice %s: %s: %v", s.id(), who, err)
}

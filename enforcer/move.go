// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/mover"
	"github.com/gpuslice/gpuslice/enforcer/store"
	"github.com/gpuslice/gpuslice/hostmem"
)

// This file suspends and resumes slices: it stores a state, has package mover move the memory, and stores the next state.

const drainPace = time.Millisecond

// drainPatience limits the wait for calls under way when the gate is shut. A call may depend on another thread that the gate stops. Tests shorten it.
var drainPatience = 5 * time.Second

// Suspend moves the device memory of all processes of a slice to host memory, or of none and returns why. Other slices can use the room. An
// elastic slice, too, then stays suspended until Resume.
func (e *Enforcer) Suspend(ctx context.Context, id string) (api.Slice, error) {
	return e.inTurn(ctx, id, func(s *slice) error {
		return e.ask(s, func(client uint64) core.Command { return core.Suspend{Client: client, ID: id} })
	})
}

// Resume brings back what Suspend moved. Without room the slice stays suspended, and the error names the holders. The user's limit applies even if
// the operator resumes the slice. An elastic slice may from then on also return at a process's request, and if there is no room now, idle slices
// are evicted for it.
func (e *Enforcer) Resume(ctx context.Context, id string) (api.Slice, error) {
	return e.inTurn(ctx, id, func(s *slice) error {
		e.observeAll()
		err := s.resume()
		full := new(api.Error)
		if s.residency == nil || !errors.As(err, &full) || full.Code != api.CodeQuotaExceeded {
			return err
		}
		said := *full
		said.Message += "; it comes back when there is room and one of its processes asks"
		return &said
	})
}

// resume resumes the slice within its user's limit. Called in the slice's turn.
func (s *slice) resume() error {
	limit := s.userLimit()
	return s.e.ask(s, func(client uint64) core.Command { return core.Resume{Client: client, ID: s.id(), User: limit} })
}

func (e *Enforcer) inTurn(ctx context.Context, id string, do func(*slice) error) (api.Slice, error) {
	if err := api.CheckID(id); err != nil {
		return api.Slice{}, err
	}
	s, err := e.turnOf(ctx, id)
	if err != nil {
		return api.Slice{}, err
	}
	defer s.turn.Give()
	if err := do(s); err != nil {
		return api.Slice{}, err
	}
	return s.show(false), nil
}

// carryOutMove has the memory moved, and returns where it is then. Each state is stored before it begins, and the last one before others get the room.
func (s *slice) carryOutMove(effect core.Effect) core.Fact {
	var m core.Moved
	was := s.rec.Residence
	s.mu.Lock()
	m.Err = s.unchangeable(false) // core may not know yet that its ledger is damaged
	s.mu.Unlock()
	switch x := effect.(type) {
	case core.MoveOut:
		switch m.Op = x.Op; {
		case m.Err != nil && was != core.Away:
			s.setSuspension(nil)
		case m.Err != nil:
		case was == core.Away:
			m.Err = s.leaveLess(x.Stay)
		default:
			m.Err = s.suspendAll(x.Stay, x.Busy)
		}
	case core.MoveIn:
		if m.Op = x.Op; m.Err == nil {
			m.Err = s.resumeAll()
		}
	}
	s.op = m.Op
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case m.Err == nil && s.residency != nil:
		s.residency.obstacle = ""
	case m.Err == nil:
	case was == core.Away:
		s.log.Error("rest of the slice's memory not moved", "why", m.Err)
	case s.residency != nil && !errors.Is(m.Err, ErrClosed) && s.residency.obstacle != m.Err.Error():
		s.residency.obstacle = m.Err.Error()
		s.log.Info("elastic slice not moved", "why", m.Err)
	}
	m.Stuck = errors.As(m.Err, new(mover.Unmovable))
	switch {
	case s.suspension == nil:
		m.At = core.Resident
	case s.isAway():
		m.At, m.Left = core.Away, s.holds()
	default:
		m.At = core.Returning
	}
	return m
}

// suspendAll moves the memory of all processes to the host. Processes that move it themselves may together leave the bytes in stay. An evicted slice that is
// not busy stays if a call does not end.
func (s *slice) suspendAll(stay map[string]uint64, busy bool) error {
	evicted := !s.rec.Manual
	if evicted {
		killpoint.Pass("evict.shut")
		if err := s.drain(busy); err != nil {
			s.setSuspension(nil)
			return err
		}
	}
	began := time.Now()
	m := s.memory.Begin(stay)
	defer m.Close()
	err := m.Measure()
	defer s.boundMove(m)()
	if err == nil {
		err = m.Check(evicted)
	}
	if err == nil {
		err = s.storeSuspension(&store.Suspension{State: api.Suspending, Processes: m.Processes()})
	}
	if err != nil {
		s.setSuspension(nil)
		return err
	}
	killpoint.Pass("move.stored")
	if err := s.moveOut(m); err != nil {
		if errors.Is(err, ErrClosed) {
			return err
		}
		switch undone := s.moveBack(m); {
		case errors.Is(undone, ErrClosed):
			return err
		case undone != nil:
			return errors.Join(err, s.remainAway(m, undone))
		}
		s.endSuspension()
		return err
	}
	return s.settleAway(m, "", began)
}

func (s *slice) moveOut(m *mover.Move) error {
	if err := m.Lock(); err != nil {
		return err
	}
	if err := s.storeSuspension(&store.Suspension{State: api.Suspending, Processes: m.Processes()}); err != nil {
		return err
	}
	killpoint.Pass("move.measured")
	return m.Out()
}

// settleAway records the slice as suspended, once its memory has left the devices. If the store fails, the memory is moved back.
func (s *slice) settleAway(m *mover.Move, reason string, began time.Time) error {
	now := &store.Suspension{State: api.Suspended, Processes: m.Processes(), Spare: m.Spare(), Reason: reason}
	if err := s.storeSuspension(now); err != nil {
		if back := s.moveBack(m); back != nil {
			return errors.Join(err, s.stayPartly(m, errors.Join(back, err)))
		}
		s.endSuspension()
		return err
	}
	killpoint.Pass("move.gone")
	s.sentAway()
	s.moved = &moved{now.Processes, time.Since(began)}
	return nil
}

// leaveLess has the processes of a slice that is off its devices move more of what they left there. If they have nothing more to move, and others need
// the room, which stay says, the driver moves the rest.
func (s *slice) leaveLess(stay map[string]uint64) error {
	s.mu.Lock()
	was := s.suspension
	nothing := !was.Away() || len(s.left()) == 0
	s.mu.Unlock()
	if nothing {
		return nil
	}
	m := s.memory.Continue(was)
	defer m.Close()
	less, err := m.LeaveLess(stay)
	if err == nil && !less && stay != nil {
		if err = m.LeaveToDriver(); err == nil {
			err = s.storeSuspension(&store.Suspension{State: was.State, Processes: m.Processes(), Spare: was.Spare, Reason: was.Reason})
		}
		if err == nil {
			err = m.OutByDriver()
		}
	}
	if err != nil {
		return err
	}
	if err := s.storeSuspension(&store.Suspension{State: was.State, Processes: m.Processes(), Spare: m.Spare(), Reason: was.Reason}); err != nil {
		return err
	}
	s.sentAway()
	return nil
}

// resumeAll brings the slice's memory back: its quotas count again.
func (s *slice) resumeAll() error {
	s.mu.Lock()
	was := s.suspension
	s.mu.Unlock()
	began := time.Now()
	m := s.memory.Continue(was)
	defer m.Close()
	if err := m.FindAway(); err != nil {
		return err
	}
	undo, err := s.takeBack(was.Processes)
	if err == nil {
		if _, err = m.HasRoom(); err == nil {
			err = s.storeSuspension(&store.Suspension{State: api.Resuming, Processes: was.Processes, Spare: was.Spare})
		}
		if err != nil {
			undo()
		}
	}
	if err != nil {
		if was.State != api.Suspended { // an earlier move was interrupted
			return errors.Join(err, s.remainAway(m, err))
		}
		return err
	}
	killpoint.Pass("move.returning")
	s.bringBack()
	if err := s.moveBack(m); err != nil {
		if errors.Is(err, ErrClosed) {
			return err
		}
		return errors.Join(err, s.remainAway(m, err))
	}
	killpoint.Pass("move.back")
	s.moved = &moved{m.Processes(), time.Since(began)}
	s.endSuspension()
	return nil
}

func (s *slice) moveBack(m *mover.Move) error {
	if err := m.Reserve(); err != nil {
		return err
	}
	defer s.boundMove(m)() // other slices wait for the reserved room
	return m.Back()
}

// endSuspension records that the slice is no longer suspended, once all processes run.
func (s *slice) endSuspension() {
	if err := s.storeSuspension(nil); err != nil {
		s.setSuspension(nil) // the next enforcer finds all processes running
		s.log.Error("end of the suspension not persisted: the next enforcer detects it", "err", err)
	}
	s.memory.LimitKept()
}

// remainAway moves away again the processes that had come back, since not all could; why is the reason. The slice is then suspended.
func (s *slice) remainAway(m *mover.Move, why error) error {
	began := time.Now()
	if err := m.OutAgain(); err != nil {
		return s.stayPartly(m, errors.Join(why, err))
	}
	return s.settleAway(m, why.Error(), began)
}

// stayPartly leaves a slice with some processes away, or in unknown states. It counts for all its quotas, and can be resumed again.
func (s *slice) stayPartly(m *mover.Move, why error) error {
	s.log.Error("slice partly in host memory: resume it again", "err", why)
	now := &store.Suspension{State: api.Resuming, Processes: m.Processes(), Reason: why.Error()}
	err := s.storeSuspension(now)
	if err != nil {
		s.setSuspension(now) // the next enforcer reads the states from the driver, whatever is stored
	}
	return errors.Join(why, err)
}

// endForOthers ends an elastic slice that keeps others from a device.
func (s *slice) endForOthers(why string) {
	s.mu.Lock()
	before, ttl := s.overstayed, s.rec.TTL
	s.overstayed = cmp.Or(before, why)
	s.mu.Unlock()
	s.e.book.Do(func(a *core.Accounts) { a.Overstay(s.generation, why) })
	if before != "" {
		return
	}
	s.log.Warn("elastic slice ended: it cannot be moved", "why", why)
	s.tell(api.Event{Kind: api.EventExpired, TTL: ttl, Cause: why})
	s.e.checkTime()
}

// boundMove limits a starting move of an elastic slice's processes to Elastic.Patience and the time of a sound move. After that it ends the slice
// and kills its processes, since others wait for the device. Each call on a process returns when the process exits.
func (s *slice) boundMove(m *mover.Move) (stop func()) {
	patience := s.e.options.Elastic.Patience
	if s.residency == nil || patience == 0 {
		return func() {}
	}
	bytes, most := m.Longest()
	most += patience
	timer := time.AfterFunc(most, func() {
		s.endForOthers(fmt.Sprintf("its move took longer than %s (patience in [elastic], plus the longest time for %s)", most, api.FormatSize(bytes)))
		for _, p := range m.Handles() {
			if s.group.MaySignal(p.PID) {
				s.group.Signal(p, syscall.SIGKILL)
			}
		}
	})
	return func() { timer.Stop() }
}

// drain waits until no process of the slice is in a call of the driver that it counts; the gate is shut. For a busy slice it waits at most
// drainPatience. The driver's checkpoint waits for the other calls.
func (s *slice) drain(busy bool) error {
	deadline := time.Now().Add(drainPatience)
	for said := time.Now(); ; time.Sleep(drainPace) {
		pid := s.inCall()
		switch late := time.Now().After(deadline); {
		case pid == 0, late && busy:
			return nil
		case late:
			return mover.Unmovable{Err: api.Errorf(api.CodeBusy, "slice %s stays where it is: a call of process %d has not ended in %s", s.id(), pid, drainPatience)}
		case s.e.isStopping():
			return ErrClosed
		}
		if now := time.Now(); now.Sub(said) > time.Second {
			s.turn.GoesOn()
			said = now
		}
	}
}

// inCall returns a process of the slice that is in a call of the driver, by its own count; 0 if there is none.
func (s *slice) inCall() (pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.quota.Lanes() {
		if s.quota.Ledger.Gated(l.Number).UnderWay > 0 && l.Process.Alive() {
			return l.Process.PID
		}
	}
	return 0
}

// moverOptions may change the options of package mover in tests.
var moverOptions = func(*mover.Options) {}

func (e *Enforcer) newMover() *mover.Mover {
	o := mover.Options{
		Log: e.log, Checkpoint: e.options.Checkpoint, Devices: e.truth.Sizes(),
		HostMemory: e.options.HostMemory, HostLimit: e.options.Elastic.HostMemory, Meminfo: hostmem.Meminfo,
		MemoryShort: func(_, _ map[int]uint64) (*cgroup.Short, error) { return nil, nil },
		Background:  e.ends.Go,
		Stopping: func() error {
			if e.isStopping() {
				return ErrClosed
			}
			return nil
		},
		Elastic: func() (all []*mover.Slice) {
			for _, s := range e.elasticOnes() {
				all = append(all, s.memory)
			}
			return all
		},
	}
	if e.truth != nil {
		o.Truth = e.truth
	}
	if e.host != nil {
		o.MemoryShort = e.host.MemoryShort
	}
	moverOptions(&o)
	return mover.New(o)
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// How a slice's memory leaves its devices and comes back, by the driver's checkpoint of each process, or by the process itself (selfmove.go): of all or
// of none. What each process's state is the driver is asked before each step, or the process's word is read, so that a step may have been done by
// an enforcer that was killed.
//
// The driver loses a process if its device has no room when it is restored. A restore begins only once admission has granted the slice its
// quotas again, the driver reports enough free memory, and that memory is reserved (rooms).

const (
	// slowest is how many bytes a second are moved at least: on an H100 it was 1 GiB and more.
	slowest = 128 << 20
	// residue is how many bytes of a process may be left on a device when it is away: of its context, 4 MiB were seen.
	residue = 64 << 20
	// spare is how many bytes more than the driver listed for a process are to be free for it: 6 MiB were seen that it lists for nobody.
	spare = 64 << 20
)

// moveTimeout limits a call of the driver that moves no bytes. It includes the 10 s in which work on the device may end. Tests shorten it.
var moveTimeout = 30 * time.Second

// moved is a process that is moved.
type moved struct {
	store.Moved
	handle   *process.Handle
	byDriver bool              // it could move its memory itself, and does not
	stay     map[string]uint64 // so much of a device it may leave there, as it moves itself
	inUse    uint64            // bytes of host memory that it has its memory in
}

// Suspend moves what the processes of a slice hold on its devices to host memory: of all of them, or of none and says why. Others get the room. An
// elastic slice stays there, too, until it is resumed.
func (e *Enforcer) Suspend(ctx context.Context, id string) (api.Slice, error) {
	return e.inTurn(ctx, id, func(s *slice) error {
		if s.isEvicted() {
			return s.keepAway()
		}
		if err := s.beginSuspension(false); err != nil {
			return err
		}
		return s.suspendAll(nil)
	})
}

// Resume brings back what Suspend has moved, if there is room; else the slice stays suspended, and the error says who has it. A user's slice
// is resumed within the user's limit, whoever asks. An elastic slice may come back from then on when a process asks, too, and if there is no room now
// idle ones are moved aside for it.
func (e *Enforcer) Resume(ctx context.Context, id string) (api.Slice, error) {
	return e.inTurn(ctx, id, func(s *slice) error {
		if s.residency == nil {
			return s.resumeWithin()
		}
		if err := s.comesBack(true); err != nil {
			return err
		}
		err := s.resumeWithin()
		full := new(api.Error)
		if !errors.As(err, &full) || full.Code != api.CodeQuotaExceeded {
			return err
		}
		said := *full
		said.Message += "; it comes back when there is room and one of its processes asks"
		w := s.wantBack(full.Device)
		w.device = true
		return e.evictFor(&said, w)
	})
}

// resumeWithin is called in the slice's turn.
func (s *slice) resumeWithin() error {
	limit := s.userLimit() // now: it reads files, and the book is asked with the slice's lock held
	return s.resumeAll(func(wants map[string]uint64) error {
		return s.e.book.Begin(admission.Ask{Holder: s.holder, Bytes: wants, Quotas: s.quotas, User: limit})
	})
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

// admit is what the book says of a slice that wants its quotas back.
func (s *slice) admit(wants map[string]uint64) error {
	_, err := s.e.book.Admit(s.holder, wants)
	return err
}

// suspendAll is called in the slice's turn, after beginSuspension. Processes that move themselves may leave together what is to stay of each device.
func (s *slice) suspendAll(stay map[string]uint64) error {
	began := time.Now()
	all, err := s.toMove()
	defer closeAll(all)
	defer s.boundMove(all)()
	if err == nil {
		s.share(all, stay)
		err = s.mayMove(all)
	}
	if err == nil {
		err = s.storeSuspension(&store.Suspension{State: api.Suspending, Processes: records(all)})
	}
	if err != nil {
		s.setSuspension(nil)
		return err
	}
	killpoint.Pass("move.stored")
	if err := s.moveOut(all, stay); err != nil {
		if errors.Is(err, ErrClosed) {
			return err
		}
		switch undone := s.moveBack(all); {
		case errors.Is(undone, ErrClosed):
			return err
		case undone != nil:
			return errors.Join(err, s.stay(all, undone))
		}
		return errors.Join(err, s.goesOn())
	}
	return s.settleAway(all, "", began)
}

// beginSuspension has no process attach from here on, or says why the slice cannot be suspended. evicted is of an elastic slice that comes
// back when a process asks.
func (s *slice) beginSuspension(evicted bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unchangeable(false); err != nil {
		return err
	}
	switch {
	case s.suspension != nil:
		return api.Errorf(api.CodeBadRequest, "slice %s is %s already", s.id(), s.suspension.State)
	case s.e.options.Checkpoint == nil:
		return api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: this enforcer serves its own sessions only, gpusliced can", s.id())
	case s.e.truth == nil:
		return api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: without NVML nobody knows when there is room for it again (%s)", s.id(), s.e.options.NoTruth)
	}
	s.suspension = &store.Suspension{State: api.Suspending, Evicted: evicted}
	s.turnGate()
	return nil
}

// toMove are the processes of the slice that may hold memory on a device, with what the driver lists for each. It is an error if one of them never
// attached: nobody could say what it takes meanwhile.
func (s *slice) toMove() (all []*moved, err error) {
	s.mu.Lock()
	known := make(map[int]uint64)
	for l := range s.quota.Lanes() {
		known[l.Process.PID] = l.Process.Start
	}
	s.mu.Unlock()
	for pid, start := range known {
		all = append(all, again([]store.Moved{{Process: store.Process{PID: pid, Start: start}}})...)
	}
	slices.SortFunc(all, func(a, b *moved) int { return cmp.Compare(a.PID, b.PID) })
	strangers, err := s.measure(all)
	for pid, bytes := range strangers {
		if s.e.owner(pid) == s && process.Exists(pid) {
			return all, unmovable{api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: process %d (%s) holds %s and never attached: end it first",
				s.id(), pid, process.Name(pid), api.FormatSize(bytes))}
		}
	}
	return all, err
}

// measure notes what the driver lists for each process on each device, and returns what it lists for others, in all.
func (s *slice) measure(all []*moved) (others map[int]uint64, err error) {
	others = make(map[int]uint64)
	by := make(map[int]*moved)
	for _, p := range all {
		p.Bytes, by[p.PID] = make(map[string]uint64), p
	}
	for _, g := range s.e.truth.devices {
		listed, err := s.e.truth.processes(g, patience)
		if err != nil {
			return nil, fmt.Errorf("device %s: %w", g.UUID, err)
		}
		for pid, bytes := range listed {
			p := by[pid]
			switch {
			case p != nil && bytes == driver.Unknown:
				return nil, fmt.Errorf("device %s: %w", g.UUID, errUntold)
			case p != nil && bytes > 0:
				p.Bytes[g.UUID] = bytes
			case p == nil && bytes > 0 && bytes != driver.Unknown:
				others[pid] += bytes
			}
		}
	}
	return others, nil
}

// mayMove says why these processes cannot be moved to host memory, as far as that is known before.
func (s *slice) mayMove(all []*moved) error {
	for _, p := range all {
		if _, can := s.word(p); can { // the driver is asked once it is to move it (lock)
			continue
		}
		if err := s.unlocked(p); err != nil {
			return err
		}
	}
	s.mu.Lock()
	evicted := s.suspension.Evicted
	s.mu.Unlock()
	if evicted {
		if err := s.fitsHost(all); err != nil {
			return err
		}
	}
	return s.hostHasRoomOr(all, func(p *moved, _ error) error {
		p.byDriver = true
		return s.unlocked(p)
	})
}

// unlocked says why the driver cannot move a process of a slice that is on its devices, as far as that is known before.
func (s *slice) unlocked(p *moved) error {
	state, err := s.driverState(p)
	switch {
	case err != nil && len(p.Bytes) == 0: // it has not begun to use the driver, or has called execve
		return nil
	case err != nil:
		return s.cannot(err)
	case state != checkpoint.Running:
		return unmovable{api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: process %d (%s) is %s by a program outside gpuslice: let that program undo it",
			s.id(), p.PID, process.Name(p.PID), state)}
	}
	return nil
}

// moveOut locks all processes, and then moves each. An error leaves them wherever they are.
func (s *slice) moveOut(all []*moved, stay map[string]uint64) error {
	for _, p := range all {
		if err := s.lock(p); err != nil {
			return err
		}
		killpoint.Pass("move.locked")
	}
	if _, err := s.measure(all); err != nil { // while they were running they may have taken more
		return err
	}
	s.share(all, stay)
	if err := s.hostHasRoomOr(all, s.leaveLocked); err != nil {
		return err
	}
	if err := s.storeSuspension(&store.Suspension{State: api.Suspending, Processes: records(all)}); err != nil {
		return err
	}
	killpoint.Pass("move.measured")
	for _, p := range all {
		if err := s.moveAside(p); err != nil {
			return err
		}
		killpoint.Pass("move.checkpointed")
	}
	return s.isGone(all)
}

// isGone says what the driver still lists for processes that it has checkpointed, and notes what the others have left.
func (s *slice) isGone(all []*moved) error {
	left, err := s.noteLeft(all)
	if err != nil {
		return err
	}
	for i, p := range all {
		for uuid, bytes := range left[i] {
			if bytes > residue && p.Left == nil && p.handle.Alive() {
				return api.Errorf(api.CodeInternal, "slice %s cannot be suspended: process %d is checkpointed, and the driver lists %s for it on device %s still: it may be memory that it shares with other processes, which stays there", s.id(), p.PID, api.FormatSize(bytes), uuid)
			}
		}
	}
	return nil
}

// settleAway makes it so that the slice is suspended, whose processes are.
func (s *slice) settleAway(all []*moved, reason string, began time.Time) error {
	now := &store.Suspension{State: api.Suspended, Processes: records(all), Spare: s.spare(all), Reason: reason}
	if err := s.storeSuspension(now); err != nil {
		if back := s.moveBack(all); back != nil {
			return errors.Join(err, s.between(all, errors.Join(back, err)))
		}
		return errors.Join(err, s.goesOn())
	}
	killpoint.Pass("move.gone")
	s.sentAway()
	s.tellMoved(s.movedKind(true), now.Processes, time.Since(began))
	return nil
}

// spare is what the devices have free beyond what was moved from there: no more needs to be free when that comes back.
func (s *slice) spare(all []*moved) map[string]uint64 {
	left := make(map[string]uint64)
	for uuid, need := range needed(all, nil) {
		if free, err := s.free(uuid); err == nil {
			left[uuid] = free - min(free, need)
		}
	}
	return left
}

// needed is what was moved of processes' memory from each device, with as much on top as is to be free for them, unless there was less when they left.
func needed(all []*moved, left map[string]uint64) map[string]uint64 {
	needs, on := make(map[string]uint64), make(map[string]uint64)
	for _, p := range all {
		for uuid, bytes := range onHost(p.Moved) {
			needs[uuid] += bytes
			on[uuid] += spare
		}
	}
	for uuid := range needs {
		if most, known := left[uuid]; known {
			needs[uuid] += min(on[uuid], most)
		}
	}
	return needs
}

// free is how many bytes of a device are, by the driver.
func (s *slice) free(uuid string) (uint64, error) {
	g := s.e.gpuOf(uuid)
	if g == nil {
		return 0, fmt.Errorf("%w: %s", driver.ErrNoDevice, uuid)
	}
	used, err := driver.Ask(g.slot, patience, func() (uint64, error) { return s.e.truth.source.Used(uuid) })
	return g.Total - min(g.Total, used), err
}

// resumeAll is called in the slice's turn. admit is asked whether the slice gets its quotas back.
func (s *slice) resumeAll(admit func(wants map[string]uint64) error) error {
	s.mu.Lock()
	was, err := s.suspension, s.unchangeable(false)
	s.mu.Unlock()
	began := time.Now()
	switch {
	case err != nil:
		return err
	case was == nil:
		return api.Errorf(api.CodeBadRequest, "slice %s is not suspended", s.id())
	case s.e.options.Checkpoint == nil || s.e.truth == nil:
		return api.Errorf(api.CodeBadRequest, "slice %s cannot be resumed: without NVML nobody knows whether there is room for it (%s)", s.id(), s.e.options.NoTruth)
	}
	all := again(was.Processes)
	defer closeAll(all)
	away, err := s.areAway(all)
	if err != nil {
		return err
	}
	undo, err := s.takeBack(was.Processes, admit)
	if err == nil {
		if _, err = s.hasRoom(away, was.Spare); err == nil {
			err = s.storeSuspension(&store.Suspension{State: api.Resuming, Processes: was.Processes, Spare: was.Spare})
		}
		if err != nil {
			undo()
		}
	}
	if err != nil {
		if was.State != api.Suspended { // it was on the way
			return errors.Join(err, s.stay(all, err))
		}
		return err
	}
	killpoint.Pass("move.returning")
	s.bringBack()
	if err := s.moveBack(all); err != nil {
		if errors.Is(err, ErrClosed) {
			return err
		}
		return errors.Join(err, s.stay(all, err))
	}
	killpoint.Pass("move.back")
	s.tellMoved(s.movedKind(false), records(all), time.Since(began))
	return s.goesOn()
}

// areAway are those of the processes that are off their devices. One that is lost can be brought back by nothing, and with it not the rest.
func (s *slice) areAway(all []*moved) (away []*moved, err error) {
	for _, p := range all {
		state, err := s.state(p)
		switch {
		case err != nil && len(p.Bytes) > 0:
			return nil, s.cannot(err)
		case state == checkpoint.Failed:
			return nil, api.Errorf(api.CodeBadRequest, "slice %s cannot be resumed: the driver has lost process %d (%s) in an attempt before: end it, and the others can be", s.id(), p.PID, process.Name(p.PID))
		case state == checkpoint.Checkpointed:
			away = append(away, p)
		}
	}
	return away, s.renoteLeft(away)
}

// moveBack brings back those that are away, and then has all go on. An error leaves them wherever they are.
func (s *slice) moveBack(all []*moved) error {
	away, err := s.areAway(all)
	if err != nil {
		return err
	}
	s.mu.Lock()
	left := s.suspension.Spare
	s.mu.Unlock()
	defer s.e.rooms.release(s)
	if err := s.reserveRoom(away, left); err != nil {
		return err
	}
	defer s.boundMove(all)() // others wait for the room that is now its own
	for i, p := range away {
		if err := s.reserveRoom(away[i:], left); err != nil {
			return err
		}
		if err := s.bring(p, checkpoint.Locked); err != nil {
			return err
		}
		if _, itself := s.itself(p); itself {
			s.keeps(p, max(s.kept(p), sum(onHost(p.Moved))))
		}
		killpoint.Pass("move.restored")
	}
	s.e.rooms.release(s)
	for _, p := range all {
		if err := s.bring(p, checkpoint.Running); err != nil {
			return err
		}
		killpoint.Pass("move.unlocked")
	}
	return nil
}

// goesOn makes it so that the slice is not suspended any more, whose processes are not.
func (s *slice) goesOn() error {
	if err := s.storeSuspension(nil); err != nil {
		s.setSuspension(nil) // the next enforcer finds that all are running
		s.log.Error("that the slice is not suspended any more is not on disk; the next enforcer finds it out", "err", err)
	}
	s.mu.Lock()
	s.recommit()
	s.mu.Unlock()
	s.mayKeep()
	return nil
}

// stay sends away again those that had come back, since not all of them did; why is the reason. The slice is suspended then.
func (s *slice) stay(all []*moved, why error) error {
	began := time.Now()
	var errs []error
	for _, p := range all {
		state, err := s.state(p)
		if state == checkpoint.Failed || err != nil && len(p.Bytes) == 0 {
			continue // it is lost, or holds nothing
		}
		p.stay = p.Left
		if err == nil && state == checkpoint.Running {
			err = s.lock(p)
		}
		s.mayStay(p)
		if err == nil {
			err = s.bring(p, checkpoint.Checkpointed)
		}
		if _, itself := s.itself(p); itself && !errors.Is(err, ErrClosed) {
			err = nil // whatever it has not moved it has left, which counts
		}
		errs = append(errs, err)
	}
	errs = append(errs, s.renoteLeft(all))
	if err := errors.Join(errs...); err != nil {
		return s.between(all, errors.Join(why, err))
	}
	return s.settleAway(all, why.Error(), began)
}

// between leaves a slice some of whose processes are away, or nobody knows where: it counts for all that it was given, and can be resumed again.
func (s *slice) between(all []*moved, why error) error {
	s.log.Error("the slice stays between its devices and host memory: resume it again", "err", why)
	now := &store.Suspension{State: api.Resuming, Processes: records(all), Reason: why.Error()}
	err := s.storeSuspension(now)
	if err != nil {
		s.setSuspension(now) // the next enforcer asks the driver, whatever it finds stored
	}
	return errors.Join(why, err)
}

func closeAll(all []*moved) {
	for _, p := range all {
		p.handle.Close()
	}
}

func records(all []*moved) []store.Moved {
	records := make([]store.Moved, 0, len(all))
	for _, p := range all {
		records = append(records, p.Moved)
	}
	return records
}

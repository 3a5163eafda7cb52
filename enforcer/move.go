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

// This file moves the memory of a slice's processes to host memory and back: of all of them, or of none. The driver's checkpoint moves it, or the
// process itself (selfmove.go). Each step first reads the process's state from the driver or from its lane, since an enforcer that was killed may
// have taken the step already.
//
// The driver loses a process if its device has no room when it is restored. A restore begins only once admission has granted the slice its
// quotas again, the driver reports enough free memory, and that memory is reserved (rooms).

const (
	// slowest is the least number of bytes moved in a second: an H100 moved 1 GiB and more.
	slowest = 128 << 20
	// residue is the most bytes that may stay on a device for a checkpointed process: 4 MiB of context were seen.
	residue = 64 << 20
	// spare is the free memory needed for a process beyond the driver's figure: 6 MiB were seen that the driver lists for no process.
	spare = 64 << 20
)

// moveTimeout limits a driver call that moves no bytes, including the 10 s that work on the device may take to end. Tests shorten it.
var moveTimeout = 30 * time.Second

type moved struct {
	store.Moved
	handle   *process.Handle
	byDriver bool              // it can move its memory itself, but the driver does
	stay     map[string]uint64 // bytes that it may leave on each device when it moves itself, by UUID
	inUse    uint64            // bytes of host memory that hold its memory already
}

// Suspend moves the device memory of all processes of a slice to host memory, or of none and returns why. Other slices can use the room. An
// elastic slice, too, then stays suspended until Resume.
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

// Resume brings back what Suspend moved. Without room the slice stays suspended, and the error names the holders. The user's limit applies even if
// the operator resumes the slice. An elastic slice may from then on also return at a process's request, and if there is no room now, idle slices
// are evicted for it.
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
		return e.evictFor(&said, s.wantOn(full.Device), true)
	})
}

// resumeWithin resumes the slice within its user's limit. Called in the slice's turn.
func (s *slice) resumeWithin() error {
	return s.resumeAll(s.userLimit())
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

// suspendAll moves the memory of all processes to the host. Processes that move it themselves may together leave the bytes in stay. Called
// in the slice's turn, after beginSuspension.
func (s *slice) suspendAll(stay map[string]uint64) error {
	began := time.Now()
	all, err := s.toMove()
	defer closeAll(all)
	defer s.hasMoved()
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

// beginSuspension marks the slice as suspending, so that no process can attach, or returns why it cannot be suspended. evicted marks an elastic
// slice that returns at a process's request.
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
		return api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: without NVML free device memory is unknown (%s)", s.id(), s.e.options.NoTruth)
	}
	s.suspension = &store.Suspension{State: api.Suspending, Evicted: evicted}
	s.turnGate()
	return nil
}

// toMove returns the slice's processes that may hold device memory, with the bytes that the driver lists for each. A process that holds memory and
// never attached is an error: what it allocates during the move would be unknown.
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

// measure records the bytes that the driver lists for each process on each device, and returns the sums of other processes, by pid.
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
				return nil, fmt.Errorf("device %s: %w", g.UUID, driver.ErrUntold)
			case p != nil && bytes > 0:
				p.Bytes[g.UUID] = bytes
			case p == nil && bytes > 0 && bytes != driver.Unknown:
				others[pid] += bytes
			}
		}
	}
	return others, nil
}

// mayMove returns why these processes cannot be moved to host memory, if that is known in advance.
func (s *slice) mayMove(all []*moved) error {
	for _, p := range all {
		if _, can := s.word(p); can { // the driver's state matters only if the driver has to move it (lock)
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

// unlocked returns why the driver cannot move a process that is on its devices, if that is known in advance.
func (s *slice) unlocked(p *moved) error {
	state, err := s.driverState(p)
	switch {
	case err != nil && len(p.Bytes) == 0: // it has not used the driver yet, or has called execve
		return nil
	case err != nil:
		return s.cannot(err)
	case state != checkpoint.Running:
		return unmovable{api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: process %d (%s) is %s by a program outside gpuslice: let that program undo it",
			s.id(), p.PID, process.Name(p.PID), state)}
	}
	return nil
}

// moveOut locks all processes, then moves each. After an error they stay in the states that they have reached.
func (s *slice) moveOut(all []*moved, stay map[string]uint64) error {
	for _, p := range all {
		if err := s.lock(p); err != nil {
			return err
		}
		killpoint.Pass("move.locked")
	}
	if _, err := s.measure(all); err != nil { // they may have allocated more before they were locked
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

// isGone fails if the driver still lists memory for a checkpointed process. It records what the others have left on the devices.
func (s *slice) isGone(all []*moved) error {
	left, err := s.noteLeft(all)
	if err != nil {
		return err
	}
	for i, p := range all {
		for uuid, bytes := range left[i] {
			if bytes > residue && p.Left == nil && p.handle.Alive() {
				return api.Errorf(api.CodeInternal, "slice %s cannot be suspended: process %d is checkpointed, but the driver still lists %s for it on device %s: it may be memory shared with other processes, which stays there", s.id(), p.PID, api.FormatSize(bytes), uuid)
			}
		}
	}
	return nil
}

// settleAway records the slice as suspended, once its memory has left the devices. If the store fails, the memory is moved back.
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

// spare returns each device's free bytes beyond what was moved from it. The return requires no more than that in addition to the moved bytes.
func (s *slice) spare(all []*moved) map[string]uint64 {
	left := make(map[string]uint64)
	for uuid, need := range needed(all, nil) {
		if free, err := s.free(uuid); err == nil {
			left[uuid] = free - min(free, need)
		}
	}
	return left
}

// needed returns the bytes of each device that must be free for the processes' return: what was moved, and spare for each
// process, but no more than was free in addition when they left (left).
func needed(all []*moved, left map[string]uint64) map[string]uint64 {
	needs, on := make(map[string]uint64), make(map[string]uint64)
	for _, p := range all {
		for uuid, bytes := range p.OnHost() {
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

func (s *slice) free(uuid string) (uint64, error) {
	g := s.e.gpuOf(uuid)
	if g == nil {
		return 0, fmt.Errorf("%w: %s", driver.ErrNoDevice, uuid)
	}
	used, err := driver.Ask(g.slot, patience, func() (uint64, error) { return s.e.truth.source.Used(uuid) })
	return g.Total - min(g.Total, used), err
}

// resumeAll brings the slice's memory back, if it is granted its quotas within the user's limit; nil is none. Called in the slice's turn.
func (s *slice) resumeAll(limit *admission.User) error {
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
		return api.Errorf(api.CodeBadRequest, "slice %s cannot be resumed: without NVML free device memory is unknown (%s)", s.id(), s.e.options.NoTruth)
	}
	all := again(was.Processes)
	defer closeAll(all)
	away, err := s.areAway(all)
	if err != nil {
		return err
	}
	undo, err := s.takeBack(was.Processes, limit)
	if err == nil {
		if _, err = s.hasRoom(away, was.Spare); err == nil {
			err = s.storeSuspension(&store.Suspension{State: api.Resuming, Processes: was.Processes, Spare: was.Spare})
		}
		if err != nil {
			undo()
		}
	}
	if err != nil {
		if was.State != api.Suspended { // an earlier move was interrupted
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

// areAway returns the processes with their memory off the devices. It fails if the driver has lost one: then the rest cannot return either.
func (s *slice) areAway(all []*moved) (away []*moved, err error) {
	for _, p := range all {
		state, err := s.state(p)
		switch {
		case err != nil && len(p.Bytes) > 0:
			return nil, s.cannot(err)
		case state == checkpoint.Failed:
			return nil, api.Errorf(api.CodeBadRequest, "slice %s cannot be resumed: the driver lost process %d (%s) in an earlier attempt: end it, then resume the others", s.id(), p.PID, process.Name(p.PID))
		case state == checkpoint.Checkpointed:
			away = append(away, p)
		}
	}
	return away, s.renoteLeft(away)
}

// moveBack brings the memory back to the devices, then unlocks all processes. After an error they stay in the states that they have reached.
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
	defer s.boundMove(all)() // other slices wait for the reserved room
	for i, p := range away {
		if err := s.reserveRoom(away[i:], left); err != nil {
			return err
		}
		if err := s.bring(p, checkpoint.Locked); err != nil {
			return err
		}
		if _, itself := s.itself(p); itself {
			s.keeps(p, max(s.kept(p), sum(p.OnHost())))
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

// goesOn records that the slice is no longer suspended, once all processes run.
func (s *slice) goesOn() error {
	if err := s.storeSuspension(nil); err != nil {
		s.setSuspension(nil) // the next enforcer finds all processes running
		s.log.Error("end of the suspension not persisted: the next enforcer detects it", "err", err)
	}
	s.mu.Lock()
	s.recommit()
	s.mu.Unlock()
	s.mayKeep()
	return nil
}

// stay moves away again the processes that had come back, since not all could; why is the reason. The slice is then suspended.
func (s *slice) stay(all []*moved, why error) error {
	began := time.Now()
	var errs []error
	for _, p := range all {
		state, err := s.state(p)
		if state == checkpoint.Failed || err != nil && len(p.Bytes) == 0 {
			continue // lost, or without memory
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
			err = nil // memory that it has not moved counts as left
		}
		errs = append(errs, err)
	}
	errs = append(errs, s.renoteLeft(all))
	if err := errors.Join(errs...); err != nil {
		return s.between(all, errors.Join(why, err))
	}
	return s.settleAway(all, why.Error(), began)
}

// between leaves a slice with some processes away, or in unknown states. It counts for all its quotas, and can be resumed again.
func (s *slice) between(all []*moved, why error) error {
	s.log.Error("slice partly in host memory: resume it again", "err", why)
	now := &store.Suspension{State: api.Resuming, Processes: records(all), Reason: why.Error()}
	err := s.storeSuspension(now)
	if err != nil {
		s.setSuspension(now) // the next enforcer reads the states from the driver, whatever is stored
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

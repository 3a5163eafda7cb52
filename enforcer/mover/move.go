// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

const (
	// residue is the most bytes that may stay on a device for a checkpointed process: 4 MiB of context were seen.
	residue = 64 << 20
	// spare is the free memory needed for a process beyond the driver's figure: 6 MiB were seen that the driver lists for no process.
	spare = 64 << 20
)

// Move has the processes of a slice open, to move their memory. Called in the slice's turn. After an error they stay in the states that they have reached.
type Move struct {
	slice *Slice
	all   []*proc
	stay  map[string]uint64 // bytes of each device that processes that move themselves may leave there together
	away  []*proc           // those that have to return, by FindAway
	spare map[string]uint64 // see needed
}

// Begin returns a move of the processes that may hold device memory. Processes that move their memory themselves may together leave the bytes in stay.
// The caller closes it.
func (s *Slice) Begin(stay map[string]uint64) *Move {
	var known store.Suspension
	for _, p := range s.processes(func(*quota.Lane) bool { return true }) {
		known.Processes = append(known.Processes, store.Moved{Process: p})
	}
	m := s.Continue(&known)
	m.stay = stay
	return m
}

// Continue returns a move of the suspended processes that are still alive. The caller closes it.
func (s *Slice) Continue(was *store.Suspension) *Move {
	m := &Move{slice: s, spare: was.Spare}
	for _, p := range was.Processes {
		if handle, err := process.Again(p.PID, p.Start); err == nil {
			m.all = append(m.all, &proc{Moved: p, slice: s, handle: handle})
		}
	}
	return m
}

// Close closes the processes, and ends what fitsLimit and fitsHost count for the move.
func (m *Move) Close() {
	for _, p := range m.all {
		p.handle.Close()
	}
	m.slice.locked(func() { m.slice.moving = 0 })
	of := m.slice.mover
	of.fitting.Wait()
	defer of.fitting.Give()
	delete(of.granted, m.slice)
}

// Processes returns the records of the processes.
func (m *Move) Processes() []store.Moved {
	records := make([]store.Moved, 0, len(m.all))
	for _, p := range m.all {
		records = append(records, p.Moved)
	}
	return records
}

// Handles returns the open processes.
func (m *Move) Handles() (all []*process.Handle) {
	for _, p := range m.all {
		all = append(all, p.handle)
	}
	return all
}

// Longest returns the bytes of the processes, and the longest time in which a sound move of them ends.
func (m *Move) Longest() (bytes uint64, most time.Duration) {
	for _, p := range m.all {
		bytes += sum(p.Bytes)
	}
	return bytes, m.slice.mover.Call + time.Duration(bytes/slowest)*time.Second
}

// Measure records the bytes that the driver lists for each process. A process that holds memory and never attached is an error: what it allocates during
// the move would be unknown.
func (m *Move) Measure() error {
	s := m.slice
	others, err := m.measure()
	for pid, bytes := range others {
		if s.Owner.Owns(pid) && process.Exists(pid) {
			return Unmovable{api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: process %d (%s) holds %s and never attached: end it first",
				s.ID, pid, process.Name(pid), api.FormatSize(bytes))}
		}
	}
	return err
}

// measure also returns the sums of other processes, by pid.
func (m *Move) measure() (others map[int]uint64, err error) {
	listed, others, err := m.slice.listed(m.all)
	for i, p := range m.all {
		p.Bytes = listed[i]
	}
	divide(m.stay, m.all)
	return others, err
}

// listed returns the bytes that the driver lists for each process, by device, and the sums of other processes, by pid.
func (s *Slice) listed(all []*proc) (bytes []map[string]uint64, others map[int]uint64, err error) {
	others = make(map[int]uint64)
	of := make(map[int]map[string]uint64)
	for _, p := range all {
		of[p.PID] = make(map[string]uint64)
		bytes = append(bytes, of[p.PID])
	}
	for _, d := range s.mover.Devices {
		listed, err := s.mover.Truth.Processes(d.UUID)
		if err != nil {
			return bytes, nil, fmt.Errorf("device %s: %w", d.UUID, err)
		}
		for pid, held := range listed {
			switch ours := of[pid]; {
			case ours != nil && held == driver.Unknown:
				return bytes, nil, fmt.Errorf("device %s: %w", d.UUID, driver.ErrUntold)
			case ours != nil && held > 0:
				ours[d.UUID] = held
			case ours == nil && held > 0 && held != driver.Unknown:
				others[pid] += held
			}
		}
	}
	return bytes, others, nil
}

// divide divides the bytes that may stay on each device among the processes that move themselves, in their order.
func divide(stay map[string]uint64, all []*proc) {
	rest := make(map[string]uint64)
	maps.Copy(rest, stay)
	for _, p := range all {
		p.mayLeave = make(map[string]uint64)
		if _, can := p.claim(); !can || p.toDriver {
			continue
		}
		for uuid, bytes := range p.Bytes {
			p.mayLeave[uuid] = min(bytes, rest[uuid])
			rest[uuid] -= p.mayLeave[uuid]
		}
	}
}

// Check returns an error if it is known in advance that the processes cannot be moved to host memory. The memory of an evicted slice has to fit
// into HostLimit.
func (m *Move) Check(evicted bool) error {
	for _, p := range m.all {
		if _, can := p.claim(); can { // the driver's state matters only if the driver has to move it (lock)
			continue
		}
		if err := p.driverCanMove(); err != nil {
			return err
		}
	}
	if evicted {
		if err := m.slice.fitsLimit(m.all); err != nil {
			return err
		}
	}
	return m.slice.fitsHostOrDriver(m.all, func(p *proc, _ error) error {
		p.toDriver = true
		return p.driverCanMove()
	})
}

// Lock locks all processes, and measures them again: they may have allocated more before they were locked.
func (m *Move) Lock() error {
	for _, p := range m.all {
		if err := p.lock(); err != nil {
			return err
		}
		killpoint.Pass("move.locked")
	}
	if _, err := m.measure(); err != nil {
		return err
	}
	return m.slice.fitsHostOrDriver(m.all, (*proc).lockByDriver)
}

// Out moves the memory of the locked processes to the host. It fails if the driver still lists memory for a checkpointed process, and records what
// the others have left on the devices.
func (m *Move) Out() error {
	for _, p := range m.all {
		if err := p.moveAway(); err != nil {
			return err
		}
		killpoint.Pass("move.checkpointed")
	}
	left, err := m.slice.recordLeft(m.all)
	if err != nil {
		return err
	}
	for i, p := range m.all {
		for uuid, bytes := range left[i] {
			if bytes > residue && p.Left == nil && p.handle.Alive() {
				return api.Errorf(api.CodeInternal, "slice %s cannot be suspended: process %d is checkpointed, but the driver still lists %s for it on device %s: it may be memory shared with other processes, which stays there",
					m.slice.ID, p.PID, api.FormatSize(bytes), uuid)
			}
		}
	}
	return nil
}

// OutAgain moves away again the processes that have come back. Memory that a process does not move itself counts as left.
func (m *Move) OutAgain() error {
	var errs []error
	for _, p := range m.all {
		state, err := p.state()
		if state == checkpoint.Failed || err != nil && len(p.Bytes) == 0 {
			continue // lost, or without memory
		}
		p.mayLeave = p.Left
		if err == nil && state == checkpoint.Running {
			err = p.lock()
		}
		p.allowLeaving()
		if err == nil {
			err = p.bring(checkpoint.Checkpointed)
		}
		if p.movesSelf() && !m.slice.mover.stopped(err) {
			err = nil
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, m.slice.recordLeftAgain(m.all))...)
}

// FindAway finds the processes with their memory off the devices. It fails if the driver has lost one: then the rest cannot return either.
func (m *Move) FindAway() error {
	m.away = nil
	for _, p := range m.all {
		state, err := p.state()
		switch {
		case err != nil && len(p.Bytes) > 0:
			return p.explain(err)
		case state == checkpoint.Failed:
			return api.Errorf(api.CodeBadRequest, "slice %s cannot be resumed: the driver lost %s in an earlier attempt: end it, then resume the others", m.slice.ID, p)
		case state == checkpoint.Checkpointed:
			m.away = append(m.away, p)
		}
	}
	return m.slice.recordLeftAgain(m.away)
}

// Back brings the memory back to the devices, where it was reserved, and then unlocks all processes.
func (m *Move) Back() error {
	defer m.slice.mover.rooms.release(m.slice)
	for len(m.away) > 0 {
		if err := m.reserve(); err != nil {
			return err
		}
		p := m.away[0]
		if err := p.bring(checkpoint.Locked); err != nil {
			return err
		}
		if p.movesSelf() {
			p.recordKept()
		}
		m.away = m.away[1:]
		killpoint.Pass("move.restored")
	}
	m.slice.mover.rooms.release(m.slice)
	for _, p := range m.all {
		if err := p.bring(checkpoint.Running); err != nil {
			return err
		}
		killpoint.Pass("move.unlocked")
	}
	return nil
}

// LeaveLess has processes that are off their devices, and left memory that they can move, leave less. It reports whether they did.
func (m *Move) LeaveLess(stay map[string]uint64) (less bool, err error) {
	var rests []*proc
	before := uint64(0)
	for _, p := range m.all {
		if p.movesSelf() && !p.ByDriver {
			rests, before = append(rests, p.rest()), before+sum(p.Left)
		}
	}
	divide(stay, rests)
	if err := m.slice.fitsAll(rests); err != nil {
		return false, err
	}
	for _, p := range rests {
		p.allowLeaving()
		if err := p.request(ledger.Aside, p.moveTime()); m.slice.mover.stopped(err) {
			return false, err
		}
	}
	if err := m.slice.recordLeftAgain(m.all); err != nil {
		return false, err
	}
	after := uint64(0)
	for _, p := range m.all {
		after += sum(p.Left)
	}
	return after+residue < before, nil
}

// rest returns what the process has left on the devices as a process of its own.
func (p *proc) rest() *proc {
	return &proc{Moved: store.Moved{Process: p.Process, Bytes: p.Left}, slice: p.slice, handle: p.handle, inUse: sum(p.OnHost())}
}

// LeaveToDriver marks the processes of which the driver has to move the rest. The caller stores that before OutByDriver.
func (m *Move) LeaveToDriver() error {
	var rests []*proc
	for _, p := range m.all {
		p.ByDriver = p.movesSelf()
		rest := p.rest()
		rest.toDriver = true
		rests = append(rests, rest)
	}
	return m.slice.fitsAll(rests)
}

// OutByDriver has the driver move what the marked processes have left.
func (m *Move) OutByDriver() error {
	var errs []error
	for _, p := range m.all {
		if !p.ByDriver {
			continue
		}
		err := p.bringByDriver(checkpoint.Locked)
		if err == nil {
			err = p.bringByDriver(checkpoint.Checkpointed)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(append(errs, m.slice.recordLeftAgain(m.all))...); err != nil {
		return err
	}
	for _, p := range m.all {
		if len(p.Left) > 0 {
			return api.Errorf(api.CodeInternal, "slice %s: the driver has checkpointed process %d, but still lists %s for it", m.slice.ID, p.PID, api.FormatSize(sum(p.Left)))
		}
	}
	return nil
}

// recordLeft records what processes that move themselves hold on the devices now, and returns the bytes of each process.
func (s *Slice) recordLeft(all []*proc) ([]map[string]uint64, error) {
	listed, _, err := s.listed(all)
	if err != nil {
		return nil, err
	}
	for i, p := range all {
		if p.Left = nil; p.movesSelf() {
			p.Left = maps.Clone(listed[i])
			maps.DeleteFunc(p.Left, func(_ string, bytes uint64) bool { return bytes <= residue })
		}
	}
	return listed, nil
}

// recordLeftAgain is recordLeft for processes off their devices, some of which may have come back in part. It does nothing if none of them moves itself.
func (s *Slice) recordLeftAgain(away []*proc) (err error) {
	if slices.ContainsFunc(away, (*proc).movesSelf) {
		_, err = s.recordLeft(away)
	}
	return err
}

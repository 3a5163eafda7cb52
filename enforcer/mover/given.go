// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"math"
	"os"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/store"
	"github.com/gpuslice/gpuslice/hostmem"
)

// If the operator chose a cgroup for it, host memory of processes that move themselves is charged there instead of in their own (package hostmem). A
// process requests it in parts while it moves (ATTACH_OP_HOST), maps it, and keeps no descriptor. It gets at most what the driver listed for it at the
// start of the move, and nothing while its slice is on its devices.
//
// A process returns the host memory that it kept when that is reclaimed (ledger.Bare). If by its claim its memory is on its devices, the
// enforcer empties the host memory, answer or not: none of its data is there.

// HostMemory provides host memory that is charged elsewhere: hostmem.Keeper. The caller retries what fails.
type HostMemory interface {
	Begin() (fresh bool, err error) // fresh: the state of earlier memory is unknown
	PID() (int, error)              // of a process in the charged cgroup
	Grow(p hostmem.Process, size, from, to uint64) (*os.File, error)
	Trim(p hostmem.Process, from, to uint64) error
	Bytes(p hostmem.Process) (uint64, error)
	Used() (uint64, error) // of the whole cgroup
	Err() error            // why it provides nothing; never blocks
	Close() error
}

// isGiven reports whether the process's host memory is to be charged to the operator's cgroup.
func (p *proc) isGiven() bool {
	_, can := p.claim()
	return can && !p.toDriver && p.slice.mover.HostMemory != nil
}

// mayHave returns the most host memory that a process may have now.
func (s *Slice) mayHave(peer store.Process) (bytes uint64) {
	var now *store.Suspension
	s.locked(func() { now = s.Owner.Suspended() })
	if now != nil {
		for _, p := range now.Processes {
			if p.Process == peer {
				bytes = hostmem.Up(sum(p.Bytes))
			}
		}
	}
	return bytes
}

// GiveHost grows a process's host memory from one size to another.
func (s *Slice) GiveHost(peer *process.Handle, from, to uint64) ([]*os.File, error) {
	m, p := s.mover, store.Process{PID: peer.PID, Start: peer.Start}
	switch {
	case (from|to)%hostmem.Step != 0 || from >= to, to-from > ledger.HostPart:
		return nil, ledger.StatusMalformed
	case m.HostMemory == nil:
		return nil, ledger.StatusOwn
	case !s.Elastic:
		return nil, ledger.StatusRefused
	}
	s.asking.Wait()
	defer s.asking.Give()
	m.Giving.Wait()
	defer m.Giving.Give()
	if to > s.mayHave(p) {
		return nil, ledger.StatusRefused
	}
	err := s.fitsGiven(to - from)
	var file *os.File
	if err == nil {
		file, err = m.HostMemory.Grow(hostmem.Process(p), m.largest(), from, to)
	}
	s.locked(func() {
		if l := s.Quota.Of(peer.PID); l != nil {
			l.NoHost = err
		}
	})
	if err != nil {
		return nil, ledger.StatusRefused
	}
	killpoint.Pass("host.given")
	return []*os.File{file}, nil
}

// largest is the most host memory that a process can need: it uses one device.
func (m *Mover) largest() (size uint64) {
	for _, d := range m.Devices {
		size = max(size, hostmem.Up(d.Total))
	}
	return size
}

// fitsGiven returns an error if the operator's cgroup has no room for more bytes.
func (s *Slice) fitsGiven(bytes uint64) error {
	pid, err := s.mover.HostMemory.PID()
	if err != nil {
		return api.Errorf(api.CodeBadRequest, "slice %s: %v", s.ID, err)
	}
	const kernels = 64 // 1/kernels at most is the kernel's own for it
	return s.fitsCgroups(map[int]uint64{pid: bytes + bytes/kernels}, nil)
}

// takeBack empties a process's host memory, part by part, while still reports that none of its data can be there.
func (m *Mover) takeBack(of store.Process, still func() bool) {
	if m.HostMemory == nil {
		return
	}
	p := hostmem.Process(of)
	for from, size, more := uint64(0), m.largest(), true; more && from < size; from += ledger.HostPart {
		if bytes, err := m.HostMemory.Bytes(p); err != nil || bytes == 0 {
			return
		}
		m.Giving.Wait()
		more = still() && m.HostMemory.Trim(p, from, min(size, from+ledger.HostPart)) == nil
		m.Giving.Give()
	}
}

// takeBackKept takes back a process's host memory after it was reclaimed by this word, unless the word has changed or its slice is off its devices.
func (s *Slice) takeBackKept(l *quota.Lane, want uint8) {
	s.mover.takeBack(store.Process{PID: l.Process.PID, Start: l.Process.Start}, func() bool {
		s.Quota.Lock.Lock()
		defer s.Quota.Lock.Unlock()
		if !s.Quota.Has(l) || s.Owner.Suspended() != nil {
			return false
		}
		c := s.Quota.Ledger.MoveOf(l.Number)
		return c.Is == ledger.Running && c.Want == want && l.Kept == 0
	})
}

// BeganAnew takes back what a process was given before it called execve.
func (s *Slice) BeganAnew(peer *process.Handle) {
	known := false
	s.locked(func() { known = s.Quota.Of(peer.PID) != nil })
	if known && s.Elastic {
		s.mover.takeBack(store.Process{PID: peer.PID, Start: peer.Start}, func() (resident bool) {
			s.locked(func() { resident = s.Owner.Suspended() == nil })
			return resident
		})
	}
}

// Recall restores the sizes of host memory that processes kept under the former enforcer. If the holder is new they are unknown, and the
// processes are requested to return it.
func (m *Mover) Recall() {
	if m.HostMemory == nil {
		return
	}
	fresh, err := m.HostMemory.Begin()
	if err != nil {
		m.Log.Error("processes that move their own memory get no host memory", "err", err)
		return
	}
	for _, s := range m.Elastic() {
		for _, p := range s.processes(func(*quota.Lane) bool { return s.Owner.Suspended() == nil }) {
			bytes, err := m.HostMemory.Bytes(hostmem.Process(p))
			if err != nil {
				continue
			}
			if fresh {
				bytes = 1 // the size is unknown
			}
			s.locked(func() {
				if l := s.lane(p); l != nil && s.Quota.Ledger.MoveOf(l.Number).Is == ledger.Running {
					l.Kept = bytes
				}
			})
		}
		if fresh {
			s.reclaim(math.MaxUint64, 0)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"math"
	"os"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/hostmem"
)

// If the operator chose a cgroup for it, host memory of processes that move themselves is charged there instead of in their own (package hostmem). A
// process requests it in parts while it moves (ATTACH_OP_HOST), maps it, and keeps no descriptor. It gets at most what the driver listed for it at the
// start of the move, and nothing while its slice is on its devices.
//
// A process returns the host memory that it kept when it is requested to be bare (ledger.Bare). If by its claim its memory is on its devices, the
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

// isGiven reports whether a process's host memory is to be charged to the operator's cgroup.
func (s *slice) isGiven(p *moved) bool {
	_, can := s.word(p)
	return can && !p.byDriver && s.e.options.HostMemory != nil
}

// mayHave returns the most host memory that a process may have now.
func (s *slice) mayHave(peer process.Identity) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspension == nil {
		return 0
	}
	for _, p := range s.suspension.Processes {
		if p.PID == peer.PID && p.Start == peer.Start {
			return hostmem.Up(sum(p.Bytes))
		}
	}
	return 0
}

// giveHost grows a process's host memory from one size to another.
func (s *slice) giveHost(peer *process.Handle, from, to uint64) ([]*os.File, error) {
	h := s.e.options.HostMemory
	switch {
	case (from|to)%hostmem.Step != 0 || from >= to, to-from > ledger.HostPart:
		return nil, ledger.StatusMalformed
	case h == nil:
		return nil, ledger.StatusOwn
	}
	if s.residency == nil {
		return nil, ledger.StatusRefused
	}
	s.residency.hosting.Wait()
	defer s.residency.hosting.Give()
	s.e.hosting.Wait()
	defer s.e.hosting.Give()
	if to > s.mayHave(peer.Identity) {
		return nil, ledger.StatusRefused
	}
	err := s.fitsGiven(to - from)
	var file *os.File
	if err == nil {
		file, err = h.Grow(hostmem.Process{PID: peer.PID, Start: peer.Start}, s.e.hostSize(), from, to)
	}
	s.mu.Lock()
	if l := s.quota.Of(peer.PID); l != nil {
		l.NoHost = err
	}
	s.mu.Unlock()
	if err != nil {
		return nil, ledger.StatusRefused
	}
	killpoint.Pass("host.given")
	return []*os.File{file}, nil
}

// hostSize is the most that a process can need: it uses one device.
func (e *Enforcer) hostSize() (size uint64) {
	if e.truth == nil {
		return 0
	}
	for _, g := range e.truth.devices {
		size = max(size, hostmem.Up(g.Total))
	}
	return size
}

// fitsGiven returns an error if the operator's cgroup has no room for more bytes.
func (s *slice) fitsGiven(bytes uint64) error {
	pid, err := s.e.options.HostMemory.PID()
	if err != nil {
		return api.Errorf(api.CodeBadRequest, "slice %s: %v", s.id(), err)
	}
	const kernels = 64 // 1/kernels at most is the kernel's own for it
	return s.fitsCgroups(map[int]uint64{pid: bytes + bytes/kernels})
}

// takeBackHost empties a process's host memory, part by part, while still reports that none of its data can be there.
func (e *Enforcer) takeBackHost(p hostmem.Process, still func() bool) {
	h := e.options.HostMemory
	if h == nil {
		return
	}
	for from, size := uint64(0), e.hostSize(); from < size; from += ledger.HostPart {
		if bytes, err := h.Bytes(p); err != nil || bytes == 0 {
			return
		}
		if !e.takeBackPart(p, from, min(size, from+ledger.HostPart), still) {
			return
		}
	}
}

func (e *Enforcer) takeBackPart(p hostmem.Process, from, to uint64, still func() bool) bool {
	e.hosting.Wait()
	defer e.hosting.Give()
	return still() && e.options.HostMemory.Trim(p, from, to) == nil
}

// emptied takes back a process's host memory after it was requested to be bare by this word, unless the word has changed or its slice is off its
// devices.
func (s *slice) emptied(l *quota.Lane, want uint8) {
	s.e.takeBackHost(hostmem.Process{PID: l.Process.PID, Start: l.Process.Start}, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.quota.Has(l) || s.suspension != nil {
			return false
		}
		m := s.quota.Ledger.MoveOf(l.Number)
		return m.Is == ledger.Running && m.Want == want && l.Kept == 0
	})
}

// beganAnew takes back what a process was given before it called execve.
func (s *slice) beganAnew(peer *process.Handle) {
	s.mu.Lock()
	was := s.quota.Of(peer.PID)
	s.mu.Unlock()
	if was != nil && s.request.Elastic {
		s.e.takeBackHost(hostmem.Process{PID: peer.PID, Start: peer.Start}, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.suspension == nil
		})
	}
}

// recallHost restores the sizes of host memory that processes kept under the former enforcer. If the holder is new they are unknown, and the
// processes are requested to return it.
func (e *Enforcer) recallHost() {
	h := e.options.HostMemory
	if h == nil {
		return
	}
	fresh, err := h.Begin()
	if err != nil {
		e.log.Error("processes that move their own memory get no host memory", "err", err)
		return
	}
	for _, s := range e.elasticOnes() {
		var all []*quota.Lane
		s.mu.Lock()
		if s.suspension == nil && s.quota.Ledger != nil {
			for l := range s.quota.Lanes() {
				all = append(all, l)
			}
		}
		s.mu.Unlock()
		for _, l := range all {
			bytes, err := h.Bytes(hostmem.Process{PID: l.Process.PID, Start: l.Process.Start})
			if err != nil {
				continue
			}
			s.mu.Lock()
			if s.quota.Has(l) && s.quota.Ledger.MoveOf(l.Number).Is == ledger.Running {
				l.Kept = bytes
				if fresh {
					l.Kept = 1 // the size is unknown
				}
			}
			s.mu.Unlock()
		}
		if fresh {
			s.bare(math.MaxUint64, func(*quota.Lane) bool { return true })
		}
	}
}

func (e *Enforcer) hostCheck() []api.Check {
	h := e.options.HostMemory
	if h == nil {
		return nil
	}
	c := api.Check{Name: "host_memory", OK: true}
	if err := h.Err(); err != nil {
		c.OK, c.Message = false, "processes that move their own memory are left to the driver: "+err.Error()
	}
	return []api.Check{c}
}

// HostMemory returns the bytes charged to the operator's cgroup; false if there is none.
func (e *Enforcer) HostMemory() (bytes uint64, known bool) {
	if e.options.HostMemory == nil {
		return 0, false
	}
	bytes, err := e.options.HostMemory.Used()
	return bytes, err == nil
}

// both combines the reasons why neither the process nor the driver has host memory.
func (s *slice) both(itself, byDriver error) error {
	if itself == nil || itself.Error() == byDriver.Error() || errors.Is(byDriver, ErrClosed) {
		return byDriver
	}
	return api.Errorf(api.CodeBadRequest, "%v; and by the driver: %v", itself, byDriver)
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/quota"
)

// settleExecuted gives back what a process held before it called execve: with its old image went what the driver held for it,
// and the ledger. If the new image asks for a place its lane is settled then (attach). One that never does is found here: driver
// truth says that it holds nothing on the device, its lane says that it does, and it has not got the ledger any more, so that
// nobody can write that lane. A checkpointed process still has it.
//
// It goes on aside, once at a time: to read what a process has mapped can take as long as the process likes. It says whether
// there may be any.
func (s *slice) settleExecuted(raw [16]byte, listed map[int]use) bool {
	var found []*quota.Lane
	s.mu.Lock()
	index := s.quota.Index(raw)
	for pid, l := range s.quota.Processes() {
		// By the lane as it is now: who holds bytes in it has mapped the page. One that was just given may not be mapped yet.
		if _, is := listed[pid]; index >= 0 && s.quota.State == api.Active && !is && s.quota.Ledger.Held(index, l.Number) > 0 {
			found = append(found, l)
		}
	}
	if len(found) == 0 || s.executed {
		s.mu.Unlock()
		return len(found) > 0
	}
	s.executed = true
	s.mu.Unlock()
	go func() {
		for _, l := range found {
			if mapped, err := ledger.Mapped(l.Process.PID, s.quota.Identity); mapped || err != nil {
				continue
			}
			s.mu.Lock()
			if s.quota.Has(l) && l.Process.Alive() { // nobody has asked for a place meanwhile
				s.quota.Settle(l)
				for _, p := range s.pools {
					p.settle(l.Process.PID)
				}
			}
			s.mu.Unlock()
		}
		s.mu.Lock()
		s.executed = false
		s.mu.Unlock()
	}()
	return true
}

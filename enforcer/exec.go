// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/quota"
)

// settleExecuted releases what a process held before it called execve, which freed its device memory and unmapped the ledger. If the new image
// attaches, attach settles the lane. If it never does, the lane is settled here: the driver lists nothing for the process on the device, the lane holds
// bytes, and the process has no longer mapped the ledger, so it cannot write the lane. A checkpointed process still has it mapped.
//
// Reading a process's mappings can take as long as the process chooses, so it runs in the background, once at a time. The result is true if there may
// be such a process.
func (s *slice) settleExecuted(raw [16]byte, listed map[int]use) bool {
	var found []*quota.Lane
	s.mu.Lock()
	index := s.quota.Index(raw)
	for pid, l := range s.quota.Processes() {
		// A lane with bytes means that its process has mapped the page. An empty one may be too new for that.
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
			if s.quota.Has(l) && l.Process.Alive() { // no new attach in between
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

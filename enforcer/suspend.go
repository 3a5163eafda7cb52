// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"slices"

	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
)

// suspend lets others have what a checkpointed process is charged for. That it is gone from the device driver truth
// must say: a process of the slice is not believed.
func (s *slice) suspend(peer *process.Handle, pid uint64) error {
	s.mu.Lock()
	l := s.quota.Sibling(peer.Identity, pid)
	devices, suspended := slices.Clone(s.quota.Devices), s.suspension != nil
	s.mu.Unlock()
	switch {
	case l == nil:
		return ledger.StatusNotMember
	case s.e.truth == nil || s.record() || suspended:
		return ledger.StatusUnknown
	}
	for _, d := range devices {
		g := s.e.truth.device(d.UUID)
		if g == nil {
			return ledger.StatusUnknown
		}
		all, err := s.e.truth.processes(g, patienceOfProcess)
		if bytes := all[l.Process.PID]; err != nil || bytes != 0 || bytes == driver.Unknown {
			return ledger.StatusUnknown
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(); err != nil {
		return err
	}
	switch {
	case !s.quota.Has(l):
		return ledger.StatusNotMember
	case s.suspension != nil:
		return ledger.StatusUnknown
	case len(s.quota.Devices) != len(devices): // of one that came meanwhile the driver was not asked
		return ledger.StatusUnknown
	}
	if err := s.quota.Suspend(l); err != nil {
		return err
	}
	for _, p := range s.pools {
		if err := p.onLane(l.Process.PID, p.quota.Suspend); err != nil {
			return err
		}
	}
	killpoint.Pass("suspend.done")
	s.log.Debug("a process is checkpointed", "pid", l.Process.PID)
	return nil
}

// resume takes back what suspend gave, on all devices or on none.
func (s *slice) resume(peer *process.Handle, pid uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(); err != nil {
		return err
	}
	l := s.quota.Sibling(peer.Identity, pid)
	if l == nil {
		return ledger.StatusNotMember
	}
	if s.suspension != nil { // with all others of the slice, and by the enforcer
		return ledger.StatusRefused
	}
	was, err := s.quota.Resume(l, func() error { return resumeIn(s.pools, l.Process.PID) })
	if err != nil {
		return err
	}
	if was {
		s.log.Debug("a checkpointed process comes back", "pid", l.Process.PID)
	}
	return nil
}

// resumeIn takes back what suspend gave in these pools, or in none: a pool's lock is not taken while another's is held.
func resumeIn(pools []*pool, pid int) error {
	var resumed []*pool
	for _, p := range pools {
		err := p.onLane(pid, func(l *quota.Lane) error {
			was, err := p.quota.Resume(l, nil)
			if was {
				resumed = append(resumed, p)
			}
			return err
		})
		if err != nil {
			for _, p := range resumed {
				_ = p.onLane(pid, p.quota.Suspend) // what fails here is seen by the next check
			}
			return err
		}
	}
	return nil
}

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
	devices := slices.Clone(s.quota.Devices)
	s.mu.Unlock()
	switch {
	case l == nil:
		return ledger.StatusNotMember
	case s.e.truth == nil || s.record():
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
	case len(s.quota.Devices) != len(devices): // of one that came meanwhile the driver was not asked
		return ledger.StatusUnknown
	}
	if err := s.quota.Suspend(l); err != nil {
		return err
	}
	if s.pool != nil {
		if err := s.pool.onLane(l.Process.PID, s.pool.quota.Suspend); err != nil {
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
	was, err := s.quota.Resume(l, func() error {
		if s.pool == nil {
			return nil
		}
		return s.pool.onLane(l.Process.PID, func(l *quota.Lane) error {
			_, err := s.pool.quota.Resume(l, nil)
			return err
		})
	})
	if err != nil {
		return err
	}
	if was {
		s.log.Debug("a checkpointed process comes back", "pid", l.Process.PID)
	}
	return nil
}

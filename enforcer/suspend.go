// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"fmt"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// A checkpointed process (cuCheckpointProcess*) holds nothing on the device until it is restored. Its lane stays as
// it is, since only its owner may write it; the limit is raised by what it holds, so that others may take that. It is
// lowered first whenever the process comes back, or its lane is settled: then never too much is charged. One that is brought back
// behind our back holds that beyond its lane (charged).
//
// A restart lowers the limit, since only the page says who is checkpointed. What others took meanwhile stays, and who was away comes
// back when it fits again.

// away is what checkpointed processes are charged for on the device: bytes of the page's limit, and of what is used
// there, that are nobody's. Called with mu held.
func (d *device) away() uint64 {
	var sum uint64
	for _, bytes := range d.suspended {
		sum += bytes
	}
	return sum
}

// given is the limit without that. Called with mu held.
func (d *device) given() uint64 {
	if d.Limit == ledger.NoLimit {
		return d.Limit
	}
	return d.Limit - d.away()
}

// setAway changes what a lane counts for, and the limit with it, if there is one. Called with mu held.
func (d *device) setAway(number uint32, bytes uint64) error {
	limit := d.Limit
	if limit != ledger.NoLimit {
		limit += bytes - d.suspended[number]
	}
	if err := d.setLimit(limit); err != nil {
		return err
	}
	if bytes == 0 {
		delete(d.suspended, number)
	} else {
		d.suspended[number] = bytes
	}
	return nil
}

// sibling is the lane of the process that peer knows by a pid. Called with mu held.
func (s *slice) sibling(peer *process.Handle, pid uint64) *lane {
	for _, l := range s.lanes {
		if l.process.PIDNS == peer.PIDNS && uint64(l.process.NSPID) == pid {
			return l
		}
	}
	return nil
}

// suspend lets others have what a checkpointed process is charged for. That it is gone from the device driver truth
// must say: a process of the slice is not believed.
func (s *slice) suspend(peer *process.Handle, pid uint64) error {
	s.mu.Lock()
	l := s.sibling(peer, pid)
	devices := append([]*device(nil), s.devices...)
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
		if bytes := all[l.process.PID]; err != nil || bytes != 0 || bytes == driver.Unknown {
			return ledger.StatusUnknown
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(); err != nil {
		return err
	}
	if s.lanes[l.number] != l {
		return ledger.StatusNotMember
	}
	l.lent = false
	s.ledger.SetSuspended(l.number) // first: by that the next enforcer knows why a limit is higher
	killpoint.Pass("suspend.marked")
	for i, d := range devices {
		if err := d.setAway(l.number, s.ledger.Held(i, l.number)); err != nil {
			s.damaged(fmt.Errorf("the limit on device %s cannot be raised: %w", d.uuid, err))
			return ledger.StatusClosed
		}
		killpoint.Pass("suspend.raised")
	}
	if s.pool != nil {
		if err := s.pool.suspend(l.process.PID); err != nil {
			return err
		}
	}
	killpoint.Pass("suspend.done")
	s.log.Debug("a process is checkpointed", "pid", l.process.PID)
	return nil
}

// resume takes back what suspend gave, on all devices or on none.
func (s *slice) resume(peer *process.Handle, pid uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(); err != nil {
		return err
	}
	l := s.sibling(peer, pid)
	if l == nil {
		return ledger.StatusNotMember
	}
	if l.lent && exceeded(s.ledger, s.devices, l.number, s.figures) {
		return ledger.StatusRefused
	}
	was, undo, err := takeBack(s.devices, l.number, s.figures)
	if err != nil {
		return err
	}
	if s.pool != nil {
		if err := s.pool.resume(l.process.PID); err != nil {
			undo()
			return err
		}
	}
	l.lent = false
	s.ledger.SetLive(l.number)
	if was {
		s.log.Debug("a checkpointed process comes back", "pid", l.process.PID)
	}
	return nil
}

// forgetSuspended is for a lane that is about to be settled. Called with mu held.
func (s *slice) forgetSuspended(l *lane) {
	for _, d := range s.devices {
		if d.suspended[l.number] == 0 {
			continue
		}
		if err := d.setAway(l.number, 0); err != nil && s.state == api.Active {
			s.damaged(fmt.Errorf("the limit on device %s cannot be lowered: %w", d.uuid, err))
		}
	}
}

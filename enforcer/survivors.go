// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"slices"

	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// Who outlives a session. A session ends with its first process, or when it is released by force, and what descended from it
// may live on: nobody's descendants any more, so it cannot be told that they were the session's. Those that have a place in its
// ledger are known. They get nothing more, and what they hold is not free: until the last of them has ended, the session
// counts for what it held, to its devices and to its user, like a container that is released while it has processes. Otherwise a
// user would have as much as he likes, by one session after the other.

// outlive notes who of the session's processes are alive when it is released. Called with mu held.
func (s *slice) outlive() {
	if !s.request.Session {
		return
	}
	for _, l := range s.lanes {
		s.survive(process.Again(l.process.PID, l.process.Start))
	}
}

// findSurvivors finds them again: those that a former enforcer noted. If the session ended while there was none, whoever has its
// ledger. Called with change and mu held.
func (s *slice) findSurvivors(noted []store.Process) {
	if !s.request.Session {
		return
	}
	for _, p := range noted {
		s.survive(process.Again(p.PID, p.Start))
	}
	if len(noted) > 0 || s.ledger == nil {
		return
	}
	for _, pid := range s.e.pages.whoHas(s.identity) {
		s.survive(process.Open(pid))
	}
	for number := uint32(1); number <= s.ledger.HighLane(); number++ {
		if owner, _, live := s.ledger.Lane(number); live && s.e.pages.mayHave(s.identity, owner.PID) {
			s.survive(process.Again(owner.PID, owner.Start))
		}
	}
}

func (s *slice) survive(p *process.Handle, err error) {
	switch {
	case err == nil && p.Alive() && !s.mayOutlive(p.PID):
		s.survivors = append(s.survivors, p)
	case err == nil:
		p.Close()
	case !errors.Is(err, process.ErrDead):
		s.log.Error("a process that outlives the session is not known: what it holds counts for nothing", "err", err)
	}
}

// mayOutlive says whether a process is one of those. Called with mu held.
func (s *slice) mayOutlive(pid int) bool {
	return slices.ContainsFunc(s.survivors, func(p *process.Handle) bool { return p.PID == pid && p.Alive() })
}

// outlived says whether somebody outlives the session. Called with change held.
func (s *slice) outlived() bool { return slices.ContainsFunc(s.survivors, (*process.Handle).Alive) }

// watchSurvivors has the session cleared away once nobody is left. Called with change held, once.
func (e *Enforcer) watchSurvivors(s *slice) error {
	died := func() {
		if e.lockChange() != nil {
			return
		}
		defer e.change.Unlock()
		if _, known := e.lingering[s]; known && !s.outlived() {
			e.clear(s)
		}
	}
	var errs []error
	for _, p := range s.survivors {
		errs = append(errs, e.deaths.Watch(p, func() { go died() }))
	}
	return errors.Join(errs...)
}

// letSurvivors closes what is open for them. Called with change held.
func (s *slice) letSurvivors() {
	for _, p := range s.survivors {
		s.e.deaths.Unwatch(p)
		p.Close()
	}
	s.survivors = nil
}

// storedSurvivors is those as the store keeps them. Called with mu held.
func (s *slice) storedSurvivors() (stored []store.Process) {
	for _, p := range s.survivors {
		stored = append(stored, store.Process{PID: p.PID, Start: p.Start})
	}
	return stored
}

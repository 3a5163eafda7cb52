// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"crypto/rand"
	"fmt"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// late is what a restart could not take up whole, for want of something that may be there later: each regular look tries it again.
// Of restore, and then of the regular look.
//
// A new ledger is one of these: it must be on disk before anybody has it, or the next enforcer would not find it.
type late struct {
	slices map[*slice]store.Slice // whose new ledgers the disk did not take
	pools  map[*pool]struct{}     // the like
	deaf   map[*slice]struct{}    // without an attach socket
}

func newLate() late {
	return late{make(map[*slice]store.Slice), make(map[*pool]struct{}), make(map[*slice]struct{})}
}

func errLate(err error) error {
	return fmt.Errorf("its new ledger has to be on disk first, which is tried again and again: %w", err)
}

// takeUpLate tries it again.
func (e *Enforcer) takeUpLate() {
	l := &e.late
	for s := range l.deaf {
		if e.find(s.id()) != s {
			delete(l.deaf, s)
		} else if s.turn.TryTake() {
			if e.reopen(s) == nil {
				delete(l.deaf, s)
			}
			s.turn.Give()
		}
	}
	for p := range l.pools {
		if e.findPool(p.name) != p || e.diskIsWell() && p.takeUpLate() {
			delete(l.pools, p)
		}
	}
	if e.diskIsWell() {
		e.takeUpSlicesLate()
	}
}

func (e *Enforcer) takeUpSlicesLate() {
	late := e.late.slices
	for s, r := range late {
		if e.find(s.id()) != s {
			delete(late, s)
			continue
		}
		if !s.turn.TryTake() {
			continue
		}
		took := s.takeUpLate(r)
		s.turn.Give()
		if !took {
			continue
		}
		delete(late, s)
		s.log.Info("the disk takes the slice, which goes on")
	}
}

// takeUpLate says whether the disk takes the slice. Called in the slice's turn.
func (s *slice) takeUpLate(r store.Slice) bool {
	if s.beginAgain(r.LedgerName) != nil {
		return false
	}
	s.takeUp(r)
	s.mu.Lock()
	s.state, s.reason = api.Active, ""
	expired := s.expired
	if expired {
		s.shut()
	}
	s.mu.Unlock()
	if expired {
		s.denyNative()
	}
	return true
}

// beginAgain gives a slice whose ledger nobody has another one, which is stored before anybody has it. Called in the slice's turn.
func (s *slice) beginAgain(name [16]byte) error {
	if s.ledger == nil {
		if err := s.begin(name); err != nil {
			return err
		}
	}
	return s.e.store.PutSlice(s.storedNow())
}

// takeUpLate says whether the disk takes the pool.
func (p *pool) takeUpLate() bool {
	if !p.turn.TryTake() {
		return false
	}
	defer p.turn.Give()
	if p.beginAgain() != nil {
		return false
	}
	p.mu.Lock()
	p.state, p.reason = api.Active, ""
	p.mu.Unlock()
	p.log.Info("the disk takes the pool, which goes on")
	return true
}

// beginAgain gives a pool whose ledger nobody has another one, which is stored before anybody has it. Called in the pool's turn, or
// before anybody knows the pool.
func (p *pool) beginAgain() error {
	p.mu.Lock()
	err := p.makeLedger()
	record := p.stored()
	p.mu.Unlock()
	if err != nil {
		return err
	}
	return p.e.store.PutPoolState(p.name, record)
}

// makeLedger is called with mu held.
func (p *pool) makeLedger() error {
	if p.ledger != nil {
		return nil
	}
	name := p.identity.Name
	if name == [16]byte{} {
		if _, err := rand.Read(name[:]); err != nil {
			return err
		}
	}
	return p.begin(name)
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"maps"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/driver"
)

// This file is about elastic pools. Their members are elastic slices, each of which is moved by itself. A pool counts for all its quotas while a
// member is resident, and otherwise for what the members left on the devices: so to get its room all members are evicted, or none. An evicted
// member's memory stays charged in the pool's ledger, so that it fits when it returns.

// gone is a member that is off its devices.
type gone struct {
	left map[string]uint64 // bytes still on each device
	pids map[int]uint64    // start times of its processes
}

// isAway reports whether no member of an elastic pool is on its devices, and no process of a released one. Called with mu held.
func (p *pool) isAway() bool {
	if !p.asked.Elastic || len(p.gone) < len(p.members) {
		return false
	}
	for l := range p.quota.Lanes() {
		if !p.isGone(l.Process.PID, l.Process.Start) && l.Process.Alive() {
			return false
		}
	}
	return true
}

func (p *pool) isGone(pid int, start uint64) bool {
	for _, g := range p.gone {
		if began, is := g.pids[pid]; is && began == start {
			return true
		}
	}
	return false
}

// commitment returns the pool's grant on each device. Called with mu held, or before the pool is registered.
func (p *pool) commitment() map[string]uint64 {
	if !p.isAway() {
		return p.present()
	}
	left := make(map[string]uint64)
	for _, g := range p.gone {
		for uuid, bytes := range g.left {
			left[uuid] += bytes
		}
	}
	return left
}

// present is commitment for a pool with resident members. Called with mu held, or before the pool is registered.
func (p *pool) present() map[string]uint64 {
	has := p.quota.Commitment()
	for uuid, bytes := range p.coming {
		has[uuid] = max(has[uuid], bytes)
	}
	return has
}

// follow notes whether a member is off its devices. Called with the member's mu held, or before it is registered.
func (p *pool) follow(s *slice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, member := p.members[s]; !member || !p.asked.Elastic {
		return
	}
	p.note(s)
	p.recount()
}

// recount is recommit after changes other than to the pool's own quotas. Called with mu held.
func (p *pool) recount() {
	if p.asked.Elastic && p.quota.State == api.Active {
		p.recommit()
	}
}

// note is follow with mu held.
func (p *pool) note(s *slice) {
	if !s.isAway() {
		delete(p.gone, s)
		return
	}
	g := gone{left: make(map[string]uint64), pids: make(map[int]uint64)}
	left := s.left()
	for _, d := range p.quota.Devices { // others are of other pools
		if left[d.Name] > 0 {
			g.left[d.Name] = left[d.Name]
		}
	}
	for _, process := range s.suspension.Processes {
		g.pids[process.PID] = process.Start
	}
	p.gone[s] = g
}

// admitInPools has admission count all quotas of the slice's elastic pools again, before it returns; those of all pools, or of none. recommit undoes
// that. Called in its turn, with its mu held.
func (s *slice) admitInPools() error {
	for i, p := range s.pools {
		if err := p.admit(s); err != nil {
			for _, p := range s.pools[:i] {
				p.follow(s)
			}
			return err
		}
	}
	return nil
}

// admit has admission count the pool's quotas, or what its members hold if that is more.
func (p *pool) admit(s *slice) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.asked.Elastic || !p.isAway() {
		delete(p.gone, s)
		return nil
	}
	if _, err := p.e.book.Admit(p.holder, p.needs()); err != nil {
		return err
	}
	delete(p.gone, s)
	return nil
}

// needs returns what an elastic pool must be granted for a member's return: its quotas, or what members hold if that is more. Called with mu held.
func (p *pool) needs() map[string]uint64 {
	needs := p.present()
	for i, d := range p.quota.Devices {
		needs[d.Name] = max(needs[d.Name], p.quota.Used(i))
	}
	return needs
}

// addNeeds adds what the pool must be granted for a member's return, if it is off its devices. Called with the member's mu held.
func (p *pool) addNeeds(to map[string]uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isAway() {
		maps.Copy(to, p.needs())
	}
}

// grant has admission count what the pool is about to have on these devices; for a pool off its devices, from its return on. done is called when the
// pool has it, or will not. Called in the pool's turn.
func (p *pool) grant(wants map[string]uint64) (done func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isAway() {
		if _, err := p.e.book.Admit(p.holder, wants); err != nil {
			return nil, err
		}
	}
	p.coming = wants
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.coming = nil; p.quota.State == api.Active {
			p.recommit()
		}
	}, nil
}

// promise notes the most that an elastic pool can be granted, or returns why that is too much. Called in its turn.
func (p *pool) promise(wants map[string]uint64) error {
	if !p.asked.Elastic {
		return nil
	}
	p.mu.Lock()
	all := p.quota.Commitment()
	p.mu.Unlock()
	maps.Copy(all, wants)
	return p.e.book.Promise(admission.Ask{Holder: p.holder, Bytes: all})
}

// keepPromise resets the promise to the quotas in force.
func (p *pool) keepPromise() {
	if !p.asked.Elastic {
		return
	}
	p.mu.Lock()
	all := p.quota.Commitment()
	p.mu.Unlock()
	p.e.book.NotePromise(p.holder, all)
}

// idleAfter is api.IdleAfter. Tests use a shorter time.
var idleAfter = func() time.Duration { return api.IdleAfter }

// idleHolders returns the resident elastic holders without a call for idleAfter.
func (e *Enforcer) idleHolders() (idle []*admission.Holder) {
	for _, u := range units(e.elasticOnes()) {
		if c, goes := u.mayGo(time.Now(), e.options.Elastic); goes && !c.away && c.idle >= idleAfter() {
			idle = append(idle, u.holder)
		}
	}
	return idle
}

// wantBack returns the request for room with which the slice can return, after a refusal on a device.
func (s *slice) wantBack(refused string) want {
	w := want{Ask: admission.Ask{Holder: s.holder, User: s.userLimit()}, priority: s.request.Priority}
	if len(s.pools) == 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		w.Bytes, w.Quotas = s.quota.Commitment(), s.quotas
		return w
	}
	p := s.pools[0]
	if uuid, err := driver.ParseUUID(refused); err == nil {
		p = cmp.Or(s.poolOn(uuid.Raw), p)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return want{Ask: admission.Ask{Holder: p.holder, Bytes: p.needs(), Quotas: p.quotas}, priority: w.priority}
}

// has returns what is granted to the slice, or to its pools, on each device.
func (s *slice) has() map[string]uint64 {
	has := s.e.book.Has(s.holder)
	for _, p := range s.pools {
		maps.Copy(has, s.e.book.Has(p.holder))
	}
	return has
}

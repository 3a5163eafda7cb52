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

// Elastic pools. The members are elastic slices, which are moved each by itself. The pool counts for all of its quotas while one of them is on
// its devices, and else for what they have left there: so whoever wants its room has all of them moved aside, or none. What a member has in host
// memory stays in the pool's ledger, so that it fits into the pool whenever it comes back.

// gone is a member that is off its devices.
type gone struct {
	left map[string]uint64 // of its memory, by device
	pids map[int]uint64    // its processes, with when each began
}

// isAway says whether nobody of an elastic pool is on its devices: none of its members, and no process of one that was released. Called with mu held.
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

// commitment is what the pool is given of each device. Called with mu held, or before anybody knows the pool.
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

// present is what it is given while somebody is on its devices. Called with mu held, or before anybody knows the pool.
func (p *pool) present() map[string]uint64 {
	has := p.quota.Commitment()
	for uuid, bytes := range p.coming {
		has[uuid] = max(has[uuid], bytes)
	}
	return has
}

// follow notes whether a member is off its devices. Called with the member's mu held, or before anybody knows it.
func (p *pool) follow(s *slice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, member := p.members[s]; !member || !p.asked.Elastic {
		return
	}
	p.note(s)
	p.recount()
}

// recount is recommit for what others than the pool's own quotas have changed. Called with mu held.
func (p *pool) recount() {
	if p.asked.Elastic && p.quota.State == api.Active {
		p.recommit()
	}
}

// note is follow's, with mu held.
func (p *pool) note(s *slice) {
	if !s.isAway() {
		delete(p.gone, s)
		return
	}
	g := gone{left: make(map[string]uint64), pids: make(map[int]uint64)}
	left := s.left()
	for _, d := range p.quota.Devices { // the others are other pools'
		if left[d.Name] > 0 {
			g.left[d.Name] = left[d.Name]
		}
	}
	for _, process := range s.suspension.Processes {
		g.pids[process.PID] = process.Start
	}
	p.gone[s] = g
}

// admitInPools has the slice's elastic pools count for all of their quotas again, since it is about to come back; all of them or none. recommit takes
// that back while it is away. Called in its turn, with its mu held.
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

// admit has the pool count for all of its quotas, or for what its members hold where that is more.
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

// needs is what an elastic pool has to be given for the return of a member: as much as they hold, where a quota was lowered below that. Called with
// mu held.
func (p *pool) needs() map[string]uint64 {
	needs := p.present()
	for i, d := range p.quota.Devices {
		needs[d.Name] = max(needs[d.Name], p.quota.Used(i))
	}
	return needs
}

// grant has the book count what the pool is about to have on these devices; while an elastic one is away it does so from the pool's return on. done
// is called when it has that, or will not. Called in the pool's turn.
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

// promise notes what an elastic pool may ever be given, or says why that is too much. Called in its turn.
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

// keepPromise notes again what the pool may be given by the quotas that are in force.
func (p *pool) keepPromise() {
	if !p.asked.Elastic {
		return
	}
	p.mu.Lock()
	all := p.quota.Commitment()
	p.mu.Unlock()
	p.e.book.NotePromise(p.holder, all)
}

// idleAfter is api.IdleAfter. Tests have less.
var idleAfter = func() time.Duration { return api.IdleAfter }

// idleHolders are the elastic holders on their devices that have made no call for idleAfter.
func (e *Enforcer) idleHolders() (idle []*admission.Holder) {
	for _, u := range units(e.elasticOnes()) {
		if c, goes := u.mayGo(time.Now(), e.options.Elastic); goes && !c.away && c.idle >= idleAfter() {
			idle = append(idle, u.holder)
		}
	}
	return idle
}

// wantBack is what the slice needs to come back, for whoever was refused it on a device.
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

// has is what of the devices is granted for the slice, to it or to its pools.
func (s *slice) has() map[string]uint64 {
	has := s.e.book.Has(s.holder)
	for _, p := range s.pools {
		maps.Copy(has, s.e.book.Has(p.holder))
	}
	return has
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"os"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

func (p *pool) storeLedger() error {
	return storeLedger(p.quota, p.turn, func() error { return refusal(p.quota) }, func() error {
		p.mu.Lock()
		record := p.stored()
		p.mu.Unlock()
		record.Ledger = store.Ledger(p.quota.Identity)
		if err := p.e.store.PutPoolState(p.name, record); err != nil {
			return err
		}
		killpoint.Pass("attach.pool.stored")
		return nil
	})
}

// attach gives a process of a member a lane and the pool's ledger. On success the lane owns the process's handle.
func (p *pool) attach(l *quota.Lane) (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := refusal(p.quota); err != nil {
		return nil, err
	}
	return p.quota.Attach(l)
}

// settle settles a process's lane in the pool while the process lives: its lane in the slice is settled, or was withdrawn. Called with the slice's mu
// held.
func (p *pool) settle(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.quota.Of(pid); l != nil {
		p.quota.Settle(l)
	}
}

// onLane calls do with the pool's lane of a member's process, if it has one. Called with the slice's mu held.
func (p *pool) onLane(pid int, do func(*quota.Lane) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.quota.Of(pid)
	if err := refusal(p.quota); err != nil || l == nil {
		return err
	}
	return do(l)
}

// shortfall is what a process holds in its slice's ledger and not in the pool's. An honest process has one for an instant between its two charges, or
// while it is stopped there; a process that has overwritten or bypassed the pool's page keeps it. So the enforcer charges it, up to the driver's
// figure, once neither lane has changed for bypass_grace. If the driver has no figure, it is charged only within the pool's limit.
type shortfall struct {
	inSlice, inPool uint64    // numbers of the lanes' last changes
	since           time.Time // when these were first seen
	bytes, charged  uint64
	unverified      bool // the driver has no figure
}

// beyondLanes charges the pool for what the driver holds for a member's processes beyond their lanes: bytes, by the slice's samples. complete is set if
// all of them are known. Called with the slice's mu held.
func (p *pool) beyondLanes(s *slice, raw [16]byte, bytes uint64, complete bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	index := p.quota.Index(raw)
	if index < 0 || p.quota.State != api.Active {
		return
	}
	of := p.sharesOn(p.quota.Devices[index])
	_, first := of.unheard[s]
	first = first && complete
	if complete {
		delete(of.unheard, s)
	}
	if of.beyond[s] == bytes && !first {
		return
	}
	if of.beyond[s] = bytes; bytes == 0 {
		delete(of.beyond, s)
	}
	p.setExcess(index)
}

// reconcile checks that a member's processes charged to the pool what they charged to their slice. Called with the slice's mu held.
func (p *pool) reconcile(s *slice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quota.State != api.Active {
		return
	}
	for i, sd := range s.quota.Devices {
		index := p.quota.Index(sd.UUID)
		if index < 0 {
			continue
		}
		of := p.sharesOn(p.quota.Devices[index])
		before, short, told := of.short[s], make(map[int]shortfall), s.e.tells(sd.UUID)
		for pid, l := range s.quota.Processes() {
			now := shortfall{unverified: !told, since: time.Now()}
			if pl := p.quota.Of(pid); pl != nil {
				now.inPool, now.bytes = p.quota.Ledger.Number(index, pl.Number), p.quota.Ledger.Held(index, pl.Number)
			}
			held := s.quota.Ledger.Held(i, l.Number)
			if told {
				held = min(held, s.found[sd.UUID].driver(pid))
			}
			now.inSlice, now.bytes = s.quota.Ledger.Number(i, l.Number), held-min(held, now.bytes)
			if now.bytes == 0 {
				continue
			}
			old := before[pid]
			now.charged = min(old.charged, now.bytes)
			if old.bytes > 0 && old.inSlice == now.inSlice && old.inPool == now.inPool {
				if now.since = old.since; time.Since(now.since) >= s.e.options.Policy.Grace {
					now.charged = now.bytes
				}
			}
			short[pid] = now
		}
		if len(before) == 0 && len(short) == 0 {
			continue
		}
		of.short[s] = short
		p.setExcess(index)
	}
}

// setExcess charges the sums over all members. Called with mu held.
func (p *pool) setExcess(index int) {
	d := p.quota.Devices[index]
	of := p.sharesOn(d)
	var known, unverified uint64
	for _, bytes := range of.beyond {
		known += bytes
	}
	for _, short := range of.short {
		for _, s := range short {
			if s.unverified {
				unverified += s.charged
			} else {
				known += s.charged
			}
		}
	}
	if len(of.unheard) > 0 {
		known = max(known, d.Inherited)
	}
	p.quota.SetExcess(index, known, unverified)
}

// join and part add and remove a member. A slice joins in the pool's turn, or before the pool is registered.
func (p *pool) join(s *slice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.members[s] = struct{}{}
}

func (p *pool) part(s *slice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, member := p.members[s]; !member {
		return
	}
	delete(p.members, s)
	for i, d := range p.quota.Devices {
		of := p.sharesOn(d)
		_, unheard := of.unheard[s]
		if of.beyond[s] == 0 && of.short[s] == nil && !unheard {
			continue
		}
		delete(of.unheard, s)
		delete(of.beyond, s)
		delete(of.short, s)
		if p.quota.State == api.Active {
			p.setExcess(i)
		}
	}
}

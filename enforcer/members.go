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

// attach gives a process of a member a lane, and the pool's ledger. If there is no error the process is the lane's.
func (p *pool) attach(l *quota.Lane) (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := refusal(p.quota); err != nil {
		return nil, err
	}
	return p.quota.Attach(l)
}

// settle is for a process whose lane in its slice is settled although it lives, or was not given to it after all. Called with the slice's mu
// held.
func (p *pool) settle(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.quota.Of(pid); l != nil {
		p.quota.Settle(l)
	}
}

// onLane does something with the lane that a member's process has in the pool, if it has one. Called with the slice's mu held.
func (p *pool) onLane(pid int, do func(*quota.Lane) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.quota.Of(pid)
	if err := refusal(p.quota); err != nil || l == nil {
		return err
	}
	return do(l)
}

// shortfall is what a process holds in its slice and not in the pool. Between its two charges an honest one does, for an
// instant, or for as long as it is stopped there; one that has overwritten the pool's page, or leaves it out, for good. So it
// is charged once neither lane has changed throughout bypass_grace, as far as the driver says that the process holds it. Where
// the driver does not say, it is charged as far as it fits: the pool has not more than its limit for what is not verified.
type shortfall struct {
	inSlice, inPool uint64    // numbers of the lanes' last changes
	since           time.Time // when they were those first
	bytes, charged  uint64
	unverified      bool // the driver does not say
}

// beyondLanes charges the pool for what the driver holds for a member's processes beyond their lanes, of which the slice says
// how much it is; complete says that this is known of all of them. Called with the slice's mu held.
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

// reconcile finds out whether what a member's processes charged to their slice they charged to the pool. Called with the slice's
// mu held.
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

// join and part say which slices are members. A slice joins in the pool's turn, or before anybody knows the pool.
func (p *pool) join(s *slice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.members[s] = struct{}{}
	if p.asked.Elastic {
		p.note(s)
	}
}

func (p *pool) part(s *slice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, member := p.members[s]; !member {
		return
	}
	delete(p.members, s)
	delete(p.gone, s)
	defer p.recount()
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

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// noteLedger is the like of a slice's.
func (p *pool) noteLedger() error {
	noted := func() (bool, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.noted, p.refusal()
	}
	if known, err := noted(); known || err != nil {
		return err
	}
	p.turn.Wait()
	defer p.turn.Give()
	if known, err := noted(); known || err != nil {
		return err
	}
	p.mu.Lock()
	record := p.stored()
	p.mu.Unlock()
	record.LedgerName, record.LedgerDev, record.LedgerInode = p.identity.Name, p.identity.Dev, p.identity.Inode
	if err := p.e.store.PutPoolState(p.name, record); err != nil {
		return err
	}
	killpoint.Pass("attach.pool.stored")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noted = true
	return nil
}

// attach gives a process of a member a lane, and the pool's ledger. If it does, h is the lane's.
func (p *pool) attach(h *process.Handle) (uint32, *os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refusal(); err != nil {
		return 0, nil, err
	}
	if old := p.byPID[h.PID]; old != nil {
		p.settle(old) // for the reasons that slice.attach has
		killpoint.Pass("attach.pool.settled")
	}
	return p.give(h)
}

// give is called with mu held. The lane has the process from then on.
func (p *pool) give(h *process.Handle) (uint32, *os.File, error) {
	number, ok := p.place()
	if !ok {
		p.log.Warn("the pool has no free process slot", "pid", h.PID, "slots", ledger.Slots)
		return 0, nil, ledger.StatusFull
	}
	file, err := p.ledger.File()
	if err != nil {
		p.free = append(p.free, number)
		return 0, nil, err
	}
	if err := p.ledger.Assign(number, ledger.Owner{PID: h.PID, Start: h.Start, NSPID: h.NSPID, PIDNS: h.PIDNS}); err != nil {
		file.Close()
		p.damaged(fmt.Errorf("lane %d cannot be given to process %d: %w", number, h.PID, err))
		return 0, nil, ledger.StatusClosed
	}
	killpoint.Pass("attach.pool.assigned")
	l := &poolLane{number: number, generation: p.ledger.Generation(number), process: h}
	p.ledger.SetLive(number)
	p.own(l)
	if err := p.watch(l); err != nil {
		file.Close()
		p.disown(l)
		p.ledger.SetFree(number)
		return 0, nil, err
	}
	killpoint.Pass("attach.pool.live")
	return number, file, nil
}

// own puts a lane on the books; disown takes it off. Called with mu held.
func (p *pool) own(l *poolLane) {
	p.lanes[l.number], p.byPID[l.process.PID], p.live[l.number] = l, l, 1
}

func (p *pool) disown(l *poolLane) {
	delete(p.lanes, l.number)
	if p.byPID[l.process.PID] == l {
		delete(p.byPID, l.process.PID)
	}
	p.live[l.number] = 0
	p.free = append(p.free, l.number)
}

// watch is called with mu held.
func (p *pool) watch(l *poolLane) error {
	return p.e.deaths.Watch(l.process, func() { go p.died(l) })
}

// died gives back what a dead process held of the pool. Its slice does the like for itself; neither waits for the other.
func (p *pool) died(l *poolLane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lanes[l.number] != l {
		return
	}
	killpoint.Pass("death.pool.seen")
	p.settle(l)
}

// withdraw takes back a lane that was given to a process which is not told of it.
func (p *pool) withdraw(number uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.lanes[number]; l != nil {
		p.settle(l)
	}
}

// executed is for a process whose lane in its slice is settled although it lives. Called with the slice's mu held.
func (p *pool) executed(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.byPID[pid]; l != nil {
		p.settle(l)
	}
}

// settle ends a lane. Called with mu held.
func (p *pool) settle(l *poolLane) {
	p.e.deaths.Unwatch(l.process)
	if p.state == api.Active {
		p.forgetSuspended(l)
		if _, err := p.ledger.Settle(l.number, l.generation); err != nil {
			p.damaged(fmt.Errorf("lane %d of process %d cannot be settled: %w", l.number, l.process.PID, err))
		}
		killpoint.Pass("death.pool.settled")
		p.ledger.SetFree(l.number)
	}
	p.disown(l)
	l.process.Close()
}

// suspend and resume do in the pool what slice.suspend and slice.resume do in the slice. Called with the slice's mu held.
func (p *pool) suspend(pid int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.byPID[pid]
	if err := p.refusal(); err != nil || l == nil {
		return err
	}
	l.lent = false
	p.ledger.SetSuspended(l.number)
	for i, d := range p.devices {
		if err := d.setAway(l.number, p.ledger.Held(i, l.number)); err != nil {
			p.damaged(fmt.Errorf("the limit on device %s cannot be raised: %w", d.uuid, err))
			return ledger.StatusClosed
		}
	}
	return nil
}

func (p *pool) resume(pid int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.byPID[pid]
	if err := p.refusal(); err != nil || l == nil {
		return err
	}
	if l.lent && exceeded(p.ledger, p.plain(), l.number, p.figures) {
		return ledger.StatusRefused
	}
	if _, _, err := takeBack(p.plain(), l.number, p.figures); err != nil {
		return err
	}
	l.lent = false
	p.ledger.SetLive(l.number)
	return nil
}

// forgetSuspended is for a lane that is about to be settled. Called with mu held.
func (p *pool) forgetSuspended(l *poolLane) {
	for _, d := range p.devices {
		if d.suspended[l.number] == 0 {
			continue
		}
		if err := d.setAway(l.number, 0); err != nil {
			p.damaged(fmt.Errorf("the limit on device %s cannot be lowered: %w", d.uuid, err))
		}
	}
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
	index := p.find(raw)
	if index < 0 || p.state != api.Active {
		return
	}
	d := p.devices[index]
	_, first := d.unheard[s]
	first = first && complete
	if complete {
		delete(d.unheard, s)
	}
	if d.beyond[s] == bytes && !first {
		return
	}
	if d.beyond[s] = bytes; bytes == 0 {
		delete(d.beyond, s)
	}
	p.chargeBeyond(d)
}

// reconcile finds out whether what a member's processes charged to their slice they charged to the pool. Called with the slice's
// mu held.
func (p *pool) reconcile(s *slice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != api.Active {
		return
	}
	for i, sd := range s.devices {
		index := p.find(sd.UUID)
		if index < 0 {
			continue
		}
		d := p.devices[index]
		before, short, told := d.short[s], make(map[int]shortfall), s.e.tells(sd.UUID)
		for pid, l := range s.byPID {
			now := shortfall{unverified: !told, since: time.Now()}
			if pl := p.byPID[pid]; pl != nil {
				now.inPool, now.bytes = p.ledger.Number(index, pl.number), p.ledger.Held(index, pl.number)
			}
			held := s.ledger.Held(i, l.number)
			if told {
				held = min(held, s.found[sd.UUID].driver(pid))
			}
			now.inSlice, now.bytes = s.ledger.Number(i, l.number), held-min(held, now.bytes)
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
		d.short[s] = short
		p.chargeBeyond(d)
	}
}

// chargeBeyond brings lane 0 to the sums over all members. Called with mu held.
func (p *pool) chargeBeyond(d *poolDevice) {
	var known, unverified uint64
	for _, bytes := range d.beyond {
		known += bytes
	}
	for _, short := range d.short {
		for _, s := range short {
			if s.unverified {
				unverified += s.charged
			} else {
				known += s.charged
			}
		}
	}
	var err error
	if len(d.unheard) > 0 {
		known = max(known, d.inherited)
	}
	if held := d.account.Held(); held < known || held > known+unverified {
		err = d.account.Set(max(known, min(held, known+unverified)))
	}
	used, rest := p.figures(p.find(d.UUID)).Used, known+unverified-d.account.Held()
	if err == nil && rest > 0 && used < d.Limit {
		// Others may take it first: then it is tried again at the next check.
		if err = d.account.Charge(min(rest, d.Limit-used)); errors.Is(err, ledger.ErrRefused) {
			err = nil
		}
	}
	if err != nil {
		p.damaged(fmt.Errorf("overhead on device %s cannot be charged: %w", d.uuid, err))
	}
}

// join and part say which slices are members. A pool that is being deleted takes none.
func (p *pool) join(s *slice) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ending {
		p.members[s] = struct{}{}
	}
	return !p.ending
}

func (p *pool) part(s *slice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, member := p.members[s]; !member {
		return
	}
	delete(p.members, s)
	for _, d := range p.devices {
		_, unheard := d.unheard[s]
		if d.beyond[s] == 0 && d.short[s] == nil && !unheard {
			continue
		}
		delete(d.unheard, s)
		delete(d.beyond, s)
		delete(d.short, s)
		if p.state == api.Active {
			p.chargeBeyond(d)
		}
	}
}

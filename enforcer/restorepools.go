// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// loadPools makes the pools of the store known, without their ledgers. A pool outlives its members, and the host's boot: its
// quotas do.
//
// What counts of a quota is what survives the host; a device's limit of 0 is of one of which the pool could be given nothing.
func (e *Enforcer) loadPools() ([]*pool, error) {
	states, err := e.store.PoolStates()
	if err != nil {
		return nil, err
	}
	var loaded []*pool
	for _, r := range e.store.Pools() {
		p := e.newPool(r.Name, r.Created, r.Quotas)
		state := states[r.Name]
		p.identity = ledger.Identity{Name: state.LedgerName, Dev: state.LedgerDev, Inode: state.LedgerInode}
		p.noted = state.LedgerInode != 0
		for _, l := range state.Limits {
			uuid, err := driver.ParseUUID(l.Device)
			if err != nil {
				continue
			}
			limit := l.Bytes
			if limit != 0 {
				limit, _ = quotaOn(p.quotas, uuid.Raw, l.Total)
			}
			d := p.describe(uuid, limit, l.Total)
			d.most = l.Most
			p.devices = append(p.devices, d)
		}
		loaded = append(loaded, p)
		e.pools[r.Name] = p
	}
	return loaded, nil
}

// reopenPools finds the pools' ledgers again, or makes new ones: before any slice listens, since who attaches to a member
// needs the pool.
func (e *Enforcer) reopenPools(loaded []*pool, released []store.Slice) {
	for _, p := range loaded {
		if err := p.reopen(released); err != nil {
			p.untaken(err)
		}
		e.book.Set(p.holder, p.commitment())
		killpoint.Pass("restore.pool")
	}
}

// untaken says why the pool cannot go on.
func (p *pool) untaken(err error) {
	p.log.Error("the pool cannot be taken up again; no process is let in", "err", err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.reason = api.Damaged, fmt.Sprintf("it could not be taken up again: %v", err)
	p.tellDenied(p.reason)
}

// reopen finds the pool's ledger again, or makes one.
func (p *pool) reopen(released []store.Slice) error {
	if p.ledger = p.e.pages.Take(p.identity); p.ledger != nil {
		p.recover()
		return nil
	}
	if len(p.devices) == 0 {
		p.devices = p.foresee()
	}
	if p.noted {
		pids, err := p.e.pages.MayBeWith(p.identity, func() (func(int) bool, error) { return p.letIn(released) })
		if err := errors.Join(err, errLost(pids)); err != nil {
			return err
		}
	}
	// Nobody has it mapped, so nobody has charged anything to it, and nobody can.
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begin()
}

// letIn is the like of a slice's for its members, and for those that were released and may not be gone.
func (p *pool) letIn(released []store.Slice) (func(pid int) bool, error) {
	var each []func(pid int) bool
	var errs []error
	add := func(is func(pid int) bool, err error) { each, errs = append(each, is), append(errs, err) }
	for _, s := range p.allMembers() {
		add(s.letIn())
	}
	for _, r := range released {
		if r.Request.Pool != p.name {
			continue
		}
		add(func(pid int) bool {
			return slices.ContainsFunc(r.Survivors, func(survivor store.Process) bool { return survivor.PID == pid })
		}, nil)
		if !r.Request.Session {
			add(inCgroup(cgroupOf(r)))
		}
	}
	return func(pid int) bool {
		return slices.ContainsFunc(each, func(is func(int) bool) bool { return is(pid) })
	}, errors.Join(errs...)
}

// recover puts this enforcer's books in order by a page that the predecessor left. Limits are written anew: the predecessor
// may have died between the disk and the page, or have raised them for processes that were checkpointed. Called before anybody
// else has the ledger.
func (p *pool) recover() {
	if !p.recoverDevices() {
		return
	}
	p.next = p.ledger.HighLane() + 1
	for number := uint32(1); number < p.next; number++ {
		p.retake(number)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == api.Active {
		if err := p.verify(); err != nil {
			p.unfit(err)
		}
	}
}

func (p *pool) recoverDevices() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.devices {
		if err := p.write(i); err != nil {
			p.unfit(err)
			return false
		}
	}
	if p.e.truth != nil {
		for _, d := range p.devices {
			d.inherited, d.unheard = d.account.Held(), p.membersOn(d.UUID)
		}
	}
	return true
}

// membersOn are those that have a device, and use it. Called with mu held, before the members serve anybody.
func (p *pool) membersOn(raw [16]byte) map[*slice]struct{} {
	those := make(map[*slice]struct{})
	for s := range p.members {
		if s.find(raw) >= 0 && !s.expired {
			those[s] = struct{}{}
		}
	}
	return those
}

// retake looks whose a lane is, by the page. Who is alive and has the page mapped can still write the lane, so it is
// kept, whatever has become of the process's slice; any other is settled. Called before anybody else has the ledger.
func (p *pool) retake(number uint32) {
	owner, generation, live := p.ledger.Lane(number)
	var h *process.Handle
	if live {
		h, _ = process.Again(owner.PID, owner.Start)
		if h != nil && (!p.e.pages.MayHold(p.identity, h.PID) || !h.Alive()) {
			h.Close()
			h = nil
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !live:
		p.free = append(p.free, number)
		return
	case h != nil && p.byPID[h.PID] == nil:
		l := &poolLane{number: number, generation: generation, process: h, lent: p.ledger.Suspended(number)}
		p.own(l)
		if !l.lent {
			p.ledger.SetLive(number)
		}
		if err := p.watch(l); err != nil {
			p.log.Error("watch a process of the pool", "pid", h.PID, "err", err)
		}
		return
	case h != nil:
		h.Close()
	}
	if _, err := p.ledger.Settle(number, generation); err != nil {
		p.unfit(fmt.Errorf("lane %d of process %d cannot be settled: %w", number, owner.PID, err))
		return
	}
	killpoint.Pass("restore.pool.settled")
	p.ledger.SetFree(number)
	p.free = append(p.free, number)
}

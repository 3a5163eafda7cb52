// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// loadPools loads the stored pools, without their ledgers. A pool and its quotas outlive its members and a reboot.
//
// Quotas are those of the state directory. A limit of 0 means that the pool was granted nothing on that device.
func (e *Enforcer) loadPools() []*pool {
	states := e.store.PoolStates()
	var loaded []*pool
	for _, r := range e.store.Pools() {
		asked := api.PoolRequest{Quotas: r.Asked, Tenant: r.Tenant, TTL: r.TTL, Label: r.Label, Elastic: r.Elastic, Priority: r.Priority, ByGrant: r.ByGrant}
		if asked.Quotas == nil {
			asked.Quotas = r.Quotas
		}
		p := e.newPool(r.Name, r.Created, asked)
		p.quotas = r.Quotas
		state := states[r.Name]
		restoreQuota(p.quota, state.Ledger, state.Damaged, state.Limits, func(uuid driver.UUID, l store.Limit) uint64 {
			if l.Bytes == 0 {
				return 0
			}
			bytes, _ := quotaOn(p.quotas, uuid.Raw, l.Total)
			return bytes
		})
		loaded = append(loaded, p)
		e.pools[r.Name] = p
		p.generation = e.book.Enter(p.holder, p.account())
		e.know(p, p.generation)
	}
	return loaded
}

// reopenPools finds the pools' ledgers, or makes new ones. It runs before any slice listens, since attaching to a member needs the pool.
func (e *Enforcer) reopenPools(loaded []*pool, released []store.Slice) {
	for _, p := range loaded {
		p.turn.Wait() // noteDamage waits for it: no operation of core is pending at Set
		if err := p.reopen(released); err != nil {
			p.untaken(err)
			e.ends.Go(p.noteDamage)
		}
		p.recount()
		p.turn.Give()
		killpoint.Pass("restore.pool")
	}
}

// untaken marks a pool damaged that cannot be taken up.
func (p *pool) untaken(err error) {
	p.log.Error("pool cannot be restored: no process can attach", "err", err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quota.State, p.quota.Reason = api.Damaged, fmt.Sprintf("it could not be restored: %v", err)
	p.tellDenied(p.quota.Reason)
}

func (p *pool) reopen(released []store.Slice) error {
	if p.quota.Ledger = p.e.pages.Take(p.quota.Identity); p.quota.Ledger != nil {
		p.adopt()
		return nil
	}
	if len(p.quota.Devices) == 0 {
		p.quota.Devices = p.foresee(p.quotas)
	}
	if p.quota.Stored {
		pids, err := p.e.pages.MayBeWith(p.quota.Identity, func() (func(int) bool, error) { return p.letIn(released) })
		if err := errors.Join(err, errLost(pids)); err != nil {
			return err
		}
	}
	// No process has it mapped, so none has charged anything, or can.
	return p.quota.Begin()
}

// letIn is the slices' letIn, for members and for released slices that may still have processes.
func (p *pool) letIn(released []store.Slice) (func(pid int) bool, error) {
	var each []func(pid int) bool
	var errs []error
	add := func(is func(pid int) bool, err error) { each, errs = append(each, is), append(errs, err) }
	for _, s := range p.allMembers() {
		add(s.letIn())
	}
	for _, r := range released {
		if !slices.Contains(r.Request.Pools, p.name) {
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

// adopt takes up the ledger that the former enforcer left, and writes its limits again: the enforcer may have died between the disk and the page. A
// living process with the page mapped can still write its lane, so the lane is kept, even if the process's slice has ended.
func (p *pool) adopt() {
	claims := p.quota.Claims(func(h *process.Handle) bool { return p.e.pages.MayHold(p.quota.Identity, h.PID) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quota.Adopt(quota.Restart{Changing: true}, claims)
	if p.e.truth == nil {
		return
	}
	for _, d := range p.quota.Devices {
		p.sharesOn(d).unheard = p.membersOn(d.UUID)
	}
}

// membersOn returns the active members with a device. Called with mu held, before the members serve processes.
func (p *pool) membersOn(raw [16]byte) map[*slice]struct{} {
	those := make(map[*slice]struct{})
	for s := range p.members {
		if s.quota.Index(raw) >= 0 && s.rec.Phase == core.Live {
			those[s] = struct{}{}
		}
	}
	return those
}

// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

func noPool(name string) error {
	return api.Errorf(api.CodeNotFound, "there is no pool %.64q: `gpuslice pool list` lists them", name)
}

// createPool admits a pool.
func (c *Core) createPool(cmd CreatePool) error {
	r := cmd.Pool
	switch {
	case c.pools[r.ID] != nil:
		return api.Errorf(api.CodeExists, "pool %s exists", r.ID)
	case len(c.pools) >= api.MaxPools:
		return api.Errorf(api.CodeBadRequest, "pool %s: there are %d pools, the most that are accepted: delete one", r.ID, api.MaxPools)
	case r.Elastic && c.config.Elastic.Off != "":
		return api.Errorf(api.CodeBadRequest, "pool %s cannot be elastic: %s", r.ID, c.config.Elastic.Off)
	}
	p := newHolder(&Record{
		Kind: Pool, ID: r.ID, Generation: c.nextGeneration(), Tenant: r.Tenant, Private: r.Private, Quotas: r.Quotas, Limits: r.Limits,
		Elastic: r.Elastic, Priority: r.Priority, TTL: r.TTL,
	}, cmd.Holder)
	if err := c.raise(p, p.Limits, p.Quotas, nil); err != nil {
		return err
	}
	p.pending = &operation{next: p.Record, client: cmd.Client}
	p.pending.next.Phase = Live
	c.enter(p)
	c.emit(Make{p.ref(), c.await(p, making), cmd.Client, p.Limits, false})
	return nil
}

// changePool gives a pool other limits.
func (c *Core) changePool(cmd ChangePool) error {
	p := c.pools[cmd.ID]
	switch {
	case p == nil:
		return noPool(cmd.ID)
	case p.Trust == Damaged:
		return api.Errorf(api.CodeBadRequest, "pool %s is damaged (%s): delete it once its members have ended, and create it again", p.ID, p.Why)
	}
	if len(cmd.Quotas) > len(p.Quotas) {
		for _, m := range p.members {
			if len(m.pools) > 1 {
				return api.Errorf(api.CodeBadRequest, "pool %s has a member that is in other pools, too (%s): end that member before you add a quota on another device", p.ID, m.who.Name)
			}
		}
	}
	if err := c.raise(p, cmd.Limits, cmd.Quotas, nil); err != nil {
		return err
	}
	next := p.Record
	next.Quotas, next.Limits, next.Kept = cmd.Quotas, cmd.Limits, c.kept(&p.Record, cmd.Limits)
	c.begin(p, next, cmd.Client)
	return nil
}

// deletePool ends a pool without members. Lingering slices are members: their processes hold memory of the pool.
func (c *Core) deletePool(cmd DeletePool) error {
	p := c.pools[cmd.ID]
	if p == nil {
		return noPool(cmd.ID)
	}
	if n := len(p.members); n > 0 {
		return api.Errorf(api.CodeRunning, "pool %s has %d members (%s): end them first", p.ID, n, Few(names(p.members)))
	}
	c.forget(p, cmd.Client, nil)
	p.pending.must = false // nothing has happened yet: if the store fails, the pool stays, and the client gets the error
	return nil
}

func names(members []*holder) (all []string) {
	for _, m := range members {
		all = append(all, m.who.Name)
	}
	return all
}

// Few returns the first names, for a message.
func Few(names []string) string {
	slices.Sort(names)
	const few = 3
	if len(names) > few {
		return strings.Join(names[:few], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}

// covers reports whether a pool's members may use a device.
func (h *holder) covers(uuid string) bool {
	return slices.ContainsFunc(h.Quotas, func(q api.Quota) bool { return q.Device == api.AllDevices || q.Device == uuid })
}

// poolOn returns the pool of a member on a device; nil if it has none there.
func (h *holder) poolOn(uuid string) *holder {
	for _, p := range h.pools {
		if _, has := p.Limits[uuid]; has {
			return p
		}
	}
	return nil
}

// poolLimit returns the limit of a member's pool on a device.
func (h *holder) poolLimit(uuid string) uint64 {
	if p := h.poolOn(uuid); p != nil {
		return p.Limits[uuid]
	}
	return 0
}

// isAway reports whether no member of an elastic pool is on its devices, nor on the way from or to them.
func (c *grants) isAway(p *holder) bool {
	return p.Elastic && !slices.ContainsFunc(p.members, (*holder).isPresent)
}

// isPresent reports whether a slice is on its devices, or on the way from or to them.
func (h *holder) isPresent() bool {
	return h.Residence != Away || h.pending != nil && !h.pending.forget && h.pending.next.Residence != Away
}

// poolCounts returns what a pool takes from others: its limits, or if it is elastic and away, its members' remaining bytes.
func (c *grants) poolCounts(p *holder) Bytes {
	if !c.isAway(p) {
		return c.poolPresent(p)
	}
	left := make(Bytes)
	for _, m := range p.members {
		for uuid, n := range m.Left {
			if _, limited := p.Limits[uuid]; limited {
				left[uuid] += n
			}
		}
	}
	return left
}

// poolPresent returns the bytes that a pool counts for while a member is on its devices.
func (c *grants) poolPresent(p *holder) Bytes {
	has := c.present(&p.Record)
	if p.pending != nil && !p.pending.forget {
		has.raise(c.present(&p.pending.next))
	}
	return has
}

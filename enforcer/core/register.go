// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// register admits a slice.
func (c *Core) register(cmd Register) error {
	r := cmd.Slice
	if c.slices[r.ID] != nil {
		return api.Errorf(api.CodeExists, "slice %s exists: release it first, or choose another id", r.ID)
	}
	pools, err := c.poolsOf(&r, cmd.Grant)
	if err != nil {
		return err
	}
	ownPriority := !slices.ContainsFunc(pools, func(p *holder) bool { return p.Elastic }) // otherwise it is the pools'
	if maxPriority := c.config.Elastic.MaxPriority; ownPriority && r.Priority > maxPriority && (cmd.User != nil || r.UID == nil) {
		return api.Errorf(api.CodeBadRequest, "slice %s asks for priority %d: up to %d is accepted (max_priority in [elastic] of the configuration)", r.ID, r.Priority, maxPriority)
	}
	if r.TTL, err = Lifetime(r.ID, r.TTL, c.config.MaxTTL); err != nil {
		return err
	}
	h := newHolder(&Record{
		ID: r.ID, Generation: cmp.Or(r.Generation, c.nextGeneration()), Name: r.Name, Tenant: r.Tenant, UID: r.UID, Pools: r.Pools, Quotas: r.Quotas, Limits: r.Limits,
		Unlimited: r.Unlimited, Elastic: r.Elastic, Priority: r.Priority, Native: r.Native, TTL: r.TTL, Deadline: c.deadlineAfter(r.TTL),
	}, cmd.Holder)
	h.pools, h.user, h.active, h.returned = pools, cmd.User, c.now, c.now
	if h.Elastic { // it starts evicted, and returns when a process waits for it
		h.Residence, h.Left = Away, Bytes{}
	}
	if err := c.admit(h, cmd.Stay); err != nil {
		return err
	}
	h.pending = &operation{next: h.Record, client: cmd.Client}
	h.pending.next.Phase = Live
	c.enter(h)
	c.emit(Make{h.ref(), c.await(h, making), cmd.Client, h.Limits, h.Residence == Away})
	return nil
}

// admit returns an error if a new slice cannot have its quotas. With stay no slice is evicted for it.
func (c *Core) admit(h *holder, stay bool) error {
	if c.devices == nil && !h.Unlimited {
		if err := c.config.Limits.CheckSize(h.ID, h.Quotas); err != nil {
			return err
		}
	}
	if h.Elastic && c.config.Elastic.Off != "" {
		return api.Errorf(api.CodeBadRequest, "slice %s cannot be elastic: %s", h.ID, c.config.Elastic.Off)
	}
	if h.Elastic && len(h.Pools) == 0 && !h.Unlimited {
		if err := c.checkPromise(h, c.promisedBy(&h.Record), h.user); err != nil {
			return err
		}
	}
	w := want{h: h, bytes: c.counts(&h.Record), quotas: h.Quotas, user: h.user}
	if stay {
		return c.check(w, nil)
	}
	return c.checkOrEvict(w)
}

// checkOrEvict returns nil if a want can be granted now. Otherwise it begins to evict idle slices if that makes room, and returns an error: with
// CodeBusy if evictions are in progress.
func (c *evictions) checkOrEvict(w want) error {
	err := c.check(w, nil)
	var refused *api.Error
	if !errors.As(err, &refused) || !c.makeRoom(w) {
		return err
	}
	return evicting(refused)
}

// evicting returns the error of a request that is repeated once there is room.
func evicting(refused *api.Error) error {
	busy := *refused
	busy.Code = api.CodeBusy
	busy.Message += ": idle elastic slices are being evicted for it: try again"
	return &busy
}

// poolsOf finds the pools of a new slice, and applies their settings for members to it.
func (c *Core) poolsOf(r *Record, grant bool) (pools []*holder, err error) {
	for _, name := range slices.Sorted(slices.Values(r.Pools)) {
		p := c.pools[name]
		if p == nil || p.Private && !grant {
			return nil, api.Errorf(api.CodeBadRequest, "there is no pool %s for slice %s: `gpuslice pool list` lists the pools, `gpuslice pool create %s --vram SIZE` makes it", name, r.ID, name)
		}
		r.Tenant = cmp.Or(r.Tenant, p.Tenant)
		if p.Elastic {
			r.Elastic, r.Priority = true, p.Priority
		}
		if p.TTL != 0 && (r.TTL == 0 || r.TTL > p.TTL) {
			r.TTL = p.TTL
		}
		pools = append(pools, p)
	}
	for i, p := range pools {
		if p.Tenant != "" && p.Tenant != r.Tenant {
			return nil, api.Errorf(api.CodeBadRequest, "pool %s is tenant %s's, and slice %s asks for tenant %s: leave the tenant out", p.ID, p.Tenant, r.ID, r.Tenant)
		}
		if p.Elastic != r.Elastic {
			return nil, api.Errorf(api.CodeBadRequest, "slice %s cannot be in pool %s: all pools of a slice are elastic, or none is", r.ID, p.ID)
		}
		for _, other := range pools[:i] {
			if device := Overlap(other.Quotas, p.Quotas); device != "" {
				return nil, api.Errorf(api.CodeBadRequest, "pools %s and %s both have a quota on device %s: slice %s can be in one of them", other.ID, p.ID, c.displayName(device), r.ID)
			}
		}
	}
	return pools, c.checkCovered(r, pools, r.Quotas)
}

// checkCovered returns CodeNoDevice if a member has a quota on a device on which none of its pools has one.
func (c *Core) checkCovered(r *Record, pools []*holder, quotas []api.Quota) error {
	for _, q := range quotas {
		if len(pools) == 0 || q.Device == api.AllDevices || slices.ContainsFunc(pools, func(p *holder) bool { return p.covers(q.Device) }) {
			continue
		}
		e := api.Errorf(api.CodeNoDevice, "slice %s has a quota on device %s, where pool %s has none: a member may use what both have", r.ID, q.Device, api.PoolNames(r.Pools))
		e.Device = q.Device
		return e
	}
	return nil
}

// displayName returns a device's name for messages.
func (c *grants) displayName(uuid string) string {
	if d := c.device(uuid); d != nil {
		return d.Shown
	}
	if uuid == api.AllDevices {
		return "all devices"
	}
	return uuid
}

// Overlap returns the device on which both have a quota; "" if there is none.
func Overlap(a, b []api.Quota) string {
	for _, q := range a {
		for _, other := range b {
			switch {
			case q.Device == other.Device, other.Device == api.AllDevices:
				return q.Device
			case q.Device == api.AllDevices:
				return other.Device
			}
		}
	}
	return ""
}

// Lifetime returns the time to live of slice id: ttl, or maxTTL if ttl is 0. For ttl, maxTTL and the result, 0 means unlimited. It returns
// CodeBadRequest if ttl is above maxTTL.
func Lifetime(id string, ttl, maxTTL time.Duration) (time.Duration, error) {
	switch {
	case maxTTL == 0 || ttl > 0 && ttl <= maxTTL:
		return ttl, nil
	case ttl == 0:
		return maxTTL, nil
	}
	return 0, api.Errorf(api.CodeBadRequest, "slice %s: a ttl of %s is not accepted: use up to %s (max_ttl in the configuration)", id, api.FormatTTL(ttl), api.FormatTTL(maxTTL))
}

// deadlineAfter returns the deadline of a slice with this time to live.
func (c *Core) deadlineAfter(ttl time.Duration) time.Duration {
	if ttl == 0 {
		return 0
	}
	return c.now + ttl
}

// attach answers the client if a process of a slice may attach, and returns an error otherwise.
func (c *Core) attach(cmd Attach) error {
	h := c.slices[cmd.ID]
	if h == nil || h.Phase == Admitted {
		return noSlice(cmd.ID)
	}
	if err := c.unchangeable(h); err != nil {
		return err
	}
	if h.Residence != Resident {
		return api.Errorf(api.CodeBusy, "slice %s is %s: a process attaches when its memory is back", h.ID, h.state())
	}
	c.answer(h, cmd.Client, nil)
	return nil
}

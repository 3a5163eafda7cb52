// SPDX-License-Identifier: Apache-2.0

package core

import (
	"maps"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

func noSlice(id string) error { return api.Errorf(api.CodeNotFound, "there is no slice %.255s", id) }

// live finds a slice that can be changed.
func (c *Core) live(id string) (*holder, error) {
	h := c.slices[id]
	if h == nil {
		return nil, noSlice(id)
	}
	return h, c.unchangeable(h)
}

// unchangeable returns CodeExpired or CodeBadRequest if a slice can no longer be changed.
func (c *Core) unchangeable(h *holder) error {
	switch {
	case h.Phase == Expiring, c.mustExpire(h):
		return api.Errorf(api.CodeExpired, "slice %s has expired, and its processes are being ended: it cannot be changed", h.ID)
	case h.Trust == Damaged:
		return api.Errorf(api.CodeBadRequest, "%s is %s, and gets no more memory: it cannot be changed", h.title(), api.Damaged)
	}
	return nil
}

// change gives a slice other limits, or another time to live.
func (c *Core) change(cmd Change) error {
	h, err := c.live(cmd.ID)
	if err != nil {
		return err
	}
	next := h.Record
	if cmd.TTL != nil {
		if next.TTL, err = Lifetime(h.ID, *cmd.TTL, c.config.MaxTTL); err != nil {
			return err
		}
		next.Deadline = c.deadlineAfter(next.TTL)
	}
	if cmd.Quotas != nil {
		if err := c.changeLimits(h, &next, cmd); err != nil {
			return err
		}
	}
	c.begin(h, next, cmd.Client)
	return nil
}

// changeLimits puts other limits into the next record, or returns an error if they are refused.
func (c *Core) changeLimits(h *holder, next *Record, cmd Change) error {
	switch {
	case h.Residence != Resident:
		return api.Errorf(api.CodeBadRequest, "slice %s is %s: `gpuslice resume %s` brings its memory back: do that first", h.ID, h.state(), h.ID)
	case h.Unlimited:
		return api.Errorf(api.CodeBadRequest, "slice %s only records: it has no limit to change, and its mode cannot be changed", h.ID)
	}
	if err := c.checkCovered(&h.Record, h.pools, cmd.Quotas); err != nil {
		return err
	}
	if len(h.pools) == 0 {
		if c.devices == nil {
			if err := c.config.Limits.CheckSize(h.who.Name, cmd.Quotas); err != nil {
				return err
			}
		}
		if err := c.raise(h, cmd.Limits, cmd.Quotas, cmd.User); err != nil {
			return err
		}
	}
	next.Quotas, next.Limits, next.Kept = cmd.Quotas, cmd.Limits, c.kept(&h.Record, cmd.Limits)
	return nil
}

// raise returns an error if a holder cannot have these limits: with CodeBusy while slices are being evicted for them.
func (c *evictions) raise(h *holder, limits Bytes, quotas []api.Quota, user *refusal.User) error {
	wants := c.promisedBy(&Record{Limits: limits})
	if h.Elastic {
		if err := c.checkPromise(h, wants, user); err != nil {
			return err
		}
	}
	if h.Kind == Pool && c.isAway(h) {
		return nil
	}
	return c.checkOrEvict(want{h: h, bytes: wants, quotas: quotas})
}

// useDevice gives a slice or pool a device more. A device of which it can be granted nothing is noted all the same.
func (c *Core) useDevice(cmd UseDevice) error {
	h := c.find(cmd.Kind, cmd.ID)
	var err error
	switch {
	case h == nil && cmd.Kind == Pool:
		err = noPool(cmd.ID)
	case h == nil:
		err = noSlice(cmd.ID)
	default:
		err = c.unchangeable(h)
	}
	if err != nil {
		return err
	}
	if _, has := h.Limits[cmd.Device]; has {
		c.answer(h, cmd.Client, nil)
		return nil
	}
	next := h.Record
	next.Limits = maps.Clone(h.Limits)
	if next.Limits == nil {
		next.Limits = make(Bytes)
	}
	next.Limits[cmd.Device] = cmd.Bytes
	if err = c.mayUse(h, next.Limits, cmd.Device); err != nil {
		next.Limits[cmd.Device] = 0
		e := api.Event{Kind: api.EventDenied, Slice: h.ID, Generation: h.Generation, Device: cmd.Device, Requested: cmd.Bytes, Cause: err.Error()}
		if h.Kind == Pool {
			e.Slice, e.Pool, e.Generation = "", h.ID, 0
		}
		c.emit(Emit{h.ref(), e})
	}
	c.begin(h, next, cmd.Client).err = err
	return nil
}

func (c *Core) mayUse(h *holder, limits Bytes, uuid string) error {
	if h.Kind == Slice && len(h.pools) > 0 {
		if h.poolOn(uuid) == nil {
			e := api.Errorf(api.CodeNoDevice, "slice %s uses device %s, where none of its pools (%s) has a quota", h.ID, uuid, api.PoolNames(h.Pools))
			e.Device = uuid
			return e
		}
		return nil
	}
	wants := c.promisedBy(&Record{Limits: limits})
	if h.Elastic {
		if err := c.checkPromise(h, wants, h.user); err != nil {
			return err
		}
	}
	if h.Unlimited || h.Residence == Away || h.Kind == Pool && c.isAway(h) {
		return nil
	}
	return c.check(want{h: h, bytes: Bytes{uuid: wants[uuid]}}, nil)
}

// mustExpire reports whether a slice is past its deadline, or has an expiryReason.
func (c *grants) mustExpire(h *holder) bool {
	return h.expiryReason != "" || h.Deadline != 0 && c.now >= h.Deadline
}

// tick takes the time. It repeats writes that failed, and ends the slices that have expired.
func (c *Core) tick(now time.Duration) {
	if now < c.now {
		return
	}
	c.now, c.serveAgain = now, true
	retries := c.retries
	c.retries = nil
	for _, h := range retries {
		c.store(h)
	}
	for _, h := range append([]*holder(nil), c.holders...) {
		if c.due(h) {
			c.settle(h)
		}
		if h.Phase == Expiring && h.Asked != 0 && !h.killed && c.now >= h.Asked+c.config.Grace {
			h.killed = true
			c.emit(End{h.ref(), true})
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package core

import (
	"iter"
	"maps"
	"math"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

// sum is what is granted of one device, a cache of granted.
type sum struct {
	all      uint64
	tenants  map[string]uint64 // to the holders that the bound of a tenant counts
	promised uint64            // to elastic holders
}

// granted returns the bytes of devices that a holder takes from others: the larger of its record and the next one.
func (c *grants) granted(h *holder) Bytes {
	if h.removed {
		return nil
	}
	if h.Kind == Pool {
		return c.poolCounts(h)
	}
	has := c.counts(&h.Record)
	if p := h.pending; p != nil && !p.forget {
		has.raise(c.counts(&p.next))
	}
	return has
}

// promise returns the bytes that an elastic holder may have while it is on its devices.
func (c *grants) promise(h *holder) Bytes {
	if h.removed || !h.Elastic || h.Unlimited || len(h.Pools) > 0 {
		return nil
	}
	has := c.promisedBy(&h.Record)
	if p := h.pending; p != nil && !p.forget {
		has.raise(c.promisedBy(&p.next))
	}
	return has
}

func (c *grants) promisedBy(r *Record) Bytes {
	has := make(Bytes)
	for uuid, limit := range r.Limits {
		has[uuid] = min(limit, c.total(uuid))
	}
	return has
}

// count updates the sums for a holder and its elastic pools.
func (c *grants) count(h *holder) {
	has, promised := c.granted(h), c.promise(h)
	for uuid, was := range h.counted {
		if _, still := has[uuid]; !still {
			c.add(uuid, h, -was)
		}
	}
	for uuid, n := range has {
		c.add(uuid, h, n-h.counted[uuid])
	}
	for uuid, was := range h.promised {
		c.change(uuid, func(s *sum) { s.promised -= was })
	}
	for uuid, n := range promised {
		c.change(uuid, func(s *sum) { s.promised += n })
	}
	h.counted, h.promised = has, promised
	for _, p := range h.pools {
		if p.Elastic && !p.removed {
			c.count(p)
		}
	}
}

// add changes the sums of a device. Sums wrap around, so a negative change is a large one.
func (c *grants) add(uuid string, h *holder, change uint64) {
	if change == 0 {
		return
	}
	c.change(uuid, func(s *sum) {
		s.all += change
		if !h.who.Bounded() {
			return
		}
		if s.tenants[h.who.Tenant] += change; s.tenants[h.who.Tenant] == 0 {
			delete(s.tenants, h.who.Tenant)
		}
	})
	if change > math.MaxInt64 { // a negative change
		c.serveAgain = true
	}
}

// change changes the sum of a device. Only devices of which something is granted or promised have one.
func (c *grants) change(uuid string, how func(*sum)) {
	s := c.sums[uuid]
	if s == nil {
		s = &sum{tenants: make(map[string]uint64)}
		c.sums[uuid] = s
	}
	if how(s); s.all == 0 && s.promised == 0 && len(s.tenants) == 0 {
		delete(c.sums, uuid)
	}
}

// on returns the sum of a device.
func (c *grants) on(uuid string) sum {
	if s := c.sums[uuid]; s != nil {
		return *s
	}
	return sum{}
}

// want is a grant that a holder needs, on all devices or none.
type want struct {
	h        *holder
	bytes    Bytes
	quotas   []api.Quota
	user     *refusal.User
	priority int
	busy     bool // slices that are not idle may be evicted for it, too
}

// trial replaces the counts of some holders.
type trial map[*holder]Bytes

func (t trial) has(h *holder, uuid string) uint64 {
	if has, replaced := t[h]; replaced {
		return has[uuid]
	}
	return h.counted[uuid]
}

// check returns an *api.Error if a want cannot be granted.
func (c *grants) check(w want, t trial) error {
	if w.user != nil {
		if err := c.checkUser(w, t); err != nil {
			return err
		}
	}
	for _, uuid := range w.bytes.devices() {
		if err := c.config.Limits.Check(c.ask(w.h, uuid, w.bytes[uuid], t)); err != nil {
			return err
		}
	}
	return nil
}

func (c *grants) ask(h *holder, uuid string, bytes uint64, t trial) refusal.Ask {
	s := c.on(uuid)
	a := refusal.Ask{
		Holder: h.who, UUID: uuid, Device: c.device(uuid), Bytes: bytes,
		Had: h.counted[uuid], Sum: s.all, Tenant: s.tenants[h.who.Tenant], Holders: c.holding(uuid, t),
	}
	for other, has := range t {
		change := has[uuid] - other.counted[uuid]
		a.Sum += change
		if other.who.Bounded() && other.who.Tenant == h.who.Tenant {
			a.Tenant += change
		}
	}
	return a
}

// holding returns all holders and their bytes of a device.
func (c *grants) holding(uuid string, t trial) iter.Seq2[*refusal.Holder, uint64] {
	return func(yield func(*refusal.Holder, uint64) bool) {
		for _, h := range c.holders {
			if !yield(h.who, t.has(h, uuid)) {
				return
			}
		}
	}
}

func (c *grants) device(uuid string) *refusal.Device {
	if d, known := c.devices[uuid]; known {
		return &d
	}
	return nil
}

// checkUser returns an error if the user's limit does not allow the session.
func (c *grants) checkUser(w want, t trial) error {
	var others []*holder
	for _, h := range c.users[w.user.UID] {
		if h != w.h {
			others = append(others, h)
		}
	}
	if err := w.user.CheckSessions(len(others)); err != nil {
		return err
	}
	if c.devices == nil {
		return w.user.CheckUnknown(w.h.who, w.quotas, func(yield func([]api.Quota) bool) {
			for _, h := range others {
				if !yield(h.Quotas) {
					return
				}
			}
		})
	}
	for _, uuid := range w.bytes.devices() {
		var used uint64
		for _, h := range others {
			used += t.has(h, uuid)
		}
		if err := w.user.Check(c.ask(w.h, uuid, w.bytes[uuid], t), used); err != nil {
			return err
		}
	}
	return nil
}

// checkPromise returns an error if an elastic holder may not be promised these bytes: they would not fit on an empty host, or too much is promised
// to others.
func (c *grants) checkPromise(h *holder, bytes Bytes, user *refusal.User) error {
	alone := &grants{config: c.config, devices: c.devices, sums: make(map[string]*sum)}
	if err := alone.check(want{h: &holder{who: h.who}, bytes: bytes, quotas: h.Quotas, user: user}, nil); err != nil {
		return err
	}
	for _, uuid := range bytes.devices() {
		a := refusal.Ask{Holder: h.who, UUID: uuid, Device: c.device(uuid), Bytes: bytes[uuid]}
		if err := refusal.CheckPromise(a, c.config.Elastic.Overcommit, c.on(uuid).promised-h.promised[uuid]); err != nil {
			return err
		}
	}
	return nil
}

// kept returns the bytes that a holder's processes may still hold beyond lower limits.
func (c *grants) kept(r *Record, limits Bytes) Bytes {
	if r.Unlimited || len(r.Pools) > 0 {
		return nil
	}
	kept := c.present(r)
	maps.DeleteFunc(kept, func(uuid string, n uint64) bool { return n <= min(limits[uuid], c.total(uuid)) })
	return kept
}

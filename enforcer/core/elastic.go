// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// restedAfter is in quanta. A waiting slice that made no call for that long returns before other waiters of its priority.
const restedAfter = 10

// askReturn notes that a process of an evicted slice waits for its memory.
func (c *Core) askReturn(id string) {
	h := c.slices[id]
	if h == nil || h.Residence == Resident {
		return
	}
	h.lastAsked = max(c.now, 1) // 0 means never
	if h.waitingSince == 0 {
		h.waitingSince, h.rested = h.lastAsked, c.now-h.active >= restedAfter*c.config.Elastic.Quantum
		c.waiters = append(c.waiters, h)
	}
	c.serveAgain = true
}

// mayReturn reports whether a slice returns when a process asks.
func (h *holder) mayReturn() bool {
	return h.evictable() && (h.Residence == Away || h.Residence == Returning) && !h.Manual && h.Trust != Damaged
}

// serveWaiters returns waiting slices to their devices: the highest priority first, then rested ones, then the longest wait. If a slice does not fit,
// others are evicted for it. Once such evictions have begun, or it has waited for a quantum, slices behind it get no memory on its devices.
func (c *evictions) serveWaiters() {
	if !c.serveAgain || len(c.waiters) == 0 {
		return
	}
	c.serveAgain = false
	c.waiters = slices.DeleteFunc(c.waiters, func(h *holder) bool {
		if done := h.removed || h.waitingSince == 0 || c.now-h.lastAsked > c.config.Elastic.Asking; done {
			h.waitingSince = 0
			return true
		}
		return false
	})
	slices.SortFunc(c.waiters, func(a, b *holder) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), trueFirst(a.rested, b.rested), cmp.Compare(a.waitingSince, b.waitingSince), cmp.Compare(a.Generation, b.Generation))
	})
	claimed := make(map[string]bool)
	for _, h := range c.waiters {
		if h.pending == nil && h.mayReturn() && (h.moveFailedAt == 0 || c.now-h.moveFailedAt >= returnRetryDelay) {
			c.serve(h, claimed)
		}
	}
}

// trueFirst compares booleans, for a sort with true before false.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// serve returns a slice to its devices, or makes room for it on devices that no earlier waiter has claimed.
func (c *evictions) serve(h *holder, claimed map[string]bool) {
	if slices.ContainsFunc(h.pools, (*holder).isLeaving) {
		return // it would keep its pool on the devices, whose room another needs
	}
	wants := c.wantsToReturn(h)
	for _, w := range wants {
		if slices.ContainsFunc(w.bytes.devices(), func(uuid string) bool { return claimed[uuid] }) {
			return
		}
	}
	w, err := c.checkReturn(h)
	if err == nil && (len(h.lacks) == 0 || !c.freeLacking(h)) {
		c.beginMoveIn(h, 0)
		return
	}
	if err != nil {
		h.moveFailure = err.Error()
	}
	if w.busy = true; err == nil || c.makeRoom(w) || c.endsFor(w) || c.holdsRoomFor(h, w) {
		for _, w := range wants {
			for uuid := range w.bytes {
				claimed[uuid] = true
			}
		}
	}
}

// isLeaving reports whether a member of a pool is being evicted.
func (h *holder) isLeaving() bool {
	return slices.ContainsFunc(h.members, func(m *holder) bool {
		return m.pending != nil && !m.Manual && (m.Residence == Leaving || m.pending.next.Residence == Leaving)
	})
}

// freeLacking evicts slices for bytes that a device lacks for a return though they are granted to nobody: a process holds memory that was not granted to it.
// It reports whether evictions from that device are in progress.
func (c *evictions) freeLacking(h *holder) bool {
	w := want{h: h, bytes: h.lacks, priority: h.Priority, busy: true}
	if c.evictingFrom(w) {
		return true
	}
	h.lacks = nil // the next try tells again
	var chosen []unit
	for uuid, n := range w.bytes {
		for _, u := range c.candidates(w, c.config.Elastic.Quantum) {
			if has := u.h.counted[uuid]; has > 0 && n > 0 {
				chosen, n = append(chosen, u), n-min(n, has)
			}
		}
		if n > 0 {
			return false
		}
	}
	c.evict(want{}, chosen) // none of its memory may stay
	return true
}

// endsFor reports whether a slice that blocked others for too long is being ended on a device that a waiter needs.
func (c *evictions) endsFor(w want) bool {
	return slices.ContainsFunc(c.holders, func(h *holder) bool {
		return h.expiryReason != "" && slices.ContainsFunc(w.bytes.devices(), func(uuid string) bool { return h.takes(uuid) > 0 })
	})
}

// holdsRoomFor reports whether room is reserved for a waiter: it has waited for a quantum, and there would be room once the quanta of all other
// slices have ended.
func (c *evictions) holdsRoomFor(h *holder, w want) bool {
	if c.now-h.waitingSince < c.config.Elastic.Quantum {
		return false
	}
	_, enough := c.chooseUnits(w, c.candidates(w, 0))
	return enough
}

// wantsToReturn returns the wants to check before a slice returns: its own, or those of its pools that are away.
func (c *evictions) wantsToReturn(h *holder) (all []want) {
	if len(h.pools) == 0 {
		w := want{h: h, bytes: c.present(&h.Record), quotas: h.Quotas, user: h.user, priority: h.Priority}
		if h.Unlimited {
			w.bytes = nil
		}
		return []want{w}
	}
	for _, p := range h.pools {
		if c.isAway(p) {
			all = append(all, want{h: p, bytes: c.poolPresent(p), quotas: p.Quotas, priority: h.Priority})
		}
	}
	return all
}

// checkReturn returns the first want that cannot be granted for a slice's return, and the error; nil if all can.
func (c *evictions) checkReturn(h *holder) (want, error) {
	t := make(trial)
	for _, w := range c.wantsToReturn(h) {
		if err := c.check(w, t); err != nil {
			return w, err
		}
		t[w.h] = w.bytes // two pools may have a device in common, where one of them had a quota before
	}
	return want{}, nil
}

// unit is a slice, or an elastic pool. The members of a pool are evicted together.
type unit struct {
	h      *holder
	slices []*holder // to be moved
	away   bool      // all are in host memory; slices has those with a rest on a device
	idle   time.Duration
	busy   bool // not idle, but past its quantum
}

// makeRoom begins to evict slices for a want, if evictions can free enough. It reports whether evictions from the want's devices are in progress.
func (c *evictions) makeRoom(w want) bool {
	err := c.check(w, nil)
	if err == nil || api.From(err).Code != api.CodeQuotaExceeded || c.config.Elastic.Off != "" {
		return false // it may fit by itself, and not with another pool of the slice
	}
	if c.evictingFrom(w) {
		return true
	}
	chosen, enough := c.chooseUnits(w, c.candidates(w, c.config.Elastic.Quantum))
	if enough {
		c.evict(w, chosen)
	}
	return enough
}

// evict begins to evict units for a want.
func (c *evictions) evict(w want, chosen []unit) {
	for i, u := range chosen {
		stay := Bytes{}
		if len(w.bytes) > 0 && i == len(chosen)-1 && len(u.slices) == 1 {
			stay = c.bytesToStay(w, u.h, chosen[:i])
		}
		for _, h := range u.slices {
			if h.pending == nil { // otherwise it is being evicted with another of its pools
				c.beginMoveOut(h, operation{next: h.Record, stay: stay, busy: u.busy}, h.Manual)
			}
		}
	}
}

// evictingFrom reports whether memory is being evicted from one of the want's devices.
func (c *evictions) evictingFrom(w want) bool {
	return slices.ContainsFunc(c.holders, func(h *holder) bool {
		if h.pending == nil || !h.evictable() || h.pending.next.Residence != Leaving && h.Residence != Leaving {
			return false
		}
		return slices.ContainsFunc(w.bytes.devices(), func(uuid string) bool { return h.takes(uuid) > 0 })
	})
}

// takes returns the bytes that a slice counts for on a device, itself or in its pool.
func (h *holder) takes(uuid string) uint64 {
	if p := h.poolOn(uuid); p != nil {
		return p.counted[uuid]
	}
	return h.counted[uuid]
}

// candidates returns the units that may be evicted for a want, in order: those in host memory first, since they lose nothing; then the lowest
// priority; then the longest idle.
func (c *evictions) candidates(w want, quantum time.Duration) (units []unit) {
	for _, h := range c.holders {
		if h == w.h || !h.Elastic || h.Kind == Slice && len(h.pools) > 0 {
			continue
		}
		if u, evictable := c.unitOf(h, quantum); evictable && (!u.busy || w.busy && h.Priority <= w.priority) {
			units = append(units, u)
		}
	}
	slices.SortStableFunc(units, func(a, b unit) int {
		return cmp.Or(trueFirst(a.away, b.away), cmp.Compare(a.h.Priority, b.h.Priority), cmp.Compare(b.idle, a.idle))
	})
	return units
}

// unitOf returns the unit of a slice or pool. evictable is false if any of its slices cannot be evicted now, or none has memory on a device.
func (c *evictions) unitOf(h *holder, quantum time.Duration) (u unit, evictable bool) {
	u = unit{h: h, away: true, idle: 1<<63 - 1}
	all := []*holder{h}
	if h.Kind == Pool {
		all = h.members
	}
	var withRest []*holder
	for _, s := range all {
		switch {
		case !s.evictable() || s.moving() || s.pending != nil || s.Trust == Damaged:
			return u, false
		case s.Residence == Away:
			if len(s.Left) > 0 && (s.restFailedAt == 0 || c.now-s.restFailedAt >= c.config.Elastic.Obstacle) {
				withRest = append(withRest, s)
			}
		default:
			idle, busy, may := c.idleState(s, quantum)
			if !may {
				return u, false
			}
			u.slices, u.away = append(u.slices, s), false
			u.idle, u.busy = min(u.idle, idle), u.busy || busy
		}
	}
	if u.away {
		u.slices = withRest
	}
	return u, len(u.slices) > 0
}

// idleState returns the time since a resident slice's last call. busy is true if that, or the time since its return, is below MinResident; may
// is true if the slice may be evicted: it is not busy, or has had its quantum.
func (c *evictions) idleState(h *holder, quantum time.Duration) (idle time.Duration, busy, may bool) {
	o := &c.config.Elastic
	if h.moveFailedAt != 0 && c.now-h.moveFailedAt < c.config.Elastic.Obstacle {
		return 0, false, false
	}
	idle = c.now - h.active
	busy = min(idle, c.now-h.returned) < o.MinResident
	return idle, busy, !busy || c.now-h.returned >= quantum
}

// chooseUnits returns the candidates to evict so that a want can be granted. Those at the end are left out if possible. It returns false if
// evicting all would not free enough.
func (c *grants) chooseUnits(w want, candidates []unit) (chosen []unit, enough bool) {
	t := make(trial)
	for _, u := range candidates {
		if c.check(w, t) == nil {
			break
		}
		if len(u.h.counted.without0()) > 0 {
			t[u.h], chosen = Bytes{}, append(chosen, u)
		}
	}
	if c.check(w, t) != nil {
		return nil, false
	}
	for i := len(chosen) - 1; i >= 0; i-- { // leave it out if evicting the others is enough
		delete(t, chosen[i].h)
		if c.check(w, t) == nil {
			chosen = slices.Delete(chosen, i, i+1)
		} else {
			t[chosen[i].h] = Bytes{}
		}
	}
	return chosen, true
}

// stayMargin is kept free on each device where a part of a slice's memory stays: the driver may count more for it than the ledger.
const stayMargin = 128 << 20

// bytesToStay returns the bytes of a holder that can stay on its devices once others are evicted and a want is granted.
func (c *grants) bytesToStay(w want, leaver *holder, evicted []unit) Bytes {
	room, t := leaver.counted.without0(), trial{}
	for uuid, has := range room {
		if d := c.device(uuid); d != nil {
			sum := c.on(uuid).all - has - w.h.counted[uuid] + max(w.h.counted[uuid], w.bytes[uuid])
			for _, u := range evicted {
				sum -= u.h.counted[uuid]
			}
			capacity := c.config.Limits.Capacity(d.Total)
			room[uuid] = min(has, capacity-min(capacity, sum))
		}
	}
	for _, u := range evicted {
		t[u.h] = Bytes{}
	}
	t[leaver] = room
	if c.check(w, t) != nil { // the bound of a user or a tenant prevents it
		return Bytes{}
	}
	for uuid := range room {
		room[uuid] -= min(room[uuid], stayMargin)
	}
	return room.without0()
}

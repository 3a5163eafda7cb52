// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// askLasts is how long after its last AskReturn a slice counts as waiting.
const askLasts = 9 * time.Second

// restedAfter is a number of quanta. After that time without a call, a slice returns before those of its priority that made calls.
const restedAfter = 10

// askReturn notes that a process of an evicted slice waits for its memory.
func (c *Core) askReturn(id string) {
	h := c.slices[id]
	if h == nil || h.Residence == Resident {
		return
	}
	h.asked = max(c.now, 1)
	if h.waits == 0 {
		h.waits, h.rested = h.asked, c.now-h.active >= restedAfter*c.config.Elastic.Quantum
		c.waiters = append(c.waiters, h)
	}
	c.freed = true
}

// mayReturn reports whether a slice returns when a process asks.
func (h *holder) mayReturn() bool {
	return h.evictable() && h.Residence == Away && !h.Manual && h.Trust != Damaged
}

// serveWaiters brings slices back, the highest priority first, then the rested ones, then the longest wait. If a slice does not fit, others are evicted
// for it. From then on, or once it has waited for a quantum, the later ones of the order get nothing of its devices.
func (c *evictions) serveWaiters() {
	if !c.freed || len(c.waiters) == 0 {
		return
	}
	c.freed = false
	c.waiters = slices.DeleteFunc(c.waiters, func(h *holder) bool {
		if over := h.gone || h.waits == 0 || c.now-h.asked > askLasts; over {
			h.waits = 0
			return true
		}
		return false
	})
	first := map[bool]int{true: -1}
	slices.SortFunc(c.waiters, func(a, b *holder) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), first[a.rested]-first[b.rested], cmp.Compare(a.waits, b.waits), cmp.Compare(a.Generation, b.Generation))
	})
	claimed := make(map[string]bool)
	for _, h := range c.waiters {
		if h.pending == nil && h.mayReturn() && (h.obstructed == 0 || c.now-h.obstructed >= triedLasts) {
			c.serve(h, claimed)
		}
	}
}

// serve brings a slice back, or makes room for it on devices that no earlier waiter has claimed.
func (c *evictions) serve(h *holder, claimed map[string]bool) {
	needs := c.needs(h)
	for _, w := range needs {
		if slices.ContainsFunc(w.bytes.devices(), func(uuid string) bool { return claimed[uuid] }) {
			return
		}
	}
	w, err := c.roomToReturn(h)
	if err == nil {
		c.comeBack(h, 0)
		return
	}
	h.obstacle = err.Error()
	if w.busy = true; c.makeRoom(w) || c.collects(h, w) {
		for _, w := range needs {
			for uuid := range w.bytes {
				claimed[uuid] = true
			}
		}
	}
}

// collects reports whether the room that a waiter wants is kept for it: it has waited for a quantum, and there would be room if the quantum of all others
// were over.
func (c *evictions) collects(h *holder, w want) bool {
	if c.now-h.waits < c.config.Elastic.Quantum {
		return false
	}
	_, enough := c.which(w, c.candidates(w, 0))
	return enough
}

// needs returns the grants for a slice's return: to it, or to its pools.
func (c *evictions) needs(h *holder) (all []want) {
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

// roomToReturn returns why a slice cannot return, and the grant that it lacks.
func (c *evictions) roomToReturn(h *holder) (want, error) {
	for _, w := range c.needs(h) {
		if err := c.check(w, nil); err != nil {
			return w, err
		}
	}
	return want{}, nil
}

// unit is what can be evicted as one: a slice, or the members of an elastic pool.
type unit struct {
	h      *holder
	slices []*holder // to be moved
	away   bool      // they are in host memory, and may have to leave nothing on devices
	idle   time.Duration
	busy   bool // it is not idle, and its quantum is over
}

// makeRoom evicts slices so that a want can be granted, if evicting is enough. It reports whether it is, or whether evictions from the device are
// in progress.
func (c *evictions) makeRoom(w want) bool {
	refused := api.From(c.check(w, nil))
	if refused.Code != api.CodeQuotaExceeded || c.config.Elastic.Off != "" {
		return false
	}
	if c.leaving(w) {
		return true
	}
	may := c.candidates(w, c.config.Elastic.Quantum)
	which, enough := c.which(w, may)
	if !enough {
		return false
	}
	for i, u := range which {
		stay := Bytes{}
		if i == len(which)-1 && len(u.slices) == 1 {
			stay = c.mayStay(w, u.h, which[:i])
		}
		for _, h := range u.slices {
			if h.pending == nil { // otherwise it leaves with another of its pools
				c.leave(h, stay, h.Manual, 0)
			}
		}
	}
	return true
}

// leaving reports whether memory is being evicted from a wanted device, and will be free.
func (c *evictions) leaving(w want) bool {
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

// candidates returns the units that may be evicted for a want, in order: those in host memory lose nothing; then the lowest priority; then the
// longest idle.
func (c *evictions) candidates(w want, quantum time.Duration) (may []unit) {
	for _, h := range c.holders {
		if h == w.h || !h.Elastic || h.Kind == Slice && len(h.pools) > 0 {
			continue
		}
		if u, goes := c.unitOf(h, quantum); goes && (!u.busy || w.busy && h.Priority <= w.priority) {
			may = append(may, u)
		}
	}
	early := map[bool]int{true: -1}
	slices.SortStableFunc(may, func(a, b unit) int {
		return cmp.Or(early[a.away]-early[b.away], cmp.Compare(a.h.Priority, b.h.Priority), cmp.Compare(b.idle, a.idle))
	})
	return may
}

// unitOf returns a unit, and whether it may be evicted: all of it that is on its devices.
func (c *evictions) unitOf(h *holder, quantum time.Duration) (u unit, goes bool) {
	u = unit{h: h, away: true, idle: 1<<63 - 1}
	all := []*holder{h}
	if h.Kind == Pool {
		all = h.members
	}
	var leave []*holder
	for _, s := range all {
		switch {
		case !s.evictable() || s.pending != nil || s.Trust == Damaged || s.fixed:
			return u, false
		case s.Residence == Away:
			if len(s.Left) > 0 && (s.stuck == 0 || c.now-s.stuck >= ObstacleLasts) {
				leave = append(leave, s)
			}
		default:
			idle, busy, may := c.idle(s, quantum)
			if !may {
				return u, false
			}
			u.slices, u.away = append(u.slices, s), false
			u.idle, u.busy = min(u.idle, idle), u.busy || busy
		}
	}
	if u.away {
		u.slices = leave
	}
	return u, len(u.slices) > 0
}

// idle returns how long a resident slice has made no call, whether that is too short to be idle, and whether it may be evicted.
func (c *evictions) idle(h *holder, quantum time.Duration) (idle time.Duration, busy, may bool) {
	o := &c.config.Elastic
	if h.obstructed != 0 && c.now-h.obstructed < ObstacleLasts {
		return 0, false, false
	}
	idle = c.now - h.active
	busy = min(idle, c.now-h.returned) < o.MinResident
	return idle, busy, !busy || c.now-h.returned >= quantum
}

// which returns the units to evict so that a want can be granted. Units at the end of may are left out if possible. It returns false if
// evicting all units would not free enough.
func (c *grants) which(w want, may []unit) (which []unit, enough bool) {
	t := make(trial)
	for _, u := range may {
		if c.check(w, t) == nil {
			break
		}
		if len(u.h.counted.without0()) > 0 {
			t[u.h], which = Bytes{}, append(which, u)
		}
	}
	if c.check(w, t) != nil {
		return nil, false
	}
	for i := len(which) - 1; i >= 0; i-- { // it may stay now that others leave
		delete(t, which[i].h)
		if c.check(w, t) == nil {
			which = slices.Delete(which, i, i+1)
		} else {
			t[which[i].h] = Bytes{}
		}
	}
	return which, true
}

// stayMargin is kept free when memory stays: the driver's figures and the ledger's differ by a few bytes.
const stayMargin = 128 << 20

// mayStay returns the bytes of a holder that fit on its devices once others are evicted and a want is granted.
func (c *grants) mayStay(w want, leaver *holder, evicted []unit) Bytes {
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

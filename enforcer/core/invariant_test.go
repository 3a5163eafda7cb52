// SPDX-License-Identifier: Apache-2.0

package core

import (
	"maps"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

// checkMoveOut: a move out is stored before it begins.
func (w *world) checkMoveOut(e MoveOut) {
	h := w.holder(e.Generation)
	if r, stored := w.disk[h.Generation]; !stored || r.Residence != h.Residence {
		w.fail("%s: its move began before it was stored", h.ID)
	}
}

// checkEvicted: only idle elastic slices, and those beyond their quantum, are evicted.
func (w *world) checkEvicted(e Store) {
	h, o := w.holder(e.Generation), w.config.Elastic
	if e.Record.Residence != Leaving || h.Residence != Resident || e.Record.Manual {
		return
	}
	idle, stay := w.c.now-h.active, w.c.now-h.returned
	if !h.Elastic || min(idle, stay) < o.MinResident && stay < o.Quantum {
		w.fail("%s is evicted though it made its last call %s ago, and returned %s ago", h.ID, idle, stay)
	}
}

// checkReply: after a reply without an error, the store and the ledger have what the command asked for.
func (w *world) checkReply(e Reply) {
	if e.Err != nil {
		return
	}
	cmd := w.told[e.Client]
	if cmd == nil {
		return
	}
	kind, id := cmd.target()
	h := w.c.find(kind, id)
	stored := func(what string, holds func(*Record, *page) bool) {
		if h == nil {
			w.fail("%s of %s is answered, but core does not know it", what, id)
		}
		r, p := w.disk[h.Generation], w.pages[h.Generation]
		if !holds(&r, p) {
			w.fail("%s of %s is answered, but the store has %+v, the ledger %+v", what, id, r, p)
		}
	}
	switch cmd := cmd.(type) {
	case Register:
		w.acked[h.Generation] = true
		stored("Register", func(r *Record, p *page) bool { return r.Phase == Live && p.listening })
	case CreatePool:
		stored("CreatePool", func(r *Record, p *page) bool { return r.Phase == Live && p != nil })
	case Change:
		stored("Change", func(r *Record, p *page) bool {
			return cmd.Quotas == nil || maps.Equal(r.Limits, cmd.Limits) && (p.closed || maps.Equal(p.limits, r.page()))
		})
	case ChangePool:
		stored("ChangePool", func(r *Record, p *page) bool {
			return maps.Equal(r.Limits, cmd.Limits) && (p.closed || maps.Equal(p.limits, cmd.Limits))
		})
	case Suspend:
		stored("Suspend", func(r *Record, p *page) bool {
			return r.Residence == Away && (r.Manual || cmd.Evict) && (p.away || !p.alive)
		})
	case Resume:
		stored("Resume", func(r *Record, p *page) bool { return r.Residence == Resident && !p.away })
	case Release:
		if h != nil && h.Phase != Admitted && h.pending == nil {
			w.fail("%s is released, but neither forgotten nor pending", id)
		}
	}
}

// check checks the invariants that hold after each step.
func (w *world) check() {
	w.checkSums()
	w.checkMemory()
	w.checkOperations()
	for _, h := range w.c.holders {
		w.checkRecord(h)
		w.checkLedger(h)
		w.checkIndex(h)
	}
}

// checkSums: the cached sums equal the sums over all holders, and no bound is exceeded.
func (w *world) checkSums() {
	c := w.c
	for uuid, s := range c.sums {
		var all, tenant, promised, user uint64
		sessions := 0
		for _, h := range c.holders {
			has := c.granted(h)[uuid]
			all, promised = all+has, promised+c.promise(h)[uuid]
			if h.Tenant == "t" {
				tenant += has
			}
			if h.UID != nil {
				sessions, user = sessions+1, user+has
			}
		}
		if s.all != all || s.tenants["t"] != tenant || s.promised != promised {
			w.fail("device %s: the sums are %+v, but the holders have %d bytes, %d of the tenant, %d promised", uuid, s, all, tenant, promised)
		}
		if bound := w.config.Limits.Tenants["t"].Bytes; tenant > bound {
			w.fail("device %s: the tenant has %d units, its bound is %d", uuid, tenant/size, bound/size)
		}
		if sessions > w.user.MaxSessions {
			w.fail("the user has %d sessions, the limit is %d", sessions, w.user.MaxSessions)
		}
		if user > w.user.MaxVRAM.Bytes {
			w.fail("device %s: the user has %d units, the limit is %d", uuid, user/size, w.user.MaxVRAM.Bytes/size)
		}
		d := c.device(uuid)
		if d == nil {
			continue
		}
		if capacity := w.config.Limits.Capacity(d.Total); all > capacity {
			w.fail("device %s: %d units are granted, the capacity is %d", uuid, all/size, capacity/size)
		}
		if promisable := refusal.Promisable(d.Total, w.config.Elastic.Overcommit); promised > promisable {
			w.fail("device %s: %d units are promised, the most is %d", uuid, promised/size, promisable/size)
		}
	}
}

// checkMemory: a device holds no more than was granted, nor does a slice or a pool.
func (w *world) checkMemory() {
	sum := make(Bytes)
	for _, p := range w.pages {
		h := w.holder(p.Generation)
		if p.unlimited || h == nil {
			continue
		}
		for uuid, n := range p.held {
			sum[uuid] += n
			if p.Kind == Slice && len(p.pools) == 0 && n > h.counted[uuid] {
				w.fail("%s holds %d units of %s, but counts for %d", p.ID, n/size, uuid, h.counted[uuid]/size)
			}
		}
		if p.Kind != Pool {
			continue
		}
		for _, m := range h.members {
			for uuid, limit := range h.Limits {
				if o := m.pending; o != nil && !o.forget && o.next.Residence != Away && h.counted[uuid] < limit {
					w.fail("member %s is on the way to its devices, but pool %s counts for %d units of %s, below its limit", m.ID, h.ID, h.counted[uuid]/size, uuid)
				}
			}
		}
		members := make(Bytes)
		for _, m := range w.pages {
			if slices.Contains(m.pools, p) {
				for uuid, n := range m.held {
					members[uuid] += n
				}
			}
		}
		for uuid, n := range members {
			if _, limited := h.Limits[uuid]; limited && n > h.counted[uuid] {
				w.fail("the members of %s hold %d units of %s, but it counts for %d", p.ID, n/size, uuid, h.counted[uuid]/size)
			}
		}
	}
	for uuid, n := range sum {
		if d := w.c.device(uuid); d != nil && n > w.config.Limits.Capacity(d.Total) {
			w.fail("device %s: slices hold %d units, the capacity is %d", uuid, n/size, w.config.Limits.Capacity(d.Total)/size)
		}
	}
	for generation, r := range w.disk {
		h := w.holder(generation)
		if h == nil {
			w.fail("%s is stored, but core does not know it", r.ID)
		}
		if r.Kind == Slice {
			for uuid, n := range w.c.counts(&r) {
				if n > h.counted[uuid] {
					w.fail("%s counts for %d units of %s, but for %d by its stored record", r.ID, h.counted[uuid]/size, uuid, n/size)
				}
			}
		}
	}
	for generation := range w.acked {
		if p := w.pages[generation]; p != nil && p.alive && w.holder(generation) == nil {
			w.fail("%s is lost after the reply to its registration", p.ID)
		}
	}
}

// checkOperations: each operation waits for something that will happen.
func (w *world) checkOperations() {
	due := make(map[uint64]bool)
	for _, e := range w.todo {
		due[opOf(e)] = true
	}
	for _, f := range w.answers {
		due[answered(f)] = true
	}
	for _, h := range w.c.retries {
		due[h.pending.op] = true
	}
	for _, h := range w.c.holders {
		if h.pending != nil && !due[h.pending.op] {
			w.fail("%s: no answer is due for %+v", h.ID, h.pending)
		}
		if h.pending == nil && len(h.queue) > 0 {
			w.fail("%s: %d commands wait, but no operation is pending", h.ID, len(h.queue))
		}
	}
}

func opOf(e Effect) uint64 {
	switch e := e.(type) {
	case Make:
		return e.Op
	case Store:
		return e.Op
	case Forget:
		return e.Op
	case Listen:
		return e.Op
	case Limit:
		return e.Op
	case Close:
		return e.Op
	case MoveOut:
		return e.Op
	case MoveIn:
		return e.Op
	}
	return 0
}

func answered(f Fact) uint64 {
	switch f := f.(type) {
	case Made:
		return f.Op
	case Stored:
		return f.Op
	case Opened:
		return f.Op
	case Limited:
		return f.Op
	case Moved:
		return f.Op
	}
	return 0
}

// checkRecord: the stored record equals the one in force.
func (w *world) checkRecord(h *holder) {
	r, stored := w.disk[h.Generation]
	if h.Phase != Admitted && !stored && (h.pending == nil || !h.pending.forget) {
		w.fail("%s is in force, but not stored", h.ID)
	}
	if h.pending == nil && !same(&r, &h.Record) {
		w.fail("%s: the record in force is %+v, the stored one %+v", h.ID, h.Record, r)
	}
	if h.pending == nil && h.Residence == Leaving {
		w.fail("%s is moving, but no operation is pending", h.ID)
	}
}

func same(a, b *Record) bool {
	return a.ID == b.ID && a.Phase == b.Phase && a.Residence == b.Residence && a.Trust == b.Trust && a.Why == b.Why && a.Manual == b.Manual &&
		a.Deadline == b.Deadline && a.Asked == b.Asked && a.Hosted == b.Hosted &&
		maps.Equal(a.Limits, b.Limits) && maps.Equal(a.Kept, b.Kept) && maps.Equal(a.Left, b.Left)
}

// checkLedger: the ledger, here a page, has the record's limits. Calls wait if and only if the slice is Away (see record.go).
func (w *world) checkLedger(h *holder) {
	p := w.pages[h.Generation]
	if p == nil {
		if h.Phase != Admitted {
			w.fail("%s has no ledger", h.ID)
		}
		return
	}
	if h.pending != nil {
		return
	}
	if h.closed() && !p.closed && h.page != 0 {
		w.fail("%s is %s, but its ledger is not closed", h.ID, h.state())
	}
	for uuid, limit := range h.Limits {
		if h.Trust == Frozen {
			limit = 0
		}
		if !h.closed() && h.page != 0 && p.limits[uuid] != limit {
			w.fail("%s: the limit on %s is %d units by its record, but %d by its ledger", h.ID, uuid, limit/size, p.limits[uuid]/size)
		}
	}
	if h.Kind == Slice && p.away != (h.Residence != Resident) && h.page != 0 {
		w.fail("%s is %s, but its calls wait: %v", h.ID, h.state(), p.away)
	}
	for uuid, limit := range h.native {
		if len(h.pools) == 0 && limit > h.counted[uuid] {
			w.fail("the driver allows %s %d units of %s, but it counts for %d", h.ID, limit/size, uuid, h.counted[uuid]/size)
		}
	}
}

// checkIndex: the indices have exactly the holders.
func (w *world) checkIndex(h *holder) {
	c := w.c
	if other := c.find(h.Kind, h.ID); (other == h) == (h.Phase == Lingering) {
		w.fail("%s of generation %d has phase %d, but the index by id has %+v", h.ID, h.Generation, h.Phase, other)
	}
	for _, p := range h.pools {
		if p.removed || c.pools[p.ID] != p || !slices.Contains(p.members, h) {
			w.fail("%s is in pool %s, but not among its members", h.ID, p.ID)
		}
	}
	for _, m := range h.members {
		if m.removed || !slices.Contains(m.pools, h) {
			w.fail("pool %s has the member %s, which is removed or not in it", h.ID, m.ID)
		}
	}
}

// checkAtRest: once nothing is pending, nothing waits, and nothing has leaked.
func (w *world) checkAtRest() {
	if len(w.told) > 0 {
		w.fail("commands without a reply: %v", w.told)
	}
	generations := make(map[uint64]bool)
	for _, h := range w.c.holders {
		generations[h.Generation] = true
		p := w.pages[h.Generation]
		switch {
		case h.pending != nil:
			w.fail("%s: an operation is still pending: %+v", h.ID, h.pending)
		case h.Kind == Slice && !p.alive:
			w.fail("%s has no process, but still exists", h.ID)
		case h.Phase == Live && w.c.mustExpire(h):
			w.fail("%s must expire, but is live", h.ID)
		case h.Phase == Expiring && !p.asked:
			w.fail("%s has expired, but its processes were not asked to end", h.ID)
		case h.Phase == Expiring && w.now > h.Asked+w.config.Grace+10*time.Second:
			w.fail("%s has expired, but its processes are alive", h.ID)
		}
		if h.waitingSince != 0 && h.mayReturn() {
			if _, err := w.c.checkReturn(h); err == nil {
				w.fail("%s waits, but there is room for it", h.ID)
			}
		}
		beyond := h.Kept
		switch {
		case h.Phase == Lingering || h.Residence == Away:
			beyond = h.Left
		case h.Residence == Returning: // what is on the host counts, too
			beyond = nil
		}
		for uuid, n := range beyond {
			if h.page != 0 && n > w.used(p)[uuid] {
				w.fail("%s counts for %d units of %s, but holds %d", h.ID, n/size, uuid, w.used(p)[uuid]/size)
			}
		}
		if h.native != nil && !maps.Equal(h.native, p.native) {
			w.fail("the driver's limits of %s are %v: want %v", h.ID, p.native, h.native)
		}
	}
	for generation, r := range w.disk {
		if !generations[generation] {
			w.fail("%s of generation %d is stored, but core does not know it", r.ID, generation)
		}
	}
	if n := len(w.c.awaited) + len(w.c.retries); n > 0 {
		w.fail("%d effects are still without an answer", n)
	}
}

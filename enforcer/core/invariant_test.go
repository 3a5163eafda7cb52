// SPDX-License-Identifier: Apache-2.0

package core

import (
	"maps"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

// checkMoveOut: the store knows of a move before it begins.
func (w *world) checkMoveOut(e MoveOut) {
	h := w.holder(e.Generation)
	if r, stored := w.disk[h.Generation]; !stored || r.Residence != h.Residence {
		w.fail("%s is moved, and the store does not know", h.ID)
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
		w.fail("%s is evicted, is idle for %s, and returned %s ago", h.ID, idle, stay)
	}
}

// checkReply: a reply without an error is true, and so is the store.
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
	stored := func(what string, is func(*Record, *page) bool) {
		if h == nil {
			w.fail("%s of %s is answered, and it is gone", what, id)
		}
		r, p := w.disk[h.Generation], w.pages[h.Generation]
		if !is(&r, p) {
			w.fail("%s of %s is answered, and the store has %+v, the page %+v", what, id, r, p)
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
		stored("Suspend", func(r *Record, p *page) bool { return r.Residence == Away && r.Manual && (p.away || !p.alive) })
	case Resume:
		stored("Resume", func(r *Record, p *page) bool { return r.Residence == Resident && !p.away })
	case Release:
		if h != nil && h.Phase != Admitted && h.pending == nil {
			w.fail("%s is released, and is there", id)
		}
	}
}

// check has the invariants that hold after each step.
func (w *world) check() {
	w.checkSums()
	w.checkMemory()
	w.checkOperations()
	for _, h := range w.c.holders {
		w.checkRecord(h)
		w.checkPage(h)
		w.checkIndex(h)
	}
}

// checkSums: the cache is what the holders add up to, and no bound is exceeded.
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
			w.fail("the sums of %s are %+v: the holders add up to %d, %d of the tenant, %d promised", uuid, s, all, tenant, promised)
		}
		if bound := w.config.Limits.Tenants["t"].Bytes; tenant > bound {
			w.fail("the tenant has %d of %s", tenant/size, uuid)
		}
		if sessions > w.user.MaxSessions {
			w.fail("the user has %d sessions", sessions)
		}
		if user > w.user.MaxVRAM.Bytes {
			w.fail("the user has %d of %s", user/size, uuid)
		}
		d := c.device(uuid)
		if d == nil {
			continue
		}
		if capacity := w.config.Limits.Capacity(d.Total); all > capacity {
			w.fail("%d of %s are granted: there are %d", all/size, uuid, capacity/size)
		}
		if most := refusal.Promisable(d.Total, w.config.Elastic.Overcommit); promised > most {
			w.fail("%d of %s are promised", promised/size, uuid)
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
				w.fail("%s holds %d of %s, and counts for %d", p.ID, n/size, uuid, h.counted[uuid]/size)
			}
		}
		if p.Kind != Pool {
			continue
		}
		for _, m := range h.members {
			for uuid, limit := range h.Limits {
				if o := m.pending; o != nil && !o.forget && o.next.Residence != Away && h.counted[uuid] < limit {
					w.fail("%s is on the way to devices, and %s counts for %d of %s", m.ID, h.ID, h.counted[uuid]/size, uuid)
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
			if _, its := h.Limits[uuid]; its && n > h.counted[uuid] {
				w.fail("the members of %s hold %d of %s, and it counts for %d", p.ID, n/size, uuid, h.counted[uuid]/size)
			}
		}
	}
	for uuid, n := range sum {
		if d := w.c.device(uuid); d != nil && n > w.config.Limits.Capacity(d.Total) {
			w.fail("%d of %s are held", n/size, uuid)
		}
	}
	for generation, r := range w.disk {
		h := w.holder(generation)
		if h == nil {
			w.fail("%s is stored, and unknown", r.ID)
		}
		if r.Kind == Slice {
			for uuid, n := range w.c.counts(&r) {
				if n > h.counted[uuid] {
					w.fail("%s counts for %d of %s, and for %d by the store", r.ID, h.counted[uuid]/size, uuid, n/size)
				}
			}
		}
	}
	for generation := range w.acked {
		if p := w.pages[generation]; p != nil && p.alive && w.holder(generation) == nil {
			w.fail("%s was registered, its client has the reply, and it is lost", p.ID)
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
			w.fail("%s waits for ever for %+v", h.ID, h.pending)
		}
		if h.pending == nil && len(h.queue) > 0 {
			w.fail("%s: %d commands wait for nothing", h.ID, len(h.queue))
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

// checkRecord: the store has what is in force.
func (w *world) checkRecord(h *holder) {
	r, stored := w.disk[h.Generation]
	if h.Phase != Admitted && !stored && (h.pending == nil || !h.pending.forget) {
		w.fail("%s is in force, and not stored", h.ID)
	}
	if h.pending == nil && !same(&r, &h.Record) {
		w.fail("%s is %+v, and stored as %+v", h.ID, h.Record, r)
	}
	if h.pending == nil && h.moving() {
		w.fail("%s is moved for ever", h.ID)
	}
}

func same(a, b *Record) bool {
	return a.ID == b.ID && a.Phase == b.Phase && a.Residence == b.Residence && a.Trust == b.Trust && a.Why == b.Why && a.Manual == b.Manual &&
		a.Deadline == b.Deadline && a.Asked == b.Asked && a.Hosted == b.Hosted &&
		maps.Equal(a.Limits, b.Limits) && maps.Equal(a.Kept, b.Kept) && maps.Equal(a.Left, b.Left)
}

// checkPage: the ledger has the record's limits. Calls wait if and only if the slice is Away.
func (w *world) checkPage(h *holder) {
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
		w.fail("%s grants more, and is %s", h.ID, h.state())
	}
	for uuid, limit := range h.Limits {
		if h.Trust == Frozen {
			limit = 0
		}
		if !h.closed() && h.page != 0 && p.limits[uuid] != limit {
			w.fail("%s may hold %d of %s by its record, and %d by its ledger", h.ID, limit/size, uuid, p.limits[uuid]/size)
		}
	}
	if h.Kind == Slice && p.away != (h.Residence == Away) && h.page != 0 {
		w.fail("calls of %s wait: %v, and it is %s", h.ID, p.away, h.state())
	}
	for uuid, limit := range h.native {
		if len(h.pools) == 0 && limit > h.counted[uuid] {
			w.fail("the driver allows %s %d of %s, and it counts for %d", h.ID, limit/size, uuid, h.counted[uuid]/size)
		}
	}
}

// checkIndex: the indices have exactly the holders.
func (w *world) checkIndex(h *holder) {
	c := w.c
	if other := c.find(h.Kind, h.ID); (other == h) == (h.Phase == Lingering) {
		w.fail("%s of generation %d is of phase %d, and its id is of %v", h.ID, h.Generation, h.Phase, other != nil)
	}
	for _, p := range h.pools {
		if p.gone || c.pools[p.ID] != p || !slices.Contains(p.members, h) {
			w.fail("%s is a member of %s, which does not know it", h.ID, p.ID)
		}
	}
	for _, m := range h.members {
		if m.gone || !slices.Contains(m.pools, h) {
			w.fail("%s has a member %s that is gone", h.ID, m.ID)
		}
	}
}

func (w *world) checkRest() {
	if len(w.told) > 0 {
		w.fail("clients are not answered: %v", w.told)
	}
	generations := make(map[uint64]bool)
	for _, h := range w.c.holders {
		generations[h.Generation] = true
		p := w.pages[h.Generation]
		switch {
		case h.pending != nil:
			w.fail("%s waits for ever: %+v", h.ID, h.pending)
		case h.Kind == Slice && !p.alive:
			w.fail("%s has no process, and is there", h.ID)
		case h.Phase == Live && w.c.over(h):
			w.fail("%s is past its deadline, and live", h.ID)
		case h.Phase == Expiring && !p.asked:
			w.fail("%s is expired, and its processes were not asked to end", h.ID)
		case h.Phase == Expiring && w.now > h.Asked+w.config.Grace+10*time.Second:
			w.fail("%s is expired, and its processes live", h.ID)
		}
		if h.waits != 0 && h.mayReturn() {
			if _, err := w.c.roomToReturn(h); err == nil {
				w.fail("%s waits beside free room", h.ID)
			}
		}
		beyond := h.Kept
		if h.Phase == Lingering || h.Residence == Away {
			beyond = h.Left
		}
		for uuid, n := range beyond {
			if h.page != 0 && n > w.used(p)[uuid] {
				w.fail("%s holds %d of %s, and may hold %d", h.ID, w.used(p)[uuid]/size, uuid, n/size)
			}
		}
		if h.native != nil && !maps.Equal(h.native, p.native) {
			w.fail("the driver's limits of %s are %v, and should be %v", h.ID, p.native, h.native)
		}
	}
	for generation, r := range w.disk {
		if !generations[generation] {
			w.fail("%s of generation %d is in the store alone", r.ID, generation)
		}
	}
	if n := len(w.c.awaited) + len(w.c.retries); n > 0 {
		w.fail("%d answers are awaited", n)
	}
}

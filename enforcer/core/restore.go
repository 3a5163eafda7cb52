// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

// Restore returns the state of a host with these records, at a time since boot. It refuses nothing: granted bytes stay granted. user returns the
// limit of a session's user; nil is none. The adapter has found each ledger, or made it anew, before. Interrupted operations begin again, and
// facts report ended processes. Effects without an Op are repeated until they succeed, before others of their key.
func Restore(config Config, now time.Duration, records []Record, user func(*Record) *refusal.User) *Core {
	c := New(config)
	c.now = now
	records = slices.Clone(records)
	slices.SortFunc(records, func(a, b Record) int {
		return cmp.Or(-cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Generation, b.Generation)) // pools first
	})
	for i := range records {
		c.restore(&records[i], user)
	}
	for _, h := range c.holders {
		c.count(h) // the places of all members of a pool are known now
		c.limitNative(h, &h.Record)
	}
	return c
}

// restore takes up one slice or pool.
func (c *Core) restore(r *Record, user func(*Record) *refusal.User) {
	h := newHolder(r, nil)
	h.active, h.returned = c.now, c.now
	for _, name := range slices.Sorted(slices.Values(r.Pools)) {
		if p := c.pools[name]; p != nil {
			h.pools = append(h.pools, p)
		} else {
			h.damage = "its pool " + name + " is gone"
		}
	}
	if user != nil && r.UID != nil {
		h.user = user(r)
	}
	h.pending = &operation{next: *r, must: true}
	c.enter(h)
	switch {
	case r.moving(): // it counts as if it were on its devices, and is brought back to them
		h.Residence, h.pending.next.Residence, h.pending.move = Returning, Returning, true
		if r.closed() {
			c.emit(Close{Ref: h.ref()})
		} else {
			c.emit(Limit{h.ref(), 0, r.page(), true})
		}
		c.store(h)
	case r.closed():
		c.emit(Close{h.ref(), c.await(h, limiting)})
	default:
		c.emit(Limit{h.ref(), c.await(h, limiting), r.page(), r.Residence == Away})
	}
	if r.Kind == Slice {
		c.emit(Listen{Ref: h.ref()})
	}
	if r.Phase == Expiring && r.Asked == 0 {
		c.emit(End{Ref: h.ref()})
	}
}

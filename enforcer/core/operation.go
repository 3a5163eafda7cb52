// SPDX-License-Identifier: Apache-2.0

package core

import (
	"maps"
	"slices"

	"github.com/gpuslice/gpuslice/api"
)

// step is the effect that an operation waits for.
type step uint8

const (
	making step = iota
	storing
	opening
	limiting
	moving
)

// operation is pending for one holder.
type operation struct {
	op     uint64 // of the effect
	step   step
	next   Record // what the holder becomes
	client uint64 // answered at the end; 0 is none
	err    error  // with this
	must   bool   // it has happened, so its write is repeated until it succeeds
	forget bool   // the record is deleted; next means nothing
	place  bool   // it changes only the residence, or what counts beyond the limits
	move   bool   // once next is stored, the memory is moved
	busy   bool   // a call that does not end does not prevent the move
	stay   Bytes  // so much of each device may stay
}

// begin stores a holder's next record.
func (c *operations) begin(h *holder, next Record, client uint64) *operation {
	return c.start(h, operation{next: next, client: client})
}

func (c *operations) start(h *holder, p operation) *operation {
	h.pending = &p
	c.count(h)
	c.store(h)
	return h.pending
}

// must is begin for a change that has happened, or cannot be refused.
func (c *operations) must(h *holder, next Record) { c.begin(h, next, 0).must = true }

// forget deletes the record of a holder that holds nothing, and then drops the holder.
func (c *operations) forget(h *holder, client uint64, err error) {
	h.pending = &operation{client: client, err: err, must: true, forget: true}
	c.store(h)
}

// await returns the Op of the effect that the operation waits for next.
func (c *operations) await(h *holder, s step) uint64 {
	c.ops++
	h.pending.op, h.pending.step = c.ops, s
	c.awaited[c.ops] = h
	return c.ops
}

func (c *operations) store(h *holder) {
	op := c.await(h, storing)
	if h.pending.forget {
		c.emit(Forget{h.ref(), op})
	} else {
		c.emit(Store{h.ref(), op, h.pending.next, h.pending.place})
	}
}

// done takes the answer to an effect. Unexpected answers are ignored.
func (c *Core) done(op uint64, s step, f Moved) {
	h := c.awaited[op]
	if h == nil || h.pending.step != s {
		return
	}
	delete(c.awaited, op)
	switch s {
	case making:
		if f.Err != nil {
			c.fail(h, f.Err)
		} else {
			c.store(h)
		}
	case storing:
		c.noteStored(h, f.Err)
	case opening:
		if f.Err != nil {
			c.forget(h, h.pending.client, f.Err)
		} else {
			c.finish(h)
		}
	case limiting:
		c.noteLimited(h, op, f.Err)
	case moving:
		c.noteMoved(h, op, f)
	}
	c.settle(h)
}

func (c *operations) noteStored(h *holder, err error) {
	p := h.pending
	switch {
	case err != nil && p.must:
		c.retries = append(c.retries, h)
		if p.forget && p.err == nil || !p.forget && p.next.Phase == Lingering { // the caller need not wait for the store
			c.answer(h, p.client, err)
			p.client = 0
		}
	case err != nil:
		c.fail(h, err)
	case p.forget:
		c.finishForget(h)
	default:
		c.carryOut(h)
	}
}

// carryOut requests the effects that precede the stored record's coming into force.
func (c *operations) carryOut(h *holder) {
	p := h.pending
	switch next := &p.next; {
	case p.move:
		c.move(h)
	case h.Phase == Admitted && h.Kind == Slice:
		c.limitNative(h, next)
		c.emit(Listen{h.ref(), c.await(h, opening)})
	case next.closed() && !h.closed(), next.Phase == Lingering && h.Phase != Lingering:
		c.emit(Close{h.ref(), c.await(h, limiting)})
	case !next.closed() && h.Phase != Admitted && !maps.Equal(next.page(), h.page0()):
		c.emit(Limit{h.ref(), c.await(h, limiting), next.page(), next.Residence != Resident})
	default:
		c.finish(h)
	}
}

// page0 returns the limits that the ledger has.
func (h *holder) page0() Bytes { return h.Record.page() }

// noteLimited takes the ledger's answer. A ledger that cannot be written to is damaged.
func (c *operations) noteLimited(h *holder, op uint64, err error) {
	h.page, h.used = op, nil
	if err != nil {
		h.page = 0
		h.pending.err = api.Errorf(api.CodeInternal, "the limits of %s cannot be set: %v", h.title(), err)
		if !h.pending.next.closed() {
			h.damage = h.pending.err.Error()
		}
	}
	c.finish(h)
}

// finish puts the next record in force and ends the operation.
func (c *operations) finish(h *holder) {
	p, was := h.pending, h.Record
	h.Record, h.pending = p.next, nil
	if h.Phase == Lingering && c.slices[h.ID] == h {
		delete(c.slices, h.ID)
	}
	switch {
	case h.Residence == Resident && was.Residence != Resident:
		if h.waitingSince != 0 {
			h.waited += c.now - h.waitingSince
		}
		h.active, h.returned, h.waitingSince = c.now, c.now, 0
	case h.Residence == Away && was.Residence == Leaving && !h.Manual:
		h.evictions++
	}
	c.count(h)
	c.tell(h, &was)
	if h.Phase == Expiring && was.Phase < Expiring {
		c.emit(End{Ref: h.ref()})
	}
	c.answer(h, p.client, p.err)
}

// fail ends an operation that has changed nothing.
func (c *operations) fail(h *holder, err error) {
	p := h.pending
	h.pending = nil
	if h.Phase == Admitted {
		c.drop(h)
	} else {
		c.count(h)
	}
	c.answer(h, p.client, err)
}

// finishForget drops a holder once its record is deleted.
func (c *operations) finishForget(h *holder) {
	p := h.pending
	if h.Kind == Pool {
		c.emit(Emit{h.ref(), api.Event{Kind: api.EventPoolDeleted, Pool: h.ID}})
	}
	c.drop(h)
	c.answer(h, p.client, p.err)
}

// tell emits the events of a changed holder.
func (c *operations) tell(h *holder, was *Record) {
	e := api.Event{Slice: h.ID, Generation: h.Generation}
	if h.Kind == Pool {
		e = api.Event{Pool: h.ID}
	}
	emit := func(kind api.EventKind, cause string) {
		e.Kind, e.Cause = kind, cause
		c.emit(Emit{h.ref(), e})
	}
	switch {
	case h.Phase == Lingering && was.Phase != Lingering:
		emit(api.EventReleased, h.cause)
	case was.Phase == Admitted && h.Kind == Pool:
		emit(api.EventPoolCreated, "")
	case was.Phase == Admitted:
		e.TTL = h.TTL
		emit(api.EventRegistered, "")
	case h.Phase == Expiring && was.Phase != Expiring:
		e.TTL = h.TTL
		emit(api.EventExpired, h.Why)
	case h.Residence != was.Residence:
		if kind := movedKind(h, was); kind != "" {
			emit(kind, "")
		}
	case h.Kind == Pool && (!slices.Equal(h.Quotas, was.Quotas) || h.changes(was.Limits)):
		emit(api.EventPoolChanged, "")
	case h.Trust == Damaged && was.Trust != Damaged:
		emit(api.EventDenied, h.Why)
	case h.Kind == Slice:
		if !slices.Equal(h.Quotas, was.Quotas) || h.changes(was.Limits) {
			emit(api.EventChanged, "quota")
		}
		if h.TTL != was.TTL || h.Deadline != was.Deadline {
			e.TTL = h.TTL
			emit(api.EventChanged, "ttl")
		}
	}
}

// changes reports whether the limits differ from former ones. A device that was added since makes no difference.
func (r *Record) changes(limits Bytes) bool {
	for uuid, n := range limits {
		if r.Limits[uuid] != n {
			return true
		}
	}
	return false
}

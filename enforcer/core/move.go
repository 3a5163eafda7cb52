// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// suspend moves a slice's memory to the host until it is resumed.
func (c *Core) suspend(cmd Suspend) error {
	h, err := c.live(cmd.ID)
	switch {
	case err != nil:
		return err
	case c.config.Elastic.Off != "":
		return api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: %s", h.ID, c.config.Elastic.Off)
	case h.Residence == Away && h.Manual:
		return api.Errorf(api.CodeBadRequest, "slice %s is %s already", h.ID, h.state())
	}
	c.leave(h, nil, true, cmd.Client)
	return nil
}

// resume moves a suspended slice's memory back. Without room an elastic one is evicted from then on: it returns when one of its processes asks.
func (c *Core) resume(cmd Resume) error {
	h, err := c.live(cmd.ID)
	switch {
	case err != nil:
		return err
	case h.Residence == Resident:
		return api.Errorf(api.CodeBadRequest, "slice %s is not suspended", h.ID)
	}
	w, err := c.roomToReturn(h)
	if err == nil {
		c.comeBack(h, cmd.Client)
		return nil
	}
	if !h.Elastic {
		return err
	}
	if full := api.From(err); full.Code == api.CodeQuotaExceeded {
		refusal := *full
		refusal.Message += "; it comes back when there is room and one of its processes asks"
		if c.makeRoom(w) {
			refusal.Code = api.CodeBusy // the client repeats the request
		}
		err = &refusal
	}
	if !h.Manual {
		return err
	}
	next := h.Record
	next.Manual = false
	c.begin(h, next, cmd.Client).err = err
	return nil
}

// leave begins to move a slice's memory to the host; stay is what may remain on each device. If the slice is Away, what remained there is moved.
func (c *operations) leave(h *holder, stay Bytes, manual bool, client uint64) {
	next := h.Record
	next.Manual = manual
	if h.Residence == Resident {
		next.Residence = Leaving
	}
	p := c.begin(h, next, client)
	p.move, p.stay = true, stay
}

// comeBack begins to move a slice's memory back, where there is room for it.
func (c *operations) comeBack(h *holder, client uint64) {
	next := h.Record
	next.Residence = Returning
	c.begin(h, next, client).move = true
}

// move puts a stored Leaving or Returning record in force, and requests the move.
func (c *operations) move(h *holder) {
	p := h.pending
	p.move = false
	h.Record = p.next
	c.count(h)
	c.limitNative(h, &h.Record)
	var size uint64
	for _, n := range c.present(&h.Record) {
		size += n
	}
	if op := c.await(h, moving); h.Residence == Returning {
		c.emit(MoveIn{h.ref(), op, size})
	} else {
		c.emit(MoveOut{h.ref(), op, p.stay, size})
	}
}

// moved takes the answer to a move. The record that follows from it is stored before others are granted the room.
func (c *operations) moved(h *holder, op uint64, f Moved) {
	p, next := h.pending, h.Record
	h.page, h.used, p.err = op, nil, f.Err // figures are valid that were read after a move, also after one that failed
	switch h.Residence {
	case Away: // what it had left on devices was to be moved; a failure is no client's error, and is retried after ObstacleLasts
		if f.Err == nil {
			next.Left = smaller(h.Left, f.Left)
		} else {
			h.stuck, p.err = c.now, nil
		}
	case Leaving:
		next.Residence = Resident
		if f.Err == nil {
			next.Residence, next.Hosted, next.Left = Away, true, c.leftOf(h, f.Left)
		} else {
			next.Manual = false
		}
		c.obstruct(h, f)
	case Returning:
		next.Residence, next.Manual, next.Hosted, next.Left = Resident, false, false, nil
		if f.Err != nil {
			next.Residence, next.Manual, next.Hosted, next.Left = Away, h.Manual, true, c.leftOf(h, f.Left)
		}
		c.obstruct(h, f)
	}
	p.next, p.must, c.freed = next, true, true
	c.count(h)
	c.store(h)
}

// leftOf returns the bytes that a slice has left on devices; never nil. They are at most those that it counted for. A member of a pool counts in its pools
// only, so that bound does not apply to it.
func (c *operations) leftOf(h *holder, left Bytes) Bytes {
	if len(h.pools) > 0 {
		return left.without0()
	}
	some := smaller(c.present(&h.Record), left)
	if some == nil {
		some = Bytes{}
	}
	return some
}

// triedLasts is the pause after a failed return of a slice.
const triedLasts = 200 * time.Millisecond

// ObstacleLasts is the time before another attempt to evict a slice that could not be moved.
const ObstacleLasts = 10 * time.Second

// obstruct notes why a move failed, or that it succeeded. If a slice's own processes keep it on its devices while others wait, it expires
// after Elastic.Patience.
func (c *operations) obstruct(h *holder, f Moved) {
	before, now := h.obstructed, max(c.now, 1)
	if f.Err == nil {
		h.obstacle, h.obstructed, h.overstays = "", 0, 0
		return
	}
	h.obstacle, h.obstructed = f.Err.Error(), now
	patience := c.config.Elastic.Patience
	switch {
	case !f.Stuck || h.Residence != Leaving || h.Manual:
		h.overstays = 0
	case h.overstays == 0 || now-before > 3*ObstacleLasts: // while a slice waits, a move is tried each ObstacleLasts: none waited in between
		h.overstays = now
	case patience > 0 && now-h.overstays >= patience:
		h.overstayed = fmt.Sprintf("other slices waited for its device for %s (patience in [elastic]): %v", patience, f.Err)
	}
}

// movedKind returns the kind of event for a change of residence. A return that failed is EventDenied.
func movedKind(h *holder, was *Record) api.EventKind {
	byHand := !h.Elastic || h.Manual || was.Manual
	switch {
	case h.Residence == Away && was.Residence == Returning:
		return api.EventDenied
	case h.Residence == Away && byHand:
		return api.EventSuspended
	case h.Residence == Away:
		return api.EventEvicted
	case byHand:
		return api.EventResumed
	}
	return api.EventReturned
}

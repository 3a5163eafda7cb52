// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// suspend moves a slice's memory to the host until it is resumed, or evicts it.
func (c *Core) suspend(cmd Suspend) error {
	h, err := c.live(cmd.ID)
	switch {
	case err != nil:
		return err
	case c.config.Elastic.Off != "":
		return api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: %s", h.ID, c.config.Elastic.Off)
	case h.moving(), h.Residence == Away && h.Manual && !cmd.Evict:
		return api.Errorf(api.CodeBadRequest, "slice %s is %s already", h.ID, h.state())
	}
	c.beginMoveOut(h, operation{next: h.Record, client: cmd.Client, stay: cmd.Stay, busy: cmd.Busy}, h.Manual || !cmd.Evict)
	return nil
}

// resume moves a suspended slice's memory back. Without room, an elastic slice is evicted instead of suspended: it returns when one of its
// processes waits for it.
func (c *Core) resume(cmd Resume) error {
	h, err := c.live(cmd.ID)
	switch {
	case err != nil:
		return err
	case h.Residence == Resident:
		return api.Errorf(api.CodeBadRequest, "slice %s is not suspended", h.ID)
	case c.config.Elastic.Off != "":
		return api.Errorf(api.CodeBadRequest, "slice %s cannot be resumed: %s", h.ID, c.config.Elastic.Off)
	}
	if cmd.User != nil {
		h.user = cmd.User
	}
	w, err := c.checkReturn(h)
	if err == nil {
		c.beginMoveIn(h, cmd.Client)
		return nil
	}
	if !h.Elastic {
		return err
	}
	if full := api.From(err); full.Code == api.CodeQuotaExceeded && c.makeRoom(w) {
		err = evicting(full)
	}
	if !h.Manual {
		return err
	}
	p := operation{next: h.Record, client: cmd.Client, place: true, err: err}
	p.next.Manual = false
	c.start(h, p)
	return nil
}

// beginMoveOut begins to move a slice's memory to the host. For a slice that is Away, it moves the bytes that have remained on devices.
func (c *operations) beginMoveOut(h *holder, p operation, manual bool) {
	p.place, p.move, p.next.Manual = true, true, manual
	if h.Residence == Resident {
		p.next.Residence = Leaving
	}
	c.start(h, p)
}

// beginMoveIn begins to move a slice's memory back, where there is room for it.
func (c *operations) beginMoveIn(h *holder, client uint64) {
	p := operation{next: h.Record, client: client, place: true, move: true}
	p.next.Residence, p.next.Manual = Returning, h.Manual && !h.Elastic
	c.start(h, p)
}

// move puts a stored record in force, and requests the move: in if it is Returning, otherwise out.
func (c *operations) move(h *holder) {
	p := h.pending
	p.move = false
	if h.Residence == Away && p.next.Residence == Away && p.next.Manual && !h.Manual {
		c.emit(Emit{h.ref(), api.Event{Kind: api.EventSuspended, Slice: h.ID, Generation: h.Generation}})
	}
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
		c.emit(MoveOut{h.ref(), op, p.stay, p.busy, size})
	}
}

// noteMoved takes the answer to a move. The record that follows from it is stored before others are granted the room.
func (c *operations) noteMoved(h *holder, op uint64, f Moved) {
	p, next := h.pending, h.Record
	h.page, h.used, p.err = op, nil, f.Err // use that was read before the move no longer counts, even if the move failed
	switch {
	case h.Residence == Away && f.Err != nil: // A rest on devices was moved. No client waits for that: a failure is retried after Elastic.Obstacle.
		h.restFailedAt, p.err = c.now, nil
	case h.Residence == Away:
		next.Left = smaller(h.Left, f.Left)
	default:
		next.Residence, next.Hosted, next.Left = f.At, f.At != Resident, nil
		if f.At == Away {
			next.Left = c.leftOf(h, f.Left)
		}
		next.Manual = h.Manual && f.At != Resident
		c.noteMoveResult(h, f)
	}
	p.next, p.must, c.serveAgain = next, true, true
	c.count(h)
	c.store(h)
}

// leftOf returns the bytes that a slice has left on devices. Except for a member of pools, they are at most the bytes that the slice counted for.
func (c *operations) leftOf(h *holder, left Bytes) Bytes {
	if len(h.pools) > 0 {
		return left.without0()
	}
	return smaller(c.present(&h.Record), left)
}

// returnRetryDelay is the time before another attempt to return a slice to its devices.
const returnRetryDelay = 200 * time.Millisecond

// noteMoveResult records the result of a move. A slice expires if its own processes prevent its move for Elastic.Patience while others wait.
func (c *operations) noteMoveResult(h *holder, f Moved) {
	before, now := h.moveFailedAt, max(c.now, 1)
	if h.lacks = nil; f.Err == nil {
		h.moveFailure, h.moveFailedAt, h.blockedSince = "", 0, 0
		return
	}
	if full := api.From(f.Err); h.Residence == Returning && full.Code == api.CodeQuotaExceeded {
		h.lacks = Bytes{full.Device: full.Requested - min(full.Requested, full.Limit-min(full.Limit, full.Current))}
	}
	h.moveFailure, h.moveFailedAt = f.Err.Error(), now
	patience := c.config.Elastic.Patience
	switch {
	case !f.Stuck || h.Residence != Leaving || h.Manual:
		h.blockedSince = 0
	case h.blockedSince == 0 || before != 0 && now-before > 3*c.config.Elastic.Obstacle:
		// Moves are tried every Elastic.Obstacle while another slice waits. After a longer gap, the time counts from now.
		h.blockedSince = now
	case patience > 0 && now-h.blockedSince >= patience:
		h.expiryReason = fmt.Sprintf("other slices waited for its device for %s (patience in [elastic]): %v", patience, f.Err)
	}
}

// movedKind returns the kind of event for a change of residence; "" is none.
func movedKind(h *holder, was *Record) api.EventKind {
	byHand := !h.Elastic || h.Manual || was.Manual
	switch returned := h.Residence == Resident && was.Residence == Returning; {
	case h.Residence == Away && byHand:
		return api.EventSuspended
	case h.Residence == Away:
		return api.EventEvicted
	case returned && byHand:
		return api.EventResumed
	case returned:
		return api.EventReturned
	}
	return ""
}

// SPDX-License-Identifier: Apache-2.0

package core

import (
	"maps"

	"github.com/gpuslice/gpuslice/api"
)

// release ends a slice. The memory of its processes counts until Empty.
func (c *Core) release(cmd Release) error {
	h := c.slices[cmd.ID]
	switch {
	case h == nil:
		return noSlice(cmd.ID)
	case cmd.Generation != 0 && cmd.Generation != h.Generation:
		return api.Errorf(api.CodeNotFound, "there is no slice %s of generation %d: it was released", cmd.ID, cmd.Generation)
	case h.Hosted && !cmd.NoneHosted:
		return api.Errorf(api.CodeRunning, "slice %s is suspended: its processes would wait forever: `gpuslice resume %s` first, or end its processes", h.ID, h.ID)
	case !cmd.Force:
		return api.Errorf(api.CodeRunning, "slice %s has processes that are alive: stop them first, or force the release", h.ID)
	}
	c.endSlice(h, cmd.Cause, cmd.Client)
	return nil
}

// endSlice begins the end of a slice. The cause of an expired one is that, however its end was noticed.
func (c *Core) endSlice(h *holder, cause string, client uint64) {
	if h.cause = cause; h.Phase == Expiring && cause != CauseReplaced {
		h.cause = CauseExpired
	}
	next := h.Record
	next.Phase = Lingering
	if h.Residence != Away {
		next.Left = c.counts(&h.Record)
	}
	c.begin(h, next, client).must = true
}

// due reports whether handle has something to do for a holder.
func (c *Core) due(h *holder) bool {
	switch {
	case h.empty, h.damage != "" && h.Trust != Damaged:
		return true
	case h.Phase == Live && c.mustExpire(h):
		return true
	case h.Trust != Damaged && (h.excess != "") != (h.Trust == Frozen):
		return true
	case h.Phase == Expiring && h.signalled && h.Asked == 0:
		return true
	}
	return h.used != nil && c.lowers(h)
}

// handle begins the operation that follows from the facts about a holder.
func (c *Core) handle(h *holder) {
	next := h.Record
	switch {
	case h.empty && h.Phase != Lingering:
		c.endSlice(h, CauseEnded, 0)
		return
	case h.empty: // its bytes are free
		c.forget(h, 0, nil)
		return
	case h.damage != "" && h.Trust != Damaged:
		next.Trust, next.Why = Damaged, h.damage
	case h.Phase == Live && c.mustExpire(h):
		next.Phase = Expiring
		if h.expiryReason != "" {
			next.Why = h.expiryReason
		}
	case h.Trust != Damaged && (h.excess != "") != (h.Trust == Frozen):
		next.Trust, next.Why = Sound, ""
		if h.excess != "" {
			next.Trust, next.Why = Frozen, h.excess
		}
	case h.Phase == Expiring && h.signalled && h.Asked == 0:
		next.Asked = max(c.now, 1)
	default:
		next.Kept, next.Left = c.lowered(h)
		c.start(h, operation{next: next, must: true, place: true})
		return
	}
	c.must(h, next)
}

// lowers reports whether a holder has released bytes that it counts for beyond its limits.
func (c *grants) lowers(h *holder) bool {
	kept, left := c.lowered(h)
	return !maps.Equal(kept, h.Kept) || !maps.Equal(left, h.Left)
}

// lowered returns Kept and Left according to the reported use.
func (c *grants) lowered(h *holder) (kept, left Bytes) {
	kept, left = h.Kept, h.Left
	switch {
	case h.Phase == Lingering || h.Residence == Away:
		left = smaller(h.Left, h.used)
	case h.Residence == Resident: // else a part is on the host, and comes back
		kept = smaller(h.Kept, h.used)
		maps.DeleteFunc(kept, func(uuid string, n uint64) bool { return n <= min(h.Limits[uuid], c.total(uuid)) })
	}
	return kept, left
}

// smaller returns the smaller sizes, without those that are 0.
func smaller(a, b Bytes) Bytes {
	some := maps.Clone(a)
	for uuid, n := range a {
		if some[uuid] = min(n, b[uuid]); some[uuid] == 0 {
			delete(some, uuid)
		}
	}
	return some
}

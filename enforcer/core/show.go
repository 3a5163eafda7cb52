// SPDX-License-Identifier: Apache-2.0

package core

import (
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

// Shown is a slice or pool as users see it.
type Shown struct {
	Record
	State   api.State
	Reason  string        // of a State that is not Active; "" if there is none to tell
	Counts  Bytes         // what it takes of each device
	Waits   time.Duration // since boot: a process waits for its memory since then; 0 if none does
	Idle    time.Duration // since its last call
	Members int           // of a pool
}

// Show returns the slices and pools, by generation.
func (c *Core) Show() []Shown {
	all := make([]Shown, 0, len(c.holders))
	for _, h := range c.holders {
		if h.Phase != Admitted {
			all = append(all, c.show(h))
		}
	}
	return all
}

func (c *Core) show(h *holder) Shown {
	s := Shown{Record: h.Record, State: h.state(), Reason: h.Why, Counts: h.counted.without0(), Waits: h.waitingSince, Idle: c.now - h.active, Members: len(h.members)}
	switch s.State {
	case api.Released:
		s.Reason = "it was released while processes were alive: they get no more memory, and their memory counts until they exit"
	case api.Suspended:
		s.Reason = "its memory is in host memory, and its processes' CUDA calls wait, until it is resumed"
	case api.Evicted:
		s.Reason = "its memory is in host memory, and its processes' CUDA calls wait, until there is room for it: the next call requests that"
	}
	if h.moveFailure != "" && h.Residence != Resident {
		s.Reason = h.moveFailure
	}
	if h.Kind == Pool && s.State == api.Active && c.isAway(h) {
		s.State = api.Evicted
	}
	return s
}

// state returns the state of a slice as the API has it. It is the only place that maps phase, residence and trust.
func (h *holder) state() api.State {
	switch {
	case h.Phase == Lingering:
		return api.Released
	case h.Trust == Damaged:
		return api.Damaged
	case h.Phase == Expiring:
		return api.Expired
	}
	if s := h.residence(); s != api.Active {
		return s
	}
	if h.Trust == Frozen {
		return api.Frozen
	}
	return api.Active
}

// residence returns the state of a sound slice by the place of its memory.
func (h *holder) residence() api.State {
	states := map[Residence]api.State{Leaving: api.Suspending, Away: api.Suspended, Returning: api.Resuming}
	if h.Elastic && !h.Manual {
		states = map[Residence]api.State{Leaving: api.Evicting, Away: api.Evicted, Returning: api.Returning}
	}
	if s, moved := states[h.Residence]; moved {
		return s
	}
	return api.Active
}

// ShownDevice is what is granted of a device, in bytes.
type ShownDevice struct {
	Granted, Promised uint64
	Holders           int               // of which something is granted
	Pools             map[string]uint64 // granted to pools that are not elastic
	Free              *uint64           // nil if the size of the device is unknown
	Promisable        uint64            // that elastic holders may still be promised
}

// Device returns what is granted of a device.
func (c *grants) Device(uuid string) ShownDevice {
	s := ShownDevice{Granted: c.on(uuid).all, Promised: c.on(uuid).promised}
	for _, h := range c.holders {
		has := h.counted[uuid]
		if has == 0 {
			continue
		}
		s.Holders++
		if h.Kind == Pool && !h.Elastic {
			if s.Pools == nil {
				s.Pools = make(map[string]uint64)
			}
			s.Pools[h.ID] = has
		}
	}
	if d := c.device(uuid); d != nil {
		capacity := c.config.Limits.Capacity(d.Total)
		free := capacity - min(capacity, s.Granted)
		s.Free = &free
		promisable := refusal.Promisable(d.Total, c.config.Elastic.Overcommit)
		s.Promisable = promisable - min(promisable, s.Promised)
	}
	return s
}

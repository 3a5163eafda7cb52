// SPDX-License-Identifier: Apache-2.0

package core

import "github.com/gpuslice/gpuslice/api"

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

// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/kubernetes/claim"
	"github.com/gpuslice/gpuslice/kubernetes/inventory"
)

// figures are what the pools of claims hold, and what of that their statuses say.
type figures struct {
	held    map[types.UID]held
	written map[types.UID]figure
	pools   map[string]api.Pool
}

// held is what all pools of a claim have together, in bytes.
type held struct{ limit, used uint64 }

// figure is a claim's use as it was written.
type figure struct {
	used uint64
	at   time.Time
}

// read takes the enforcer's pools. What is known of claims that have none is forgotten.
func (f *figures) read(pools []api.Pool) {
	written := f.written
	f.held, f.written, f.pools = make(map[types.UID]held), make(map[types.UID]figure), make(map[string]api.Pool)
	for _, pool := range pools {
		uid := claim.ClaimOf(pool.Name)
		if uid == "" {
			continue
		}
		f.pools[pool.Name] = pool
		h := f.held[uid]
		for _, d := range pool.Devices {
			h.limit += d.Limit
			h.used += d.Used + d.Overhead
		}
		f.held[uid] = h
		if w, known := written[uid]; known {
			f.written[uid] = w
		}
	}
}

// due is the claim whose status says for the longest time what is not so any more: by a sixteenth of its quota, or whether it uses any.
func (f *figures) due() (uid types.UID) {
	var oldest time.Time
	for id, h := range f.held {
		w, known := f.written[id]
		changed := !known || max(h.used, w.used)-min(h.used, w.used) >= max(h.limit/16, 1) || (h.used == 0) != (w.used == 0)
		if changed && (uid == "" || w.at.Before(oldest)) {
			uid, oldest = id, w.at
		}
	}
	return uid
}

// wrote notes that a claim's status says what it holds now.
func (f *figures) wrote(uid types.UID) {
	if h, has := f.held[uid]; has {
		f.written[uid] = figure{h.used, time.Now()}
	}
}

// of is what all that share a request hold on the device of one of its results, in bytes.
func (f *figures) of(c *resourceapi.ResourceClaim, r resourceapi.DeviceRequestAllocationResult) (used uint64, known bool) {
	uuid := inventory.UUID(r.Device)
	for _, d := range f.pools[claim.PoolOf(c, r.Request)].Devices {
		if d.Device == uuid {
			return d.Used + d.Overhead, true
		}
	}
	return 0, false
}

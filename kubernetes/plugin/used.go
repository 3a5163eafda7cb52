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

// figures holds the usage of claims' pools and the usage last written to their statuses.
type figures struct {
	held    map[types.UID]held
	written map[types.UID]figure
	pools   map[string]api.Pool
}

// held is the sum over all pools of a claim, in bytes.
type held struct{ limit, used uint64 }

// figure is the usage of a claim as last written.
type figure struct {
	used uint64
	at   time.Time
}

// read replaces the pools and drops claims without one.
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

// due returns the claim with the oldest outdated status, or "". A status is outdated if usage changed by a sixteenth of the
// quota, or from or to zero.
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

// wrote records that a claim's status shows its current usage.
func (f *figures) wrote(uid types.UID) {
	if h, has := f.held[uid]; has {
		f.written[uid] = figure{h.used, time.Now()}
	}
}

// of returns the bytes used by all users of a request on the device of one of its results.
func (f *figures) of(c *resourceapi.ResourceClaim, r resourceapi.DeviceRequestAllocationResult) (used uint64, known bool) {
	uuid := inventory.UUID(r.Device)
	for _, d := range f.pools[claim.PoolOf(c, r.Request)].Devices {
		if d.Device == uuid {
			return d.Used + d.Overhead, true
		}
	}
	return 0, false
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// rooms has the memory of devices that is reserved for processes on the way back to them. A device has room for a process if its free memory
// exceeds the reservations of other slices.
type rooms struct {
	mu      guard.Mutex[guard.Leaf]
	of      map[*slice]map[string]uint64 // by slice and device
	changed chan struct{}                // closed when a reservation ends
}

func newRooms() *rooms {
	return &rooms{of: make(map[*slice]map[string]uint64), changed: make(chan struct{})}
}

// wait returns a channel that is closed when the next reservation ends.
func (r *rooms) wait() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// reserve replaces the reservation of a slice if the new one fits beside those of other slices. free is the driver's answer after wait
// returned changed. A reservation that does not fit leaves the slice with none, so that no two slices wait for each other.
func (r *rooms) reserve(s *slice, needs, free map[string]uint64, changed <-chan struct{}) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	fits := changed == r.changed // else free is older than the end of a reservation
	for uuid, need := range needs {
		for other, has := range r.of {
			if other != s {
				need += has[uuid]
			}
		}
		fits = fits && need <= free[uuid]
	}
	if !fits {
		r.drop(s)
		return false
	}
	r.of[s] = needs
	return true
}

func (r *rooms) release(s *slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(s)
}

// drop is release with mu held.
func (r *rooms) drop(s *slice) {
	if _, has := r.of[s]; has {
		delete(r.of, s)
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

// reserveRoom reserves the memory that these processes need to return. It waits for other slices only if a device lacks that memory because of
// their reservations.
func (s *slice) reserveRoom(all []*moved, left map[string]uint64) error {
	r := s.e.rooms
	for {
		changed := r.wait()
		free, err := s.hasRoom(all, left)
		if err != nil {
			r.release(s)
			return err
		}
		if r.reserve(s, needed(all, left), free, changed) {
			return nil
		}
		if changed == r.wait() { // no reservation has ended since the driver answered
			_ = s.longAs(nil, func() error {
				<-changed
				return nil
			})
		}
	}
}

// hasRoom returns what is free on the devices that these processes need, or an error that names a device without room for them and its holders.
func (s *slice) hasRoom(all []*moved, left map[string]uint64) (map[string]uint64, error) {
	needs, free := needed(all, left), make(map[string]uint64)
	for _, uuid := range slices.Sorted(maps.Keys(needs)) {
		var err error
		if free[uuid], err = s.free(uuid); err != nil {
			return nil, fmt.Errorf("slice %s cannot be resumed: what is free on device %s: %w", s.id(), uuid, err)
		}
		if free[uuid] >= needs[uuid] {
			continue
		}
		g := s.e.gpuOf(uuid)
		refusal := api.Errorf(api.CodeQuotaExceeded, "slice %s cannot be resumed: it needs %s on device %s, where %s are free%s: it stays suspended until there is room",
			s.id(), api.FormatSize(needs[uuid]), g.called(uuid), api.FormatSize(free[uuid]), s.holdersOn(g))
		refusal.Device, refusal.Requested, refusal.Limit, refusal.Current = uuid, needs[uuid], g.Total, g.Total-free[uuid]
		return nil, refusal
	}
	return free, nil
}

// named is the number of holders that a refusal names.
const named = 3

// holdersOn describes the largest holders of a device among those that the slice's user may know.
func (s *slice) holdersOn(g *gpu) string {
	listed, err := s.e.truth.processes(g, patience)
	if err != nil {
		return ""
	}
	of := make(map[string]uint64)
	var unnamed uint64
	for pid, bytes := range listed {
		if bytes == driver.Unknown {
			continue
		}
		holder, who := (*admission.Holder)(nil), fmt.Sprintf("process %d (%s) outside slices", pid, process.Name(pid))
		if other := s.e.owner(pid); other != nil {
			holder, who = other.holder, other.holder.Name
		}
		if s.holder.UID != nil && (holder == nil || !s.holder.MayKnow(holder)) && !s.holder.MayKnow(&admission.Holder{}) {
			unnamed += bytes
		} else {
			of[who] += bytes
		}
	}
	names := slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b)) })
	var said []string
	for _, who := range names[:min(named, len(names))] {
		said = append(said, who+" holds "+api.FormatSize(of[who]))
	}
	if more := names[len(said):]; len(more) > 0 {
		for _, who := range more {
			unnamed += of[who]
		}
	}
	if unnamed > 0 {
		said = append(said, "others "+api.FormatSize(unnamed))
	}
	if len(said) == 0 {
		return ""
	}
	return " (" + strings.Join(said, ", ") + ")"
}

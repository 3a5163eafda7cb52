// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// rooms has the memory of devices that is reserved for processes on the way back to them. A device has room for a process if its free memory
// exceeds the reservations of other slices.
type rooms struct {
	mu      guard.Mutex[guard.Leaf]
	of      map[*Slice]map[string]uint64 // by slice and device
	changed chan struct{}                // closed when a reservation ends
}

func newRooms() *rooms {
	return &rooms{of: make(map[*Slice]map[string]uint64), changed: make(chan struct{})}
}

// wait returns a channel that is closed when the next reservation ends.
func (r *rooms) wait() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// reserve replaces the reservation of a slice if the new one fits beside those of other slices. free is the driver's answer after wait
// returned changed.
func (r *rooms) reserve(s *Slice, needs, free map[string]uint64, changed <-chan struct{}) bool {
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
	if fits {
		r.of[s] = needs
	}
	return fits
}

func (r *rooms) release(s *Slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, has := r.of[s]; has {
		delete(r.of, s)
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

// Reserve reserves the memory that the processes need to return. Back releases it.
func (m *Move) Reserve() error {
	if err := m.FindAway(); err != nil {
		return err
	}
	return m.reserve()
}

// reserve waits for other slices only if a device lacks memory because of their reservations. It then has none itself, so that no two slices wait for
// each other.
func (m *Move) reserve() error {
	r := m.slice.mover.rooms
	for {
		changed := r.wait()
		free, err := m.HasRoom()
		if err == nil && r.reserve(m.slice, needed(m.away, m.spare), free, changed) {
			return nil
		}
		if r.release(m.slice); err != nil {
			return err
		}
		_ = m.slice.await(nil, func() error {
			<-changed
			return nil
		})
	}
}

// HasRoom returns what is free on the devices of the processes that FindAway found. Its error names a device without room for them, and the device's
// holders.
func (m *Move) HasRoom() (map[string]uint64, error) {
	s := m.slice
	needs, free := needed(m.away, m.spare), make(map[string]uint64)
	for _, uuid := range slices.Sorted(maps.Keys(needs)) {
		var err error
		if free[uuid], err = s.mover.Truth.Free(uuid); err != nil {
			return nil, fmt.Errorf("slice %s cannot be resumed: what is free on device %s: %w", s.ID, uuid, err)
		}
		if free[uuid] >= needs[uuid] {
			continue
		}
		d := s.mover.device(uuid)
		refusal := api.Errorf(api.CodeQuotaExceeded, "slice %s cannot be resumed: it needs %s on device %s, where %s are free%s: it stays suspended until there is room",
			s.ID, api.FormatSize(needs[uuid]), d.Shown, api.FormatSize(free[uuid]), s.Owner.HoldersOn(uuid))
		refusal.Device, refusal.Requested, refusal.Limit, refusal.Current = uuid, needs[uuid], d.Total, d.Total-free[uuid]
		return nil, refusal
	}
	return free, nil
}

// Spare returns each device's free bytes beyond what was moved from it. The return requires no more than that in addition to the moved bytes.
func (m *Move) Spare() map[string]uint64 {
	spare := make(map[string]uint64)
	for uuid, need := range needed(m.all, nil) {
		if free, err := m.slice.mover.Truth.Free(uuid); err == nil {
			spare[uuid] = free - min(free, need)
		}
	}
	return spare
}

// needed returns the bytes of each device that must be free for the processes' return: what was moved, and spare for each process, but no more than
// was free in addition when they left.
func needed(all []*proc, then map[string]uint64) map[string]uint64 {
	needs, more := make(map[string]uint64), make(map[string]uint64)
	for _, p := range all {
		for uuid, bytes := range p.OnHost() {
			needs[uuid] += bytes
			more[uuid] += spare
		}
	}
	for uuid := range needs {
		if limit, known := then[uuid]; known {
			needs[uuid] += min(more[uuid], limit)
		}
	}
	return needs
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// hasRoom says which device has not free what these processes need to come back, and who holds it.
func (s *slice) hasRoom(all []*moved, left map[string]uint64) error {
	needs := needed(all, left)
	for _, uuid := range slices.Sorted(maps.Keys(needs)) {
		free, err := s.free(uuid)
		if err != nil {
			return fmt.Errorf("slice %s cannot be resumed: what is free on device %s: %w", s.id(), uuid, err)
		}
		if free >= needs[uuid] {
			continue
		}
		g := s.e.gpuOf(uuid)
		refusal := api.Errorf(api.CodeQuotaExceeded, "slice %s cannot be resumed: it needs %s on device %s, where %s are free%s: it stays suspended until there is room",
			s.id(), api.FormatSize(needs[uuid]), g.called(uuid), api.FormatSize(free), s.holdersOn(g))
		refusal.Device, refusal.Requested, refusal.Limit, refusal.Current = uuid, needs[uuid], g.Total, g.Total-free
		return refusal
	}
	return nil
}

// named is how many holders of a device are named.
const named = 3

// holdersOn says who holds most of a device, of those whom the slice's user may know of.
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

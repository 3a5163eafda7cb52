// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"hash/maphash"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// To ask the driver who holds what takes time in the kernel for each process, several times over: 5 ms of CPU for 100 processes
// (NVML of driver 580 on an H100). How much of the device's memory is in use it says in 8 µs. So a glance at that, and at what all
// lanes hold, comes before each comparison that is only due. If both are what they were, nobody has come, gone, charged or given
// back by a lane, and what any process got otherwise another one gave back to the byte. A process without a lane that counts could,
// and one that is suspected: where the last comparison knew of any, or left anything open, the next one is made. An attached
// process could if it gives back past its lane: therefore one is made now and then in any case.

// glances are how many comparisons in a row a glance can stand for.
const glances = 10

// glance is all that is known of a device without asking for its processes.
type glance struct {
	used  uint64 // bytes of its memory that are in use
	lanes uint64 // a digest of what the lanes of all slices hold there, and of how often each was changed
}

// seen is how things stood at a device's last comparison. It belongs to the loop that compares the device.
type seen struct {
	glance
	rest    uint64 // bytes in use, less those of all processes that the driver listed
	settled bool   // nothing was left that another comparison may decide
	stood   int    // for how many comparisons it has stood since
}

// glance looks at a device.
func (e *Enforcer) glance(g *gpu, slices []*slice) (now glance, err error) {
	for _, s := range slices {
		now.lanes += s.glance(g.Raw)
	}
	now.used, err = ask(g.slot, patience, func() (uint64, error) { return e.truth.source.Used(g.UUID) })
	return now, err
}

// same says whether the last comparison stands for one that would be made now. It is not asked twice.
func (s *seen) same(now glance) bool {
	if !s.settled || s.glance != now || s.stood == glances {
		return false
	}
	s.stood++
	return true
}

// compared notes how things stood before a comparison, and what that left. A process that gives back its memory while it is looked
// for changes what is in use beyond the list: so two comparisons have to agree on that. known is whether the glance is.
func (s *seen) compared(before glance, left found, known bool) {
	rest := before.used - left.listed
	*s = seen{glance: before, rest: rest, settled: known && !left.again && !left.open && rest == s.rest}
}

// digestKey keeps anybody from making up lanes whose digest is the same.
var digestKey = maphash.MakeSeed()

// glance is a digest of what the slice's lanes hold on a device. Those of several can be added up.
func (s *slice) glance(raw [16]byte) (digest uint64) {
	type entry struct {
		slice uint64 // its generation
		state api.State
		lane  uint32
		owner uint64 // the lane's generation
		holding
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	digest = maphash.Comparable(digestKey, entry{slice: s.generation, state: s.state})
	index := s.find(raw)
	if index < 0 || s.state != api.Active {
		return digest
	}
	for _, l := range s.lanes {
		digest += maphash.Comparable(digestKey, entry{s.generation, s.state, l.number, l.generation,
			holding{bytes: s.charged(index, l), number: s.ledger.Number(index, l.number)}})
	}
	return digest
}

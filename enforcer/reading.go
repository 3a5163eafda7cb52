// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"hash/maphash"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/truth"
)

// lanes are the lanes of all slices on one device, at one time.
type lanes struct {
	slices map[*slice]standing
	byPID  map[int]reading
	exits  map[int]exit // by pid: exits of processes that had a lane
	digest uint64       // over the bytes and the number of changes of each lane
}

// standing is the use of samples for a slice.
type standing struct {
	samples bool // violations are detected
	charges bool // bytes beyond the lanes are charged
}

// reading is a process's lane. Once the process has exited its handle may be closed.
type reading struct {
	slice   *slice
	process truth.Process
	handle  *process.Handle
	lane    truth.Lane
}

func newLanes() lanes {
	return lanes{make(map[*slice]standing), make(map[int]reading), make(map[int]exit), 0}
}

// read reads the lanes again.
func (l *lanes) read(all []*slice, raw [16]byte) {
	clear(l.slices)
	clear(l.byPID)
	clear(l.exits)
	l.digest = 0
	for _, s := range all {
		s.readLanes(l, raw)
	}
}

// has reports whether a process had a lane.
func (l *lanes) has(k *sampled) bool { return l.of(k).ID != 0 }

// of returns a process's lane; the zero value if it had none.
func (l *lanes) of(k *sampled) truth.Lane {
	if r := l.byPID[k.process.PID]; r.process == k.process && r.slice == k.slice {
		return r.lane
	}
	return truth.Lane{}
}

func (l *lanes) put(r reading) {
	if was, has := l.byPID[r.process.PID]; has && was.handle.Alive() { // the other has exited and is not settled yet
		return
	}
	l.byPID[r.process.PID] = r
}

// digestKey prevents processes from constructing lanes with an equal digest.
var digestKey = maphash.MakeSeed()

// readLanes reads the slice's lanes on a device. If the page is damaged, or was not found, each lane counts as the highest limit so far: an honest
// process can have charged no more.
func (s *slice) readLanes(into *lanes, raw [16]byte) {
	type entry struct {
		slice        uint64 // its generation
		state        api.State
		lane         uint64
		held, number uint64
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	into.digest += maphash.Comparable(digestKey, entry{slice: s.generation, state: s.quota.State})
	index := s.quota.Index(raw)
	into.slices[s] = standing{samples: s.isSampled(), charges: s.quota.State == api.Active && index >= 0}
	var limit uint64
	switch {
	case !s.isSampled():
		return
	case index >= 0:
		limit = s.highestLimit(s.quota.Devices[index])
		for pid, x := range s.noted(s.quota.Devices[index]).exits {
			into.exits[pid] = x
			into.digest += maphash.Comparable(digestKey, entry{slice: s.generation, lane: uint64(pid), number: x.process.Start})
		}
	}
	for l := range s.quota.Lanes() {
		r := reading{s, truth.Process{PID: l.Process.PID, Start: l.Process.Start}, l.Process, truth.Lane{ID: l.ID()}}
		switch {
		case s.quota.State == api.Damaged:
			r.lane.Held = limit
		case index >= 0:
			r.lane.Calls = truth.Calls(s.quota.Ledger.Uncharged(index, l.Number)) // first: the charges of ended calls are then in what follows
			r.lane.Loads = truth.Calls(s.quota.Ledger.Loads(l.Number))
			r.lane.Held, r.lane.Number = s.quota.Held(index, l), s.quota.Ledger.Number(index, l.Number)
			r.lane.Waiting = s.waiting(index, l, r.lane.Number)
			into.digest += maphash.Comparable(digestKey, entry{s.generation, s.quota.State, r.lane.ID, r.lane.Held, r.lane.Number})
		}
		into.put(r)
	}
	if s.quota.Ledger != nil {
		return
	}
	for _, p := range s.group.Remaining() { // they may have lanes
		into.put(reading{s, truth.Process{PID: p.PID, Start: p.Start}, p, truth.Lane{ID: 1, Held: limit}})
	}
}

// isSampled reports whether violations of the slice are detected. Called with mu held.
func (s *slice) isSampled() bool { return s.quota.State == api.Active || s.quota.State == api.Damaged }

// waiting returns since when a process is about to charge bytes on a device itself: its first context, or the driver's figure that it received.
// Charged now, they would count twice for a moment. Called with mu held.
func (s *slice) waiting(index int, l *quota.Lane, number uint64) time.Time {
	switch told := l.Told[index]; {
	case !told.At.IsZero() && told.Number == number:
		return told.At
	case !l.Learned[index] && s.quota.Ledger.Held(index, l.Number) == 0:
		return l.Attached
	}
	return time.Time{}
}

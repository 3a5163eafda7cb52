// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"math"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/hostmem"
)

// This file checks that the host, its cgroups and the operator's limit have room for moved memory, and decides what processes that move themselves
// keep of it for the next move.

// hostHasRoomOr is hostHasRoom. If there is no room, leave passes processes that would move themselves to the driver, which may have it.
func (s *slice) hostHasRoomOr(all []*moved, leave func(p *moved, why error) error) error {
	err := s.hostHasRoom(all)
	if err == nil {
		return nil
	}
	left := false
	for _, p := range all {
		if !s.isGiven(p) {
			continue
		}
		left = true
		if lacks := leave(p, err); lacks != nil {
			return s.both(err, lacks)
		}
	}
	if !left {
		return err
	}
	if lacks := s.hostHasRoom(all); lacks != nil {
		return s.both(err, lacks)
	}
	s.log.Info("slice's memory left to the driver", "why", err)
	return nil
}

// hostHasRoom returns which limit the copy in host memory exceeds, beyond what processes have kept for it. The copy is charged to the moved process
// or to the operator's cgroup; the kernel would kill a process over its limit.
func (s *slice) hostHasRoom(all []*moved) error {
	own, given, more := make(map[int]uint64), uint64(0), uint64(0)
	for _, p := range all {
		need := p.goes()
		if !p.byDriver {
			kept := s.kept(p)
			need -= min(need, kept-min(kept, p.inUse))
		}
		if more += need; s.isGiven(p) {
			given += need
		} else {
			own[p.PID] = need
		}
	}
	if err := s.fitsCgroups(own); err != nil {
		return err
	}
	return s.fitsWithout(func() (lacks uint64, err error) {
		if given > 0 {
			if err := s.fitsGiven(given); err != nil {
				return math.MaxUint64, err
			}
		}
		if available, _, known := memoryOfHost(); known && available < more {
			return more - available, api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: it holds %s, and the host has %s of memory available", s.id(), api.FormatSize(more), api.FormatSize(available))
		}
		return 0, nil
	})
}

// fitsCgroups returns an error if the cgroup of a process has no room for the bytes that it needs in addition.
func (s *slice) fitsCgroups(needs map[int]uint64) error {
	if s.e.host == nil {
		return nil
	}
	short, err := memoryShort(s.e.host, needs)
	if err == nil && short != nil {
		err = api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: the %s that it holds would be charged to cgroup %s, which has %s left of its limit of memory of %s: raise that limit first",
			s.id(), api.FormatSize(short.Need), short.Dir, api.FormatSize(short.Left), api.FormatSize(short.Limit))
	}
	return err
}

// Variables, since tests replace them.
var (
	memoryOfHost = hostmem.Meminfo
	memoryShort  = (*cgroup.Host).MemoryShort
)

// fitsHost returns an error if the move would exceed the host memory allowed for elastic slices: evicted, on the way, or kept by processes. From its
// success until hasMoved the move counts, too.
func (s *slice) fitsHost(going []*moved) error {
	most := s.e.options.Elastic.HostMemory
	if most == 0 {
		return nil
	}
	var moves uint64
	for _, p := range going {
		moves += p.goes()
	}
	return s.fitsWithout(func() (lacks uint64, err error) {
		s.e.fitting.Wait()
		defer s.e.fitting.Give()
		all := moves
		for _, other := range s.e.elasticOnes() {
			other.mu.Lock()
			switch {
			case other.isAway():
				for _, p := range other.suspension.Processes {
					has := sum(p.OnHost())
					if l := other.mover(p.Process); l != nil {
						has = max(has, l.Kept)
					}
					all += has
				}
				all += other.residency.moves
			case other != s:
				all += max(other.keptInAll(), other.residency.moves)
			}
			other.mu.Unlock()
		}
		if all > most {
			return all - most, api.Errorf(api.CodeQuotaExceeded, "slice %s stays where it is: with it %s would be in host memory, and host_memory is %s", s.id(), api.FormatSize(all), api.FormatSize(most))
		}
		s.mu.Lock()
		s.residency.moves = moves
		s.mu.Unlock()
		return 0, nil
	})
}

// hasMoved ends what fitsHost counts for a move.
func (s *slice) hasMoved() {
	if s.residency == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.residency.moves = 0
}

func (s *slice) bothFit(going []*moved) error {
	if err := s.fitsHost(going); err != nil {
		return err
	}
	return s.hostHasRoom(going)
}

// keeps notes the bytes of host memory that a process has, in use or kept for the next move.
func (s *slice) keeps(p *moved, bytes uint64) {
	s.onLane(p, func(l *quota.Lane) { l.Kept = bytes })
}

func (s *slice) kept(p *moved) (bytes uint64) {
	s.onLane(p, func(l *quota.Lane) { bytes = l.Kept })
	return bytes
}

// keptInAll returns the bytes that the processes of a resident slice keep. Called with mu held.
func (s *slice) keptInAll() (bytes uint64) {
	for l := range s.quota.Lanes() {
		bytes += l.Kept
	}
	return bytes
}

// mayKeep requests that processes of a returned slice give back host memory: all of it if their cgroup is limited, else what the host lacks to have
// plenty. Memory of the operator's cgroup may be kept until another process needs it.
func (s *slice) mayKeep() {
	var keep []process.Identity
	s.mu.Lock()
	for l := range s.quota.Lanes() {
		if l.Kept > 0 {
			keep = append(keep, l.Process.Identity)
		}
	}
	s.mu.Unlock()
	for _, p := range keep {
		available, total, known := memoryOfHost()
		lacks := total/hostPlenty - min(total/hostPlenty, available)
		if !known || s.isLimited(p) {
			lacks = math.MaxUint64
		}
		if lacks > 0 {
			told := s.bare(lacks, func(l *quota.Lane) bool { return l.Process.PID == p.PID })
			if s.e.options.HostMemory != nil {
				s.e.ends.Go(func() { s.awaitBare(told) })
			}
		}
	}
}

// isLimited reports whether what a process keeps counts in a limited cgroup of its own.
func (s *slice) isLimited(p process.Identity) bool {
	if h := s.e.options.HostMemory; h != nil {
		if bytes, err := h.Bytes(hostmem.Process{PID: p.PID, Start: p.Start}); err == nil && bytes > 0 {
			return false
		}
	}
	const more = 1 << 62 // than any real limit
	if s.e.host == nil {
		return false
	}
	short, err := memoryShort(s.e.host, map[int]uint64{p.PID: more})
	return short != nil || err != nil
}

// bare requests that processes of the slice give back these bytes of host memory together: what resident ones keep, or what others have beyond their
// moved memory. It returns the expected answers, by lane.
func (s *slice) bare(bytes uint64, which func(*quota.Lane) bool) map[*quota.Lane]uint8 {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := make(map[*quota.Lane]uint8)
	place, inUse := ledger.Bare, make(map[int]uint64)
	switch {
	case s.isAway():
		place = ledger.Aside
		for _, p := range s.suspension.Processes {
			inUse[p.PID] = sum(p.OnHost())
		}
	case s.suspension != nil: // they are moving, or about to
		return told
	}
	for l := range s.quota.Lanes() {
		gives := min(l.Kept-min(l.Kept, inUse[l.Process.PID]), bytes)
		m := s.quota.Ledger.MoveOf(l.Number)
		if gives == 0 || !which(l) || place == ledger.Aside && (m.Is != ledger.Aside || m.Answered != m.Want) {
			continue
		}
		bytes -= gives
		l.Kept -= gives // even if it does not: it may have given back a part
		s.quota.Ledger.SetKeep(l.Kept)
		told[l] = s.quota.Ledger.SetWant(l.Number, place)
	}
	return told
}

// awaitBare waits until the lanes have answered bare, or have another request. Then it takes back their host memory.
func (s *slice) awaitBare(told map[*quota.Lane]uint8) {
	for deadline := time.Now().Add(answerPatience); time.Now().Before(deadline) && !s.e.ending.Load(); time.Sleep(wordPace) {
		open := false
		s.mu.Lock()
		for l, want := range told {
			if s.quota.Has(l) {
				m := s.quota.Ledger.MoveOf(l.Number)
				open = open || m.Want == want && m.Answered != want
			}
		}
		s.mu.Unlock()
		if !open {
			break
		}
	}
	for l, want := range told {
		s.emptied(l, want)
	}
}

// fitsWithout calls fits again and again, while other slices in turn give back host memory that their processes keep. It returns the last error.
func (s *slice) fitsWithout(fits func() (lacks uint64, err error)) error {
	const more = 1 << 30 // in addition, since the host's figure is an estimate
	lacks, err := fits()
	for _, other := range s.e.elasticOnes() {
		if err == nil {
			break
		}
		told := other.bare(max(lacks, lacks+more), func(*quota.Lane) bool { return true })
		if len(told) == 0 {
			continue
		}
		_ = s.longAs(nil, func() error {
			other.awaitBare(told)
			return nil
		})
		lacks, err = fits()
	}
	return err
}

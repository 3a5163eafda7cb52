// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/hostmem"
)

// Where a slice's memory goes: whether the host, a cgroup and the operator have room for it, and what processes that move their memory themselves keep
// there for the next time.

// hostHasRoomOr is hostHasRoom, where leave leaves to the driver those that would move their memory themselves and have no room for that, if the driver has.
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

// hostHasRoom says which limit of memory the copy does not fit, beyond what a process has kept for it: it is charged to the process that is moved, or to
// the cgroup of the operator's choice, and the kernel would kill one that is beyond its limit.
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

// fitsCgroups says which processes' cgroup has no room for so much more.
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

// Tests have others.
var (
	memoryOfHost = hostMemory
	memoryShort  = (*cgroup.Host).MemoryShort
)

// hostMemory is how many bytes of host memory can be had without swapping, as the kernel estimates it, and how many there are.
func hostMemory() (available, total uint64, known bool) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0, false
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "MemTotal:" && f[0] != "MemAvailable:" {
			continue
		}
		kib, err := strconv.ParseUint(f[1], 10, 54)
		if err != nil {
			return 0, 0, false
		}
		if f[0] == "MemAvailable:" { // which comes after the other
			return kib << 10, total, true
		}
		total = kib << 10
	}
	return 0, 0, false
}

// fitsHost says whether what is to go of the slice is within what elastic slices may have of host memory, evicted or kept by their processes.
func (s *slice) fitsHost(going []*moved) error {
	most := s.e.options.Elastic.HostMemory
	if most == 0 {
		return nil
	}
	return s.fitsWithout(func() (lacks uint64, err error) {
		var all uint64
		for _, p := range going {
			all += p.goes()
		}
		for _, other := range s.e.elasticOnes() {
			other.mu.Lock()
			switch {
			case other.isAway():
				for _, p := range other.suspension.Processes {
					has := sum(onHost(p))
					if l := other.mover(p.Process); l != nil {
						has = max(has, l.Kept)
					}
					all += has
				}
			case other != s:
				all += other.keptInAll()
			}
			other.mu.Unlock()
		}
		if all > most {
			return all - most, api.Errorf(api.CodeQuotaExceeded, "slice %s stays where it is: with it %s would be in host memory, and host_memory is %s", s.id(), api.FormatSize(all), api.FormatSize(most))
		}
		return 0, nil
	})
}

// bothFit is fitsHost and hostHasRoom.
func (s *slice) bothFit(going []*moved) error {
	if err := s.fitsHost(going); err != nil {
		return err
	}
	return s.hostHasRoom(going)
}

// keeps notes how much host memory a process has, whether its memory is there or it keeps that for the next time.
func (s *slice) keeps(p *moved, bytes uint64) {
	s.onLane(p, func(l *quota.Lane) { l.Kept = bytes })
}

// kept is what keeps has noted.
func (s *slice) kept(p *moved) (bytes uint64) {
	s.onLane(p, func(l *quota.Lane) { bytes = l.Kept })
	return bytes
}

// keptInAll is what processes of a slice that is on its devices keep. Called with mu held.
func (s *slice) keptInAll() (bytes uint64) {
	for l := range s.quota.Lanes() {
		bytes += l.Kept
	}
	return bytes
}

// mayKeep tells those processes of a slice that has returned to keep no host memory, whose cgroup is limited; and others to give back what the host lacks
// to have plenty. What is charged to the cgroup of the operator's choice may be kept until somebody else needs it.
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

// isLimited says whether what a process keeps is within a limit of its own cgroup.
func (s *slice) isLimited(p process.Identity) bool {
	if h := s.e.options.HostMemory; h != nil {
		if bytes, err := h.Bytes(hostmem.Process{PID: p.PID, Start: p.Start}); err == nil && bytes > 0 {
			return false
		}
	}
	const more = 1 << 62 // than any limit that is one
	if s.e.host == nil {
		return false
	}
	short, err := memoryShort(s.e.host, map[int]uint64{p.PID: more})
	return short != nil || err != nil
}

// bare tells those processes of a slice to give back so many bytes of host memory together who keep some, on their devices, or aside and beyond what their
// memory is in. It returns what they are to answer, by lane.
func (s *slice) bare(bytes uint64, which func(*quota.Lane) bool) map[*quota.Lane]uint8 {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := make(map[*quota.Lane]uint8)
	place, inUse := ledger.Bare, make(map[int]uint64)
	switch {
	case s.isAway():
		place = ledger.Aside
		for _, p := range s.suspension.Processes {
			inUse[p.PID] = sum(onHost(p))
		}
	case s.suspension != nil: // they are moving, or are to
		return told
	}
	for l := range s.quota.Lanes() {
		gives := min(l.Kept-min(l.Kept, inUse[l.Process.PID]), bytes)
		m := s.quota.Ledger.MoveOf(l.Number)
		if gives == 0 || !which(l) || place == ledger.Aside && (m.Is != ledger.Aside || m.Answered != m.Want) {
			continue
		}
		bytes -= gives
		l.Kept -= gives // whether it does or not: it may have given back a part
		s.quota.Ledger.SetKeep(l.Kept)
		told[l] = s.quota.Ledger.SetWant(l.Number, place)
	}
	return told
}

// awaitBare waits until those who were told by bare have answered, or are told something else; and takes back what they were given.
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

// fitsWithout says whether something fits the host's memory, for which other slices give back what their processes keep, one after the other.
func (s *slice) fitsWithout(fits func() (lacks uint64, err error)) error {
	const more = 1 << 30 // than is lacking: the host's own figure is an estimate
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

// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/store"
	"github.com/gpuslice/gpuslice/hostmem"
)

// This file checks that the host, its cgroups and the operator's limit have room for moved memory. A process that moves itself keeps its host memory for
// the next move while the host has plenty: in the operator's cgroup (given.go), or in its own cgroup if nothing limits that.

// plentyShare: processes keep host memory while 1/plentyShare of the host's is available.
const plentyShare = 8

// fitsHostOrDriver is fitsHost. If there is no room, leave passes processes that would move themselves to the driver, which may have it.
func (s *Slice) fitsHostOrDriver(all []*proc, leave func(p *proc, why error) error) error {
	err := s.fitsHost(all)
	if err == nil || !slices.ContainsFunc(all, (*proc).isGiven) {
		return err
	}
	for _, p := range all {
		if p.isGiven() {
			if lacks := leave(p, err); lacks != nil {
				return s.noHostMemory(err, lacks)
			}
		}
	}
	if lacks := s.fitsHost(all); lacks != nil {
		return s.noHostMemory(err, lacks)
	}
	s.Quota.Log.Info("slice's memory left to the driver", "why", err)
	return nil
}

// noHostMemory combines the reasons why neither the process nor the driver has host memory.
func (s *Slice) noHostMemory(self, byDriver error) error {
	if self.Error() == byDriver.Error() || s.mover.stopped(byDriver) {
		return byDriver
	}
	return api.Errorf(api.CodeBadRequest, "%v; and by the driver: %v", self, byDriver)
}

// fitsHost returns which limit the copy in host memory exceeds, beyond what processes have kept for it. The copy is charged to the moved process
// or to the operator's cgroup; the kernel would kill a process over its limit. From its success until the Move is closed, the move counts for others.
func (s *Slice) fitsHost(all []*proc) error {
	own, given, more := make(map[int]uint64), uint64(0), uint64(0)
	for _, p := range all {
		need := p.toMove()
		if !p.toDriver {
			var kept uint64
			p.onLane(func(l *quota.Lane) { kept = l.Kept })
			need -= min(need, kept-min(kept, p.inUse))
		}
		if more += need; p.isGiven() {
			given += need
		} else {
			own[p.PID] = need
		}
	}
	var short error
	err := s.reclaimUntil(func() (lacks uint64, err error) {
		if given > 0 {
			if err := s.fitsGiven(given); err != nil {
				return math.MaxUint64, err
			}
		}
		s.mover.fitting.Wait()
		defer s.mover.fitting.Give()
		ownOfOthers, others := make(map[int]uint64), uint64(0)
		for other, has := range s.mover.granted {
			if other != s {
				maps.Copy(ownOfOthers, has.own)
				others += has.bytes
			}
		}
		if short = s.fitsCgroups(own, ownOfOthers); short != nil {
			return 0, nil // no process could give back memory for it
		}
		available, _, known := s.mover.Meminfo()
		if available -= min(available, others); known && available < more {
			return more - available, api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: it holds %s, and the host has %s of memory available", s.ID, api.FormatSize(more), api.FormatSize(available))
		}
		s.mover.granted[s] = granted{more, own}
		return 0, nil
	})
	return cmp.Or(short, err)
}

// granted is the host memory that a move under way may take: all bytes, and by process those in its own cgroup.
type granted struct {
	bytes uint64
	own   map[int]uint64
}

// fitsCgroups returns an error if the cgroup of a process has no room for the bytes that it needs in addition, beside those of other slices.
func (s *Slice) fitsCgroups(needs, beside map[int]uint64) error {
	short, err := s.mover.MemoryShort(needs, beside)
	if err == nil && short != nil {
		err = api.Errorf(api.CodeBadRequest, "slice %s cannot be suspended: the %s that it holds would be charged to cgroup %s, which has %s left of its limit of memory of %s: raise that limit first",
			s.ID, api.FormatSize(short.Need), short.Dir, api.FormatSize(short.Left), api.FormatSize(short.Limit))
	}
	return err
}

// fitsLimit returns an error if the move would exceed the host memory allowed for elastic slices: evicted, on the way, or kept by processes. From its
// success until the Move is closed, the move counts, too.
func (s *Slice) fitsLimit(all []*proc) error {
	limit := s.mover.HostLimit
	if limit == 0 {
		return nil
	}
	var moving uint64
	for _, p := range all {
		moving += p.toMove()
	}
	return s.reclaimUntil(func() (lacks uint64, err error) {
		s.mover.fitting.Wait()
		defer s.mover.fitting.Give()
		all := moving
		for _, other := range s.mover.Elastic() {
			all += other.inHostMemory(other == s)
		}
		if all > limit {
			return all - limit, api.Errorf(api.CodeQuotaExceeded, "slice %s stays where it is: with it %s would be in host memory, and host_memory is %s", s.ID, api.FormatSize(all), api.FormatSize(limit))
		}
		s.locked(func() { s.moving = moving })
		return 0, nil
	})
}

// inHostMemory returns the bytes that the slice counts for in fitsLimit. For the slice that is about to move, it returns only the bytes that are there.
func (s *Slice) inHostMemory(asks bool) (bytes uint64) {
	s.Quota.Lock.Lock()
	defer s.Quota.Lock.Unlock()
	now := s.Owner.Suspended()
	switch {
	case now.Away():
		bytes = s.moving
		for _, p := range now.Processes {
			has := sum(p.OnHost())
			if l := s.lane(p.Process); l != nil {
				has = max(has, l.Kept)
			}
			bytes += has
		}
	case !asks:
		for l := range s.Quota.Lanes() {
			bytes += l.Kept
		}
		bytes = max(bytes, s.moving)
	}
	return bytes
}

func (s *Slice) fitsAll(all []*proc) error {
	if err := s.fitsLimit(all); err != nil {
		return err
	}
	return s.fitsHost(all)
}

// LimitKept requests that processes of a returned slice give back host memory: all of it if their cgroup is limited, else what the host lacks to have
// plenty. Memory of the operator's cgroup may be kept until another process needs it.
func (s *Slice) LimitKept() {
	for _, p := range s.processes(func(l *quota.Lane) bool { return l.Kept > 0 }) {
		available, total, known := s.mover.Meminfo()
		lacks := total/plentyShare - min(total/plentyShare, available)
		if !known || s.mover.isLimited(p) {
			lacks = math.MaxUint64
		}
		if lacks > 0 {
			told := s.reclaim(lacks, p.PID)
			if s.mover.HostMemory != nil {
				s.mover.Background(func() { s.awaitReclaimed(told) })
			}
		}
	}
}

// isLimited reports whether what a process keeps counts in a limited cgroup of its own.
func (m *Mover) isLimited(p store.Process) bool {
	if h := m.HostMemory; h != nil {
		if bytes, err := h.Bytes(hostmem.Process(p)); err == nil && bytes > 0 {
			return false
		}
	}
	const more = 1 << 62 // than any real limit
	short, err := m.MemoryShort(map[int]uint64{p.PID: more}, nil)
	return short != nil || err != nil
}

// reclaim requests that processes of the slice, or only one, give back these bytes of host memory together: what resident ones keep, or what others have
// beyond their moved memory. It returns the expected answers, by lane.
func (s *Slice) reclaim(bytes uint64, only int) map[*quota.Lane]uint8 {
	s.Quota.Lock.Lock()
	defer s.Quota.Lock.Unlock()
	told := make(map[*quota.Lane]uint8)
	place, inUse := ledger.Bare, make(map[int]uint64)
	if now := s.Owner.Suspended(); now.Away() {
		place = ledger.Aside
		for _, p := range now.Processes {
			inUse[p.PID] = sum(p.OnHost())
		}
	} else if now != nil { // they are moving, or about to
		return told
	}
	for l := range s.Quota.Lanes() {
		gives := min(l.Kept-min(l.Kept, inUse[l.Process.PID]), bytes)
		c := s.Quota.Ledger.MoveOf(l.Number)
		if gives == 0 || only != 0 && only != l.Process.PID || place == ledger.Aside && (c.Is != ledger.Aside || c.Answered != c.Want) {
			continue
		}
		bytes -= gives
		l.Kept -= gives // even if it does not: it may have given back a part
		s.Quota.Ledger.SetKeep(l.Kept)
		told[l] = s.Quota.Ledger.SetWant(l.Number, place)
	}
	return told
}

// awaitReclaimed waits until the lanes have answered reclaim, or have another request. Then it takes back their host memory.
func (s *Slice) awaitReclaimed(told map[*quota.Lane]uint8) {
	deadline := time.Now().Add(s.mover.Answer)
	for l, want := range told {
		for s.isOpen(l, want) && time.Now().Before(deadline) && s.mover.Stopping() == nil {
			time.Sleep(claimPace)
		}
		s.takeBackKept(l, want)
	}
}

func (s *Slice) isOpen(l *quota.Lane, want uint8) (open bool) {
	s.locked(func() {
		if s.Quota.Has(l) {
			c := s.Quota.Ledger.MoveOf(l.Number)
			open = c.Want == want && c.Answered != want
		}
	})
	return open
}

// reclaimUntil calls fits again and again, while other slices in turn give back host memory that their processes keep. It returns the last error.
func (s *Slice) reclaimUntil(fits func() (lacks uint64, err error)) error {
	const more = 1 << 30 // in addition, since the host's figure is an estimate
	lacks, err := fits()
	for _, other := range s.mover.Elastic() {
		if err == nil {
			break
		}
		told := other.reclaim(max(lacks, lacks+more), 0)
		if len(told) == 0 {
			continue
		}
		_ = s.await(nil, func() error {
			other.awaitReclaimed(told)
			return nil
		})
		lacks, err = fits()
	}
	return err
}

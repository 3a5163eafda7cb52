// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"maps"

	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// What the driver holds for the dead. It gives a process's memory back when the last descriptor of its files is closed, and a child
// that the process forked has them, too: as long as that lives the memory is on the device, and NVML lists it under the dead
// one's pid (driver 580). Its lane is settled when it dies, as nobody can give back by it any more. What is listed after that is charged like
// anything beyond a lane, until it is listed no more.
//
// Of most that die nothing is left, and what others of the slice ask for that moment they must get. So what was listed before a death
// says nothing, and two lists after it have to agree.
//
// Nobody is blamed for it: it was charged when it was taken, and there is no process to punish.

// ghost is a dead process of a slice, until the driver has said twice what it holds for it on a device since it died. What is listed then
// is charged as an excess, which is what is known of it from there on.
type ghost struct {
	start uint64 // its pid may be another's next time
	asked bool   // a comparison has begun since it died
	seen  bool   // one that had begun since then has found it
}

// mourn notes a process that has died and whose lane is settled. Called with mu held.
func (s *slice) mourn(p *process.Handle) {
	for _, d := range s.devices {
		// Else nobody asks; or nobody answers, and they may be any number by now.
		if s.e.truth != nil && s.e.truth.device(d.UUID) != nil && len(d.ghosts) < ledger.Slots {
			d.ghosts[p.PID] = &ghost{start: p.Start}
		}
	}
}

// dead is whose process one was for whom the driver may hold memory, by pid. Some of them live.
type dead map[int]*slice

// deadOf are those on a device. Called when a comparison begins.
func deadOf(slices []*slice, raw [16]byte) dead {
	all := make(dead)
	for _, s := range slices {
		s.mu.Lock()
		if index := s.find(raw); index >= 0 {
			d := s.devices[index]
			for pid := range d.excess {
				all[pid] = s
			}
			for pid, g := range d.ghosts {
				g.asked = true
				all[pid] = s
			}
		}
		s.mu.Unlock()
	}
	return all
}

// owner is the slice of which the process was; nil if it was of none, or if somebody has its pid: that is another, or not dead.
func (all dead) owner(pid int) *slice {
	if s := all[pid]; s != nil && !process.Exists(pid) {
		return s
	}
	return nil
}

// startTime is when a process began that the driver lists; it may have died since. Called with mu held.
func (d *device) startTime(pid int) (uint64, error) {
	start, err := process.StartTime(pid)
	if g := d.ghosts[pid]; g != nil && errors.Is(err, process.ErrDead) {
		return g.start, nil
	}
	return start, err
}

// mayBeGivenBack says that a process is dead which the driver lists, and not for how long it is. What it has is no more than before. Called
// with mu held.
func (s *slice) mayBeGivenBack(d *device, pid int) bool {
	if g := d.ghosts[pid]; g != nil && g.seen {
		return false
	}
	if l := s.byPID[pid]; l != nil {
		return !l.process.Alive()
	}
	_, err := process.StartTime(pid)
	return errors.Is(err, process.ErrDead)
}

// bury forgets those of whom enough is known, after what is listed of them is charged. It says whether another look is needed: the
// driver may just have been about to give that back. Called with mu held.
func (d *device) bury(truth map[int]uint64) (again bool) {
	maps.DeleteFunc(d.ghosts, func(pid int, g *ghost) bool {
		bytes := truth[pid]
		switch {
		case !g.asked:
			return false
		case bytes == 0 || bytes == driver.Unknown || g.seen:
			return true
		}
		g.seen, again = true, true
		return false
	})
	return again
}

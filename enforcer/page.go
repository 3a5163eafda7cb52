// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"fmt"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// What a slice and a pool do alike with the ledger that each has. All of it is called with the mu of the one or the other held.

// slots are the lanes of a ledger, as far as they are given to processes.
type slots struct {
	free []uint32 // lanes that were given back
	next uint32   // lanes from here on were never given out
	live ledger.Live
}

// place takes a free lane, in constant time.
func (s *slots) place() (uint32, bool) {
	if n := len(s.free); n > 0 {
		number := s.free[n-1]
		s.free = s.free[:n-1]
		return number, true
	}
	if int(s.next) > ledger.Slots {
		return 0, false
	}
	s.next++
	return s.next - 1, true
}

func (s *slots) figures(l *ledger.Ledger, index int) ledger.Figures {
	return l.Figures(index, &s.live, s.next-1)
}

// refusalIn is why processes get nothing from a ledger whose owner is in that state; nil if they do.
func refusalIn(state api.State) error {
	switch state {
	case api.Active:
		return nil
	case left:
		return ErrClosed
	default:
		return ledger.StatusClosed
	}
}

// verifyPage holds a page to the enforcer's own copy of its devices.
func verifyPage(l *ledger.Ledger, record bool, devices []*device, figures func(index int) ledger.Figures) error {
	headers := make([]ledger.Device, len(devices))
	for i, d := range devices {
		headers[i] = d.onPage()
	}
	if err := l.Check(record, false, headers); err != nil {
		return err
	}
	for i, d := range devices {
		// Both are changed by the same swap, so with nothing changing meanwhile they cannot differ.
		if f := figures(i); f.Quiet && f.Used != f.Held {
			return fmt.Errorf("%w: device %s has %d bytes charged, its lanes hold %d", ledger.ErrDamaged, d.uuid, f.Used, f.Held)
		}
	}
	return nil
}

// promised is what limits on devices come to, in bytes by UUID: the limit, or the whole device if that is less.
func promised(devices []*device) map[string]uint64 {
	has := make(map[string]uint64)
	for _, d := range devices {
		if bytes := min(d.given(), d.Total); bytes > 0 {
			has[d.uuid] = bytes
		}
	}
	return has
}

// keepUsed raises what is promised of each device to what is used of it, as far as that was promised before, and says whether that
// was more anywhere: a quota was lowered, and what is held beyond it can be promised to nobody else.
func keepUsed(has, had map[string]uint64, devices []*device, used func(index int) uint64) (lowered bool) {
	for i, d := range devices {
		if bytes := min(used(i), had[d.uuid]); bytes > has[d.uuid] {
			has[d.uuid], lowered = bytes, true
		}
	}
	return lowered
}

// takeBack has a lane that was suspended count again on all devices, or on none; was says whether it was on any. undo is for who
// finds after it that it must not.
func takeBack(devices []*device, number uint32, figures func(index int) ledger.Figures) (was bool, undo func(), err error) {
	away := make(map[*device]uint64)
	undo = func() {
		for d, bytes := range away {
			_ = d.setAway(number, bytes) // it stays away; what fails here is seen by the next check
		}
	}
	for i, d := range devices {
		bytes := d.suspended[number]
		if bytes == 0 {
			continue
		}
		away[d] = bytes
		err := d.setAway(number, 0)
		if err == nil && (d.frozen || figures(i).Used > d.Limit) {
			err = ledger.StatusRefused
		}
		if err != nil {
			undo()
			return false, nil, err
		}
	}
	return len(away) > 0, undo, nil
}

// exceeded says whether more than the limit is charged on a device on which the lane holds something.
func exceeded(l *ledger.Ledger, devices []*device, number uint32, figures func(index int) ledger.Figures) bool {
	for i, d := range devices {
		if l.Held(i, number) > 0 && (d.frozen || figures(i).Used > d.Limit) {
			return true
		}
	}
	return false
}

// shown is a device's figures for people, without what checkpointed processes are charged for, and how much of what is used is
// overhead. The figures are not of one instant, and the page may say anything: nothing is below zero.
func (d *device) shown(f ledger.Figures, l *ledger.Ledger, index int) (_ ledger.Figures, overhead uint64) {
	f.Used -= min(f.Used, d.away())
	for number := range d.suspended {
		f.Context -= min(f.Context, l.Context(index, number))
	}
	return f, min(f.Used, f.Context+f.Enforcer)
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// A device's memory in use is shown as of the sampler's last sample. The driver is queried only without a recent one, since nothing is sampled without
// slices.

// maxOutside is the number of a device's processes outside slices that are shown, the largest first.
const maxOutside = 64

// occupancy is a device's memory in use.
type occupancy struct {
	at      time.Time // of the driver's answer; zero if there was none
	used    uint64
	outside map[int]uint64 // by pid: bytes of processes outside slices. Read-only
	tried   time.Time      // of the last query outside samples
}

// occupied notes the result of a sample. Without a list the former list stays.
func (g *gpu) occupied(at time.Time, used uint64, outside map[int]uint64, listed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.occupancy.at, g.occupancy.used = at, used
	if listed {
		g.occupancy.outside = outside
	}
}

// occupancyOf returns a device's memory in use; false if the driver has not answered lately, and does not now.
func (e *Enforcer) occupancyOf(g *gpu) (occupancy, bool) {
	now := time.Now()
	g.mu.Lock()
	o := g.occupancy
	ask := now.Sub(o.at) > 2*e.options.Interval && now.Sub(o.tried) > e.options.Interval
	if ask {
		g.occupancy.tried = now
	}
	g.mu.Unlock()
	if !ask {
		return o, now.Sub(o.at) <= 3*e.options.Interval
	}
	listed, err := e.truth.processes(g, patienceOfProcess)
	if err != nil {
		return occupancy{}, false
	}
	used, err := driver.Ask(g.slot, patienceOfProcess, func() (uint64, error) { return e.truth.source.Used(g.UUID) })
	if err != nil {
		return occupancy{}, false
	}
	outside := maps.Clone(listed)
	maps.DeleteFunc(outside, func(pid int, _ uint64) bool { return e.owner(pid) != nil })
	g.occupied(now, used, outside, true)
	return occupancy{used: used, outside: outside}, true
}

// showOccupied adds the memory in use to devices, of which the driver's come first. A device that hangs delays no other.
func (e *Enforcer) showOccupied(devices []api.Device) {
	var asked sync.WaitGroup
	for i, g := range e.truth.devices {
		asked.Go(func() {
			o, known := e.occupancyOf(g)
			if !known {
				return
			}
			d := &devices[i]
			d.Used, d.OutsideCount = &o.used, len(o.outside)
			for pid, bytes := range o.outside {
				p := api.OutsideProcess{PID: pid, Bytes: &bytes}
				if bytes == driver.Unknown {
					p.Bytes = nil
				}
				d.Outside = append(d.Outside, p)
			}
			slices.SortFunc(d.Outside, func(a, b api.OutsideProcess) int {
				return cmp.Or(cmp.Compare(held(b), held(a)), cmp.Compare(a.PID, b.PID))
			})
			for _, p := range d.Outside {
				d.OutsideUsed += held(p)
			}
			d.Outside = d.Outside[:min(len(d.Outside), maxOutside)]
			for i := range d.Outside {
				d.Outside[i].Command = process.Name(d.Outside[i].PID)
			}
		})
	}
	asked.Wait()
}

// held returns a process's bytes; 0 if unknown.
func held(p api.OutsideProcess) uint64 {
	if p.Bytes == nil {
		return 0
	}
	return *p.Bytes
}

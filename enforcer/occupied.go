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

// What is in use of a device, by whomever, is shown as of the sampler's last sample. The driver is asked only if there is none of
// late: without slices nothing is sampled.

// maxOutside is how many processes outside slices are shown of a device; those that hold most.
const maxOutside = 64

// occupancy is what is in use of a device.
type occupancy struct {
	at      time.Time // when the driver was asked; zero if it was not
	used    uint64
	outside map[int]uint64 // by pid: what processes of no slice hold. Nobody's to change
	tried   time.Time      // when it was asked last for this alone
}

// occupied notes what a sample found. Without a list, the list before it stands.
func (g *gpu) occupied(at time.Time, used uint64, outside map[int]uint64, listed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.occupancy.at, g.occupancy.used = at, used
	if listed {
		g.occupancy.outside = outside
	}
}

// occupancyOf is what is in use of a device; false if the driver has not said that lately, and does not now.
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

// showOccupied completes devices, of which those of the driver are the first, with what is in use of them. A device that hangs delays no other.
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

// held is 0 where the driver does not say.
func held(p api.OutsideProcess) uint64 {
	if p.Bytes == nil {
		return 0
	}
	return *p.Bytes
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"slices"
	"sync"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// maxOutside is the number of a device's processes outside slices that are shown, the largest first.
const maxOutside = 64

// showOccupied adds the memory in use to devices, of which the driver's come first. A device that hangs delays no other.
func (e *Enforcer) showOccupied(devices []api.Device) {
	var asked sync.WaitGroup
	for i, g := range e.truth.All() {
		asked.Go(func() {
			o, known := g.InUse(e.options.Interval, e.inSlice)
			if !known {
				return
			}
			d := &devices[i]
			d.Used, d.OutsideCount = &o.Used, len(o.Outside)
			for pid, bytes := range o.Outside {
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

// inSlice reports whether a process belongs to a slice.
func (e *Enforcer) inSlice(pid int) bool { return e.owner(pid) != nil }

// held returns a process's bytes; 0 if unknown.
func held(p api.OutsideProcess) uint64 {
	if p.Bytes == nil {
		return 0
	}
	return *p.Bytes
}

// describe adds to a slice's processes what is read outside its lock: their names, and how busy they keep its devices.
func (e *Enforcer) describe(shown *api.Slice) {
	on := make(map[string]map[int]uint32)
	for _, d := range shown.Devices {
		if g := e.gpuOf(d.Device); g != nil {
			on[d.Device] = g.Busy(e.options.Interval)
		}
	}
	for i := range shown.Processes {
		p := &shown.Processes[i]
		p.Command = process.Name(p.PID)
		for j := range p.Devices {
			if of := on[p.Devices[j].Device]; of != nil {
				percent := of[p.PID]
				p.Devices[j].Busy = &percent
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// The driver is queried for how busy devices are only while a client reads that, once in an interval, in the background: the previous answer is shown.

// busy is the driver's last answer for a device.
type busy struct {
	at     time.Time      // of the answer; zero if there was none
	of     map[int]uint32 // percent by pid; nil if unknown. Read-only
	asking bool
}

// busyOn returns how busy each process keeps a device; nil if unknown.
func (e *Enforcer) busyOn(g *gpu) map[int]uint32 {
	now, interval := time.Now(), e.options.Interval
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.busy.asking && now.Sub(g.busy.at) >= interval {
		g.busy.asking = true
		go func() { // it has a timeout
			of, err := driver.Ask(g.slot, patience, func() (map[int]uint32, error) { return e.truth.source.Busy(g.UUID, now.Add(-interval)) })
			if err != nil {
				of = nil
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			g.busy = busy{at: time.Now(), of: of}
		}()
	}
	if now.Sub(g.busy.at) > 3*interval {
		return nil
	}
	return g.busy.of
}

// describe adds to a slice's processes what is read outside its lock: their names, and how busy they keep its devices.
func (e *Enforcer) describe(shown *api.Slice) {
	on := make(map[string]map[int]uint32)
	for _, d := range shown.Devices {
		if g := e.gpuOf(d.Device); g != nil {
			on[d.Device] = e.busyOn(g)
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

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// How busy processes keep a device is asked only while somebody looks, once in an interval, and nobody waits for it: what is shown is the
// answer to the question before.

// busy is what the driver said last of how busy a device is kept.
type busy struct {
	at     time.Time      // of the answer; zero if there was none
	of     map[int]uint32 // percent by pid; nil if the driver does not say. Nobody's to change
	asking bool
}

// busyOn is how busy each process keeps a device; nil if that is not known.
func (e *Enforcer) busyOn(g *gpu) map[int]uint32 {
	now, interval := time.Now(), e.options.Interval
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.busy.asking && now.Sub(g.busy.at) >= interval {
		g.busy.asking = true
		go func() { // it ends, whatever the driver does
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

// describe adds to the processes of a slice what is read outside its lock: their names, and how busy they keep its devices.
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

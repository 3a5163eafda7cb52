// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/devices"
)

// This file reports whether the enforcer makes progress. It takes no lock that is held over a wait, so it answers when all else hangs.
//
// The regular check, the registry's lock and the store are the enforcer's own: if one of them hangs, a restart helps, and is safe since slices continue
// without the enforcer. A driver that hangs would also hang for the next enforcer; until it answers, the ledger alone enforces the quotas.

const (
	// stuck is the time without progress that is no longer a delay. A busy disk, or a machine that swaps, takes seconds.
	stuck = 30 * time.Second
	// slow is the time of a store's write after which containers wait too long.
	slow = 5 * time.Second
	// missedChecks is the number of missed checks or samples after which that is reported.
	missedChecks = 3
)

// progress has the times of last events, since begin.
type progress struct {
	begin   time.Time
	checked atomic.Int64 // the end of the last regular check
	lag     atomic.Int64 // its delay
	seen    uint64       // the oldest change under way at the last check, which alone uses it
	changed atomic.Int64 // when there was last no change, or another one became the oldest
}

func (p *progress) since(at *atomic.Int64) time.Duration {
	return max(0, time.Since(p.begin)-time.Duration(at.Load()))
}

func (p *progress) stamp(at *atomic.Int64) { at.Store(int64(time.Since(p.begin))) }

// checkedAt notes the end of the regular check due at that time, and checks the progress of changes.
func (e *Enforcer) checkedAt(due time.Time) {
	p := &e.progress
	if oldest := e.oldestTurn(); oldest == 0 || oldest != p.seen { // with many changes the oldest one still changes
		p.seen = oldest
		p.stamp(&p.changed)
	}
	e.store.Retry()
	p.lag.Store(int64(time.Since(due)))
	p.stamp(&p.checked)
}

// Health reports whether the enforcer makes progress.
func (e *Enforcer) Health(context.Context) (api.Health, error) {
	p := &e.progress
	timeout := max(stuck, missedChecks*e.options.Interval)
	loop := api.Check{Name: "loop", For: api.ForLive, Age: p.since(&p.checked)}
	loop.OK = p.since(&p.checked) < timeout
	loop.Message = said(loop, "the regular check of all slices has been running for %s")
	changes := api.Check{Name: "changes", For: api.ForLive, Age: p.since(&p.changed)}
	changes.OK = p.since(&p.changed) < timeout || !loop.OK // the loop itself checks
	changes.Message = said(changes, "a change of a slice has been running for %s")
	h := api.Health{Checks: append([]api.Check{loop, changes}, e.storeChecks()...)}
	for _, g := range e.truth.All() {
		h.Checks = append(h.Checks, e.truthCheck(g))
	}
	h.Checks = append(h.Checks, e.hostCheck()...)
	if e.options.Checks != nil {
		h.Checks = append(h.Checks, e.options.Checks()...)
	}
	h.Conclude()
	return h, nil
}

// Lag returns the delay with which the last regular check ended.
func (e *Enforcer) Lag() time.Duration { return time.Duration(e.progress.lag.Load()) }

func said(c api.Check, format string) string {
	if c.OK {
		return ""
	}
	return fmt.Sprintf(format, c.Age.Round(100*time.Millisecond))
}

func (e *Enforcer) storeChecks() []api.Check {
	waiting, failures, err := e.store.Progress()
	live := api.Check{Name: "store", For: api.ForLive, OK: waiting < stuck, Age: waiting, Failures: failures}
	live.Message = said(live, "a write to the store has been waiting for %s")
	ready := api.Check{Name: "disk", For: api.ForReady, OK: waiting < slow && err == nil, Age: waiting, Failures: failures}
	if ready.Message = said(ready, "a write to the store takes %s"); err != nil {
		ready.Message = "the last write to the store failed: " + err.Error()
	}
	return []api.Check{live, ready}
}

func (e *Enforcer) truthCheck(g *devices.Device) api.Check {
	age, failures := g.Silence()
	c := api.Check{Name: "truth", Device: g.UUID, Age: age, Failures: failures}
	c.OK = age < missedChecks*max(e.options.Interval, devices.Timeout)
	c.Message = said(c, "NVML has not listed the device's processes for %s: memory beyond the ledger is not detected")
	return c
}

func (e *Enforcer) hostCheck() []api.Check {
	h := e.options.HostMemory
	if h == nil {
		return nil
	}
	c := api.Check{Name: "host_memory", OK: true}
	if err := h.Err(); err != nil {
		c.OK, c.Message = false, "processes that move their own memory are left to the driver: "+err.Error()
	}
	return []api.Check{c}
}

// HostMemory returns the bytes charged to the operator's cgroup; false if there is none.
func (e *Enforcer) HostMemory() (bytes uint64, known bool) {
	if e.options.HostMemory == nil {
		return 0, false
	}
	bytes, err := e.options.HostMemory.Used()
	return bytes, err == nil
}

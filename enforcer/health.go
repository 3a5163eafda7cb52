// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Whether the enforcer makes progress. Nothing here takes a lock that is held over something that waits, so that there is an
// answer when all else hangs.
//
// The regular check, the lock under which slices are made and ended, and the store are the enforcer's own: if one of them
// hangs for long, a restart is the way out, and costs nothing since slices go on without it. Driver truth is not: a
// driver that hangs, hangs for the next enforcer, too, and until it is back the ledger alone keeps the quotas.

const (
	// stuck is how long there is no progress before that is no delay any more. A disk that is written to by others,
	// and a machine that swaps, take seconds.
	stuck = 30 * time.Second
	// slow is how long a write to the store takes when containers have waited too long.
	slow = 5 * time.Second
	// missedChecks are how many regular checks, or samples, are missed before it is reported.
	missedChecks = 3
)

// progress is when something was done last, as time since begin.
type progress struct {
	begin   time.Time
	checked atomic.Int64 // the end of the last regular check
	lag     atomic.Int64 // how long after its time that was
	seen    uint64       // the oldest of the changes under way at the last check, which alone uses it
	changed atomic.Int64 // when there was last none, or another one was the oldest
}

func (p *progress) since(at *atomic.Int64) time.Duration {
	return max(0, time.Since(p.begin)-time.Duration(at.Load()))
}

func (p *progress) stamp(at *atomic.Int64) { at.Store(int64(time.Since(p.begin))) }

// checkedAt notes the end of the regular check that was due at that time, and checks the changes under way and the store.
func (e *Enforcer) checkedAt(due time.Time) {
	p := &e.progress
	if oldest := e.oldestTurn(); oldest == 0 || oldest != p.seen { // many take turns, and none of them hangs
		p.seen = oldest
		p.stamp(&p.changed)
	}
	e.store.Retry()
	p.lag.Store(int64(time.Since(due)))
	p.stamp(&p.checked)
}

// Health says whether the enforcer makes progress.
func (e *Enforcer) Health(context.Context) (api.Health, error) {
	p := &e.progress
	timeout := max(stuck, missedChecks*e.options.Interval)
	loop := api.Check{Name: "loop", For: api.ForLive, Age: p.since(&p.checked)}
	loop.OK = p.since(&p.checked) < timeout
	loop.Message = said(loop, "the regular check of all slices has not ended for %s")
	changes := api.Check{Name: "changes", For: api.ForLive, Age: p.since(&p.changed)}
	changes.OK = p.since(&p.changed) < timeout || !loop.OK // it is the loop that checks
	changes.Message = said(changes, "a change of a slice has been running for %s")
	h := api.Health{Checks: append([]api.Check{loop, changes}, e.storeChecks()...)}
	if e.truth != nil {
		for _, g := range e.truth.devices {
			h.Checks = append(h.Checks, e.truthCheck(g))
		}
	}
	h.Checks = append(h.Checks, e.hostCheck()...)
	if e.options.Checks != nil {
		h.Checks = append(h.Checks, e.options.Checks()...)
	}
	h.Conclude()
	return h, nil
}

// Lag is how long after its time the last regular check ended.
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

// answered notes whether the driver answered about a device, or that nobody needed to ask.
func (g *gpu) answered(err error) {
	if err != nil {
		g.failures.Add(1)
		return
	}
	g.answer.Store(int64(time.Since(g.begin)))
}

// truthCheck is about the samples of a device.
func (e *Enforcer) truthCheck(g *gpu) api.Check {
	age := max(0, time.Since(g.begin)-time.Duration(g.answer.Load()))
	c := api.Check{Name: "truth", Device: g.UUID, Age: age, Failures: g.failures.Load()}
	c.OK = age < missedChecks*max(e.options.Interval, patience)
	c.Message = said(c, "NVML has not listed the device's processes for %s: memory beyond the ledger is not detected")
	return c
}

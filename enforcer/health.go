// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// Whether the enforcer makes progress. What is asked for here takes no lock that anybody waits under, so that there is an
// answer when all else hangs.
//
// The regular look, the lock under which slices are made and ended, and the store are the enforcer's own: if one of them
// hangs for long, a restart is the way out, and costs nothing since slices go on without it. Driver truth is not: a
// driver that hangs, hangs for the next enforcer, too, and until it is back the ledger alone holds everybody to his quota.

const (
	// stuck is how long there is no progress before that is no delay any more. A disk that is written to by others,
	// and a machine that swaps, take seconds.
	stuck = 30 * time.Second
	// slow is how long the store takes for a write when containers have waited too long.
	slow = 5 * time.Second
	// missedLooks are how many regular looks, or comparisons, are left out before it is said.
	missedLooks = 3
)

// progress is when something was done last, as time since begin.
type progress struct {
	begin   time.Time
	looked  atomic.Int64  // the end of the last regular look
	lag     atomic.Int64  // how long after its time that was
	changes atomic.Uint64 // how often the lock named change was taken
	seen    uint64        // what that was at the last look; of the one who looks
	changed atomic.Int64  // when that lock was last seen to be free, or to have changed hands
}

func (p *progress) since(at *atomic.Int64) time.Duration {
	return max(0, time.Since(p.begin)-time.Duration(at.Load()))
}

func (p *progress) stamp(at *atomic.Int64) { at.Store(int64(time.Since(p.begin))) }

// lookedAt notes the end of the regular look that was due at that time, and looks at change and the store.
func (e *Enforcer) lookedAt(due time.Time) {
	p := &e.progress
	if e.change.TryLock() {
		e.change.Unlock()
		p.stamp(&p.changed)
	} else if n := p.changes.Load(); n != p.seen { // many take turns, and none of them hangs
		p.seen = n
		p.stamp(&p.changed)
	}
	e.store.Retry()
	p.lag.Store(int64(time.Since(due)))
	p.stamp(&p.looked)
}

// Health says whether the enforcer makes progress.
func (e *Enforcer) Health(context.Context) (api.Health, error) {
	p := &e.progress
	patience := max(stuck, missedLooks*e.options.Interval)
	loop := api.Check{Name: "loop", For: api.ForLive, Age: p.since(&p.looked)}
	loop.OK = p.since(&p.looked) < patience
	loop.Message = said(loop, "the regular look at all slices has not ended for %s")
	changes := api.Check{Name: "changes", For: api.ForLive, Age: p.since(&p.changed)}
	changes.OK = p.since(&p.changed) < patience || !loop.OK // it is the loop that looks
	changes.Message = said(changes, "one and the same change of a slice goes on for %s")
	h := api.Health{Checks: append([]api.Check{loop, changes}, e.storeChecks()...)}
	if e.truth != nil {
		for _, g := range e.truth.devices {
			h.Checks = append(h.Checks, e.truthCheck(g))
		}
	}
	if e.options.Checks != nil {
		h.Checks = append(h.Checks, e.options.Checks()...)
	}
	h.Conclude()
	return h, nil
}

// Lag is how long after its time the last regular look ended.
func (e *Enforcer) Lag() time.Duration { return time.Duration(e.progress.lag.Load()) }

func said(c api.Check, format string) string {
	if c.OK {
		return ""
	}
	return fmt.Sprintf(format, c.Age.Round(100*time.Millisecond))
}

// diskIsWell says whether the disk takes changes, and soon.
func (e *Enforcer) diskIsWell() bool {
	waiting, _, err := e.store.Progress()
	return waiting < slow && err == nil
}

func (e *Enforcer) storeChecks() []api.Check {
	waiting, failures, err := e.store.Progress()
	live := api.Check{Name: "store", For: api.ForLive, OK: waiting < stuck, Age: waiting, Failures: failures}
	live.Message = said(live, "the disk has not taken a change for %s")
	ready := api.Check{Name: "disk", For: api.ForReady, OK: waiting < slow && err == nil, Age: waiting, Failures: failures}
	if ready.Message = said(ready, "the disk takes %s for a change"); err != nil {
		ready.Message = "the last change could not be stored: " + err.Error()
	}
	return []api.Check{live, ready}
}

// answered notes what the driver said about a device, or that nobody needed to ask.
func (g *gpu) answered(err error) {
	if err != nil {
		g.failures.Add(1)
		return
	}
	g.answer.Store(int64(time.Since(g.begin)))
}

// truthCheck is about the comparison with driver truth on a device.
func (e *Enforcer) truthCheck(g *gpu) api.Check {
	age := max(0, time.Since(g.begin)-time.Duration(g.answer.Load()))
	c := api.Check{Name: "truth", Device: g.UUID, Age: age, Failures: g.failures.Load()}
	c.OK = age < missedLooks*max(e.options.Interval, patience)
	c.Message = said(c, "the driver has not said for %s who holds what: memory that is hidden from the ledger is not seen")
	return c
}

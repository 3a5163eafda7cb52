// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/test/expect"
)

func (f *fakeTruth) asks() (used, listed int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.used, f.asked
}

// listings returns the number of listings during the next n queries of the bytes in use.
func (f *fakeTruth) listings(t *testing.T, n int) int {
	t.Helper()
	used, listed := f.asks()
	eventually(t, "the driver is asked", func() bool { now, _ := f.asks(); return now >= used+n })
	_, now := f.asks()
	return now - listed
}

// quiet waits until nothing is open: then a device is listed in one interval of ten.
func (f *fakeTruth) quiet(t *testing.T) {
	t.Helper()
	eventually(t, "nothing is open", func() bool { return f.listings(t, 40) < 10 })
}

// justListed waits for a listing of both devices. The next regular one is idle_interval later.
func (f *fakeTruth) justListed(t *testing.T) {
	t.Helper()
	_, from := f.asks()
	eventually(t, "all are listed", func() bool { _, listed := f.asks(); return listed >= from+2 })
}

// idle registers a slice of two processes. honest is attached and holds memory that the host has seen.
func idle(t *testing.T) (truth *fakeTruth, h *host, honest, other *proc) {
	t.Helper()
	h, truth = newPolicyHost(t, api.Log, "")
	honest, other = h.pair(on(gpu0, 12*gib))
	honest.must("attach")
	honest.must("charge 0 %d", 2*gib)
	truth.set(gpu0, honest.pid(), 2*gib+100*mib)
	return truth, h, honest, other
}

func TestDriverListsNoProcessesWhileDevicesAreIdle(t *testing.T) {
	truth, h, honest, _ := idle(t)
	truth.quiet(t)
	expect.True(t, truth.listings(t, 100) != 0, "nobody would see a change of which no sum tells")
	expect.Equal(t, h.see("s").Devices[0].Overhead, 100*mib, "overhead")
	honest.must("charge 0 %d", gib)
	truth.set(gpu0, honest.pid(), 3*gib+200*mib)
	eventually(t, "the new overhead is sampled", func() bool { return h.see("s").Devices[0].Overhead == 200*mib })
	truth.quiet(t)
}

// Excess of an idle lane is charged less as soon as the driver reports less.
func TestReleasedMemoryIsFoundWithinAnInterval(t *testing.T) {
	truth, h, honest, _ := idle(t)
	truth.quiet(t)
	truth.justListed(t)
	truth.set(gpu0, honest.pid(), 2*gib+20*mib)
	from := truth.queries(gpu0)
	eventually(t, "a sample has begun and ended", func() bool { return truth.queries(gpu0) > from+3 })
	expect.Equal(t, h.see("s").Devices[0].Overhead, 20*mib, "overhead")
}

// A busy process released excess. It is charged for it until it is idle, not until the next regular listing.
func TestMemoryReleasedByABusyProcessIsFoundOnceItIsIdle(t *testing.T) {
	truth, h, honest, _ := idle(t)
	h.with(func(o *enforcer.Options) { o.SettleTime, o.IdleInterval = 20*o.Interval, time.Hour })
	truth.quiet(t)
	honest.must("begin 0")
	for begin := time.Now(); time.Since(begin) < 2*h.options.SettleTime; {
		honest.must("charge 0 %d", mib)
		honest.must("release 0 %d", mib)
	}
	truth.set(gpu0, honest.pid(), 2*gib+20*mib)
	from := truth.queries(gpu0)
	eventually(t, "it is listed", func() bool { return truth.queries(gpu0) > from+2 })
	honest.must("end 0")
	eventually(t, "it is charged no more", func() bool { return h.see("s").Devices[0].Overhead == 20*mib })
}

// Hidden memory is found within an interval and bypass_grace, also if others freed as much. It takes up to idle_interval more if no lane
// changed.
func TestHiddenMemoryIsFoundOnAnIdleDevice(t *testing.T) {
	for _, c := range []struct {
		what   string
		within int // queries: one in each interval until it is seen (idle_interval is 10), then up to 18 in the five of bypass_grace
		happen func(truth *fakeTruth, honest, other *proc)
	}{
		{"more is used", 20, func(truth *fakeTruth, honest, other *proc) {
			truth.set(gpu0, other.pid(), gib)
		}},
		{"as much is used, and a lane changed", 20, func(truth *fakeTruth, honest, other *proc) {
			honest.must("release 0 %d", gib)
			truth.swap(gpu0, honest.pid(), other.pid(), gib)
		}},
		{"as much is used, and no lane changed", 30, func(truth *fakeTruth, honest, other *proc) {
			truth.swap(gpu0, honest.pid(), other.pid(), 100*mib)
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			truth, h, honest, other := idle(t)
			h.stop()
			var at atomic.Int64 // the queries by then
			h.options.Event = func(_ string, e api.Event) {
				if e.Kind == api.EventBypass && e.PID == other.pid() {
					at.CompareAndSwap(0, int64(truth.queries(gpu0)))
				}
			}
			h.start()
			truth.quiet(t)
			truth.justListed(t)
			c.happen(truth, honest, other)
			from := truth.queries(gpu0)
			eventually(t, "the bypass event", func() bool { return at.Load() > 0 })
			if n := int(at.Load()) - from; n > c.within {
				t.Errorf("it took %d queries", n)
			}
		})
	}
}

// As long as something is open, all are listed at each sample, between two queries of the bytes in use.
func TestProcessesAreListedWhileADecisionIsOpen(t *testing.T) {
	const stays, passes = true, false
	for _, c := range []struct {
		what   string
		stay   bool
		second bool
		open   func(h *host, truth *fakeTruth, honest, other *proc)
	}{
		{"a process of no slice, which may give back what a hidden one takes", passes, false, func(h *host, truth *fakeTruth, _, _ *proc) {
			truth.set(gpu0, 1, gib)
		}},
		{"a process of which it is not known what it holds", passes, false, func(h *host, truth *fakeTruth, _, other *proc) {
			truth.set(gpu0, other.pid(), driver.Unknown)
		}},
		{"a process that holds memory past the ledger", passes, false, func(h *host, truth *fakeTruth, _, other *proc) {
			truth.set(gpu0, other.pid(), gib)
		}},
		{"memory on a device on which the slice has no quota", passes, true, func(h *host, truth *fakeTruth, honest, _ *proc) {
			truth.set(gpu1, honest.pid(), gib/2)
		}},
		{"a slice with unreadable lanes", stays, false, func(h *host, truth *fakeTruth, honest, _ *proc) {
			honest.expect("ok", "poke %d %d", 128+16, uint64(1)<<50) // the first device's limit
			eventually(t, "it is damaged", func() bool { return damaged(h, "s") })
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			truth, h, honest, other := idle(t)
			truth.quiet(t)
			c.open(h, truth, honest, other)
			truth.comparisons(t, 2)
			open := gpu0
			if c.second {
				open = gpu1
			}
			from, listed := truth.queries(open), truth.listed(open)
			eventually(t, "100 queries", func() bool { return truth.queries(open) >= from+100 })
			if n := truth.listed(open) - listed; n < 40 {
				t.Errorf("with 100 queries they were listed %d times", n)
			}
			if c.stay {
				return
			}
			truth.set(gpu0, 1, 0)
			truth.set(gpu0, other.pid(), 0)
			truth.set(gpu1, honest.pid(), 0)
			truth.quiet(t)
		})
	}
}

func (f *fakeTruth) swap(uuid string, from, to int, bytes uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes[uuid][from] -= bytes
	f.bytes[uuid][to] += bytes
}

var _ enforcer.Truth = (*fakeTruth)(nil)

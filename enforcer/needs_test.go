// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func (h *host) history() []api.Run {
	h.t.Helper()
	return must.Get(h.History(context.Background()))(h.t)
}

func TestLastRefusalHasHoldersAndAFittingQuota(t *testing.T) {
	h := newHost(t, nil)
	p := attached(t, h, "s1", 4*gib)
	p.must("charge 0 %d", 3*gib)
	p.must("context 0 %d", gib/2)
	p.must("refused 0 %d", 9*gib)
	p.must("refused 0 %d", 2*gib)
	eventually(t, "the last of two is kept", func() bool { r := h.see("s1").Refusal; return r != nil && r.Requested == 2*gib })
	got := *h.see("s1").Refusal
	expect.True(t, time.Since(got.Time) <= time.Minute, "at", got.Time)
	got.Time = time.Time{}
	want := api.Refusal{
		Device: gpu0, PID: p.pid(), Command: "client", Call: "cuMemAlloc", Requested: 2 * gib, Limit: new(4 * gib),
		Used: 3 * gib, Needed: 5 * gib, // the process reported no overhead
		Holders: []api.Holder{{PID: p.pid(), Command: "client", Used: 3*gib - gib/2, Overhead: gib / 2}},
	}
	expect.True(t, reflect.DeepEqual(got, want), "kept", got, "want", want)
	p.must("count 0 2")
	h.looks()
	expect.Equal(t, h.see("s1").Refusal.Requested, 2*gib, "what a process said is replaced by what none said")
	runs := h.history()
	if len(runs) != 1 || len(runs[0].Devices) != 1 || runs[0].Ended != nil {
		t.Fatalf("%+v", runs)
	}
	if d := runs[0].Devices[0]; d.Limit != 4*gib || d.Peak != 3*gib || d.Needed != 12*gib || d.Refusals != 4 || d.Allocations != 1 {
		t.Errorf("%+v", d)
	}
}

func TestNeedsSurviveProcessesSliceAndEnforcer(t *testing.T) {
	h := newHost(t, nil)
	p := attached(t, h, "s1", 4*gib)
	p.must("charge 0 %d", 3*gib)
	p.must("refused 0 %d", 2*gib)
	eventually(t, "the refusal is kept", func() bool { return h.see("s1").Refusal != nil })
	if h.options.Unprivileged {
		t.Skip("an enforcer of one user begins anew")
	}
	h.restart()
	if r := h.see("s1").Refusal; r == nil || r.PID != p.pid() || r.Needed != 5*gib {
		t.Fatalf("after a restart: %+v", r)
	}
	if runs := h.history(); len(runs) != 1 || runs[0].Ended != nil || runs[0].Devices[0].Needed != 5*gib || runs[0].Devices[0].Peak != 3*gib {
		t.Fatalf("after a restart: %+v", runs)
	}
	p.kill()
	ended := func() bool { runs := h.history(); return len(runs) == 1 && runs[0].Ended != nil }
	eventually(t, "the slice has ended", ended)
	h.restart()
	runs := h.history()
	if !ended() || runs[0].Slice != "s1" || runs[0].Refusal == nil || runs[0].Refusal.Requested != 2*gib || runs[0].Devices[0].Peak != 3*gib {
		t.Errorf("of one that has ended: %+v", runs)
	}
}

func TestARefusalByAPoolNamesTheHoldersOfAllMembers(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	a, b := h.member("a", "llm").uses(), h.member("b", "llm").uses()
	a.must("charge 0 %d", 4*gib)
	b.must("charge 0 %d", gib)
	b.must("refused 0 %d", 2*gib)
	eventually(t, "the refusal is kept", func() bool { return h.see("b").Refusal != nil })
	r := h.see("b").Refusal
	want := []api.Holder{{PID: a.pid(), Command: "client", Slice: "a", Used: 4 * gib}, {PID: b.pid(), Command: "client", Slice: "b", Used: gib}}
	if r.Pool != "llm" || *r.Limit != 6*gib || r.Needed != 7*gib || !reflect.DeepEqual(r.Holders, want) {
		t.Errorf("%+v", r)
	}
	expect.Equal(t, h.history()[1].Devices[0].Needed, 0, "the pool's refusal says that the member's own limit should be")
}

// allocations counts allocations as reported by an enforcer, and expects no other counts.
type allocations struct {
	enforcer.Counter
	n atomic.Uint64
}

func (a *allocations) Allocated(n uint64)                 { a.n.Add(n) }
func (a *allocations) Registered(api.Code, time.Duration) {}
func (a *allocations) Released(string)                    {}
func (a *allocations) Attached(string)                    {}
func (a *allocations) Told(api.Event)                     {}
func TestAllocationsAreCountedOnceAndOutliveTheirSlices(t *testing.T) {
	h := newHost(t, nil)
	count := new(allocations)
	h.CountWith(count)
	p := attached(t, h, "s1", gib)
	for range 5 {
		p.must("charge 0 1")
	}
	eventually(t, "five are counted", func() bool { return count.n.Load() == 5 })
	p.must("charge 0 1")
	p.kill()
	eventually(t, "the slice is gone", func() bool { return len(h.told(api.EventReleased)) == 1 })
	h.looks()
	expect.Equal(t, count.n.Load(), 6, "6 allocations were counted as")
	if h.options.Unprivileged {
		return
	}
	q := attached(t, h, "s2", gib)
	q.must("charge 0 1")
	eventually(t, "seven are counted", func() bool { return count.n.Load() == 7 })
	h.restart()
	h.CountWith(count)
	q.must("charge 0 1")
	eventually(t, "only new allocations are counted", func() bool { return count.n.Load() == 8 })
}

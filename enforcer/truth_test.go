// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/metrics"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

func overhead(h *host) uint64 { return h.see("s").Devices[0].Overhead }

func TestDriverMemoryBeyondTheLedgerIsChargedAsOverhead(t *testing.T) {
	h, truth := newTruthHost(t)
	p, _ := h.session("s", on(gpu0, 4*gib))
	p.must("attach")
	p.must("charge 0 %d", gib)
	truth.set(gpu0, p.pid(), gib+500*mib)
	eventually(t, "the difference is overhead", func() bool { return overhead(h) == 500*mib })
	p.expect("refused", "charge 0 %d", 3*gib)
	s := h.see("s")
	if s.Devices[0].Used != gib || *s.Processes[0].Devices[0].Driver != gib+500*mib || s.Devices[0].Name != model {
		t.Fatalf("%+v", s)
	}

	truth.set(gpu0, p.pid(), gib+100*mib)
	eventually(t, "less overhead is believed, when it stays", func() bool { return overhead(h) == 100*mib })
	truth.set(gpu0, p.pid(), 0)
	eventually(t, "none, too", func() bool { return overhead(h) == 0 })
}

func TestAProcessThatHidesFromTheLedgerIsCharged(t *testing.T) {
	h, truth := newTruthHost(t)
	p, _ := h.session("s", on(gpu0, 4*gib))
	truth.set(gpu0, p.pid(), 3*gib)
	eventually(t, "it is charged, and then shown", func() bool { return overhead(h) == 3*gib && len(h.see("s").Processes) > 0 })
	s := h.see("s")
	if s.ProcessCount != 0 || len(s.Processes) != 1 || s.Processes[0].Attached || s.Processes[0].PID != p.pid() {
		t.Fatalf("%+v", s)
	}
	p.must("attach")
	p.expect("refused", "charge 0 %d", gib+1)
}

func TestAnUnknownFigureIsNotCharged(t *testing.T) {
	h, truth := newTruthHost(t)
	p, _ := h.session("s", on(gpu0, 4*gib))
	truth.set(gpu0, p.pid(), driver.Unknown)
	truth.set(gpu1, p.pid(), gib) // not counted without a quota there
	asked := truth.asked
	eventually(t, "a few comparisons", func() bool { truth.mu.Lock(); defer truth.mu.Unlock(); return truth.asked > asked+3 })
	if s := h.see("s"); len(s.Devices) != 1 || s.Devices[0].Overhead != 0 {
		t.Fatalf("%+v", s)
	}
	p.must("attach")
	p.expect("status 6", "truth 0")
	untold := func() bool {
		health, _ := h.Health(context.Background())
		i := slices.IndexFunc(health.Checks, func(c api.Check) bool { return c.Name == "truth" && c.Device == gpu0 })
		return i >= 0 && health.Checks[i].Failures > 0
	}
	eventually(t, "the failed sample is counted", untold)
}

func TestTheFirstContextsCostIsLearnedAndChargedBefore(t *testing.T) {
	h, truth := newTruthHost(t)
	p, _ := h.session("s", on(gpu0, 4*gib))
	p.must("attach")
	p.must("charge 0 %d", 300*mib) // what the ledger says that a context costs
	p.must("context 0 %d", 300*mib)
	p.must("charge 0 %d", gib)
	truth.set(gpu0, p.pid(), gib+433*mib)
	if told := p.must("truth 0"); told != gib+433*mib && told != gib+300*mib { // the enforcer may have charged the rest by then
		t.Fatalf("the process has the figure %d", told)
	}
	learned := func() bool {
		devices, _ := h.Devices(context.Background())
		return devices[0].Context == 433*mib && devices[1].Context == 433*mib // of one model
	}
	eventually(t, "the context cost is learned", learned)
	// Another process's observed cost is no reason to charge more.
	p.tell("exec")
	p.must("attach")
	truth.set(gpu0, p.pid(), 500*mib)
	p.must("truth 0")
	await.Quiet(t, "a larger cost is learned", 50*time.Millisecond, func() bool { return !learned() })
	h.stop()
	h.start()
	expect.True(t, learned(), "it was forgotten by a restart")
}

// The cost of a context is learned from processes, which can inflate what they hold.
func TestProcessesCannotInflateAnotherSlicesContextCost(t *testing.T) {
	const costs, hidden = 300 * mib, 600 * mib
	for _, c := range []struct {
		name     string
		pool     uint64 // of which B is a member without a quota of its own
		b        uint64
		lieFirst bool
		restart  bool
	}{
		{name: "the lie first", b: 500 * mib, lieFirst: true},
		{name: "the lie first, and a restart", b: 500 * mib, lieFirst: true, restart: true},
		{name: "the lie first, to a pool's member", pool: 500 * mib, lieFirst: true},
		{name: "the lie first, to a member with a larger quota", pool: 500 * mib, b: 800 * mib, lieFirst: true},
		{name: "the truth first", b: 500 * mib},
		{name: "the truth first, and a restart", b: 500 * mib, restart: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, truth := newTruthHost(t)
			h.with(func(o *enforcer.Options) { o.ContextBytes = 512 * mib })
			a, _ := h.session("a", on(gpu0, 4*gib))
			var b *proc
			quotas := []api.Quota{on(gpu0, c.b)}
			if c.b == 0 {
				quotas = nil
			}
			if c.pool > 0 {
				h.pool("p", on(gpu0, c.pool))
				b = h.member("b", "p", quotas...)
			} else {
				b, _ = h.session("b", quotas...)
			}
			lies := func() {
				a.must("attach")
				truth.set(gpu0, a.pid(), costs+hidden)
				a.must("truth 0")
				time.Sleep(3 * h.options.Interval)
			}
			if c.lieFirst {
				lies()
			}
			if c.restart {
				h.restart()
			}
			b.must("attach")
			asked := b.must("cost 0")
			must.True(t, asked <= 500*mib, "a first context is to be charged", asked)
			b.must("charge 0 %d", asked)
			b.must("context 0 %d", asked)
			truth.set(gpu0, b.pid(), costs)
			b.must("truth 0")
			if !c.lieFirst {
				lies()
			}
			learned := func() bool {
				devices, _ := h.Devices(context.Background())
				return devices[0].Context == costs && devices[1].Context == costs && a.must("cost 0") == costs && b.must("cost 0") == costs
			}
			eventually(t, "the least counts, for all", learned)
			if c.restart {
				h.restart()
				must.True(t, learned(), "it was forgotten by a restart")
			}
		})
	}
}

func TestHungDriverBlocksNoRequest(t *testing.T) {
	t.Cleanup(enforcer.TellInTime())
	hang := make(chan struct{})
	defer close(hang)
	truth := &fakeTruth{hang: hang}
	h := newHost(t, truth)
	// Only the loops' end waits for the driver, and not longer than its patience.
	p, _ := h.session("s", on(gpu0, 4*gib))
	p.must("attach")
	p.must("charge 0 %d", gib)
	p.expect("status 6", "truth 0")
	must.Equal(t, h.see("s").Devices[0].Used, gib, "used")
	must.Get(h.Release(context.Background(), "s", 0, true))(t)
}

// A process learns the cost of its first context once it exists, and then charges it. The comparison may have charged it already; it must not count
// twice.
func TestAFirstContextIsNotChargedTwice(t *testing.T) {
	h, truth := newTruthHost(t, func(o *enforcer.Options) { o.SettleTime = time.Hour }) // the process has time to charge
	const context = 518 * mib
	for n := range 5 {
		id := fmt.Sprint("s", n)
		p, _ := h.session(id, on(gpu0, gib))
		p.must("attach")
		truth.set(gpu0, p.pid(), context)
		if n%2 == 0 {
			// The comparison sees it before the process has charged it: it is not taken for hidden memory.
			looked := truth.looked()
			eventually(t, "the slice is sampled", func() bool { return truth.looked() > looked+3 })
			must.Equal(t, h.see(id).Devices[0].Overhead, 0, "charged for the process before it could")
		}
		must.Equal(t, p.must("truth 0"), context, "truth")
		p.must("charge 0 %d", context)
		p.must("context 0 %d", context)
		p.must("charge 0 %d", gib-context)
		truth.set(gpu0, p.pid(), gib)
		p.expect("refused", "charge 0 1")
		p.kill()
		truth.set(gpu0, p.pid(), 0)
	}
}

// Nor does a query hide anything: what the process does not charge then is found by the next comparison.
func TestProcessThatAsksWithoutChargingIsFound(t *testing.T) {
	h, truth := newTruthHost(t)
	p, _ := h.session("s", on(gpu0, gib))
	p.must("attach")
	truth.set(gpu0, p.pid(), 518*mib)
	p.must("truth 0")
	eventually(t, "the memory is charged", func() bool { return h.see("s").Devices[0].Overhead == 518*mib })
	p.must("truth 0")
	must.Equal(t, h.see("s").Devices[0].Overhead, 518*mib, "asking again took it back")
}

// Nor does attaching again and again, as a process may after execve.
func TestAProcessThatAttachesAgainAndAgainIsFound(t *testing.T) {
	for _, asks := range []bool{false, true} {
		h, truth := newPolicyHost(t, api.Log, "")
		p, _ := h.session("s", on(gpu0, 4*gib))
		p.must("attach")
		truth.set(gpu0, p.pid(), 3*gib)
		eventually(t, "it is charged, and named", func() bool {
			p.tell("exec")
			p.must("attach")
			if asks {
				p.must("truth 0")
			}
			return overhead(h) == 3*gib && len(h.told(api.EventBypass)) > 0
		})
	}
}

// As many processes as can wait ask again and again. Other queries are answered in a tenth of the timeout; one after another, all queries would
// take twice the timeout.
func TestConstantRequestsForSamplesDelayNoOtherSlice(t *testing.T) {
	const takes, askers = 20 * time.Millisecond, 64
	t.Cleanup(enforcer.WaitWithReleases(500 * time.Millisecond))
	t.Cleanup(enforcer.TellInTime())
	truth := &fakeTruth{takes: takes}
	h := newHost(t, truth)
	p, _ := h.pair(on(gpu0, 4*gib))
	cgroup := h.see("s").Cgroup
	var asking sync.WaitGroup
	stop := make(chan struct{})
	var answers atomic.Int64
	for range askers {
		asker := start(t, filepath.Join(h.options.RunDir, "to-s"), cgroup)
		asker.uses()
		asking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				asker.ask("truth 0")
				answers.Add(1)
			}
		})
	}
	defer asking.Wait()
	defer close(stop)
	p.must("attach")
	eventually(t, "all of them ask", func() bool { return answers.Load() > askers })

	other, _ := h.session("other", on(gpu0, 4*gib))
	other.uses()
	truth.set(gpu0, other.pid(), gib)
	for range 10 {
		other.must("truth 0")
	}
	truth.set(gpu0, other.pid(), 3*gib)
	must.Get(h.Release(context.Background(), "other", 0, true))(t)
	h.wantGranted(gpu0, (4+3)*gib, (80-4-3)*gib) // by driver truth, not by the quota
}

// Listing a device's processes costs time for each of them, so containers must not set how often it happens.
func TestNoContainerSetsThePaceOfTheDriversSamples(t *testing.T) {
	const interval, during = 500 * time.Millisecond, 2 * time.Second
	slow := func(t *testing.T) (*host, *fakeTruth) {
		h, truth := newTruthHost(t)
		h.with(func(o *enforcer.Options) { o.Interval = interval })
		return h, truth
	}
	holds := func(t *testing.T, truth *fakeTruth, again func()) {
		t.Helper()
		before, times, begun := truth.listed(gpu0), 0, time.Now()
		for ; time.Since(begun) < during; times++ {
			again()
		}
		samples := truth.listed(gpu0) - before
		took := time.Since(begun)
		t.Logf("%d times, %d samples", times, samples)
		if most := 2*int(took/interval) + 2; samples > most {
			t.Fatalf("%d samples within %v, want %d at most", samples, took, most)
		}
	}
	t.Run("attach", func(t *testing.T) {
		h, truth := slow(t)
		p, _ := h.session("s", on(gpu0, 4*gib))
		holds(t, truth, func() {
			p.tell("exec")
			p.must("attach")
		})
	})
	t.Run("exit", func(t *testing.T) {
		h, truth := slow(t)
		h.pair(on(gpu0, 4*gib))
		cgroup := h.see("s").Cgroup
		holds(t, truth, func() {
			child := start(t, filepath.Join(h.options.RunDir, "to-s"), cgroup)
			child.must("attach")
			child.kill()
		})
	})
}

func TestFindingsAreInTheMetrics(t *testing.T) {
	h, truth := newTruthHost(t)
	m := metrics.New(h, slog.New(slog.DiscardHandler))
	h.CountWith(m)
	p, _ := h.session("s", on(gpu0, 4*gib))
	says := func(name string, value float64) func() bool {
		return func() bool {
			w := httptest.NewRecorder()
			m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			for line := range strings.Lines(w.Body.String()) {
				if strings.HasPrefix(line, name) && strings.HasSuffix(line, fmt.Sprintf("} %v\n", value)) {
					return true
				}
			}
			return false
		}
	}
	eventually(t, "nothing is found yet", says(`gpuslice_bypass_total{action="log"`, 0))
	truth.set(gpu0, p.pid(), 3*gib)
	eventually(t, "the metric counts it", says(`gpuslice_bypass_total{action="log"`, 1))
	eventually(t, "its bytes are shown", says("gpuslice_slice_bypass_bytes{", float64(3*gib)))
	truth.set(gpu0, p.pid(), 0)
	eventually(t, "as long as they are there", says("gpuslice_slice_bypass_bytes{", 0))
	expect.True(t, says(`gpuslice_bypass_total{action="log"`, 1)(), "what was counted is not any more, or twice")
}

// Some allocations have a size that only the driver knows. The driver holds it before the process can charge it.
func TestChargeAfterTheCallIsNotHiddenMemory(t *testing.T) {
	h, truth := newTruthHost(t, func(o *enforcer.Options) { o.SettleTime = time.Hour }) // the process has time to charge
	p, _ := h.session("s", on(gpu0, 4*mib))
	p.uses()
	p.must("charge 0 %d", 2*mib)
	must.Equal(t, p.must("begin 0"), 1, "calls are under way")
	truth.set(gpu0, p.pid(), 4*mib)
	truth.comparisons(t, 10)
	must.Equal(t, overhead(h), 0, "bytes are charged for the process before it can")
	p.must("charge 0 %d", 2*mib)
	must.Equal(t, p.must("end 0"), 0, "calls are under way")
	truth.comparisons(t, 10)
	must.Equal(t, overhead(h), 0, "bytes are charged twice")
	truth.set(gpu0, p.pid(), 5*mib)
	eventually(t, "uncharged memory is charged at once", func() bool { return overhead(h) == mib })
}

// A process that also charges and releases by turns looks like one that makes small allocations. It can hide what is tolerated for those,
// and no more.
func TestProcessThatClaimsCallsCanHideLittle(t *testing.T) {
	const most = 32 * mib
	h, truth := newTruthHost(t)
	p, _ := h.session("s", on(gpu0, gib))
	p.uses()
	for range 100 {
		p.must("begin 0")
	}
	truth.set(gpu0, p.pid(), 100*mib)
	eventually(t, "all but so much is charged", func() bool {
		p.must("charge 0 %d", most)
		time.Sleep(5 * time.Millisecond)
		p.must("release 0 %d", most)
		time.Sleep(5 * time.Millisecond)
		return overhead(h) >= 100*mib-most
	})
}

// A page that is invalid at a restart may be of another version: it grants nothing more, and no process is killed for it.
func TestPageFoundOverwrittenAtARestartKillsNoProcess(t *testing.T) {
	h := newHost(t, nil).does(api.Kill, api.ScopeSlice)
	vandal, sibling := h.pair(on(gpu0, 4*gib))
	for _, p := range []*proc{vandal, sibling} {
		p.uses()
	}
	h.stop()
	vandal.expect("ok", "poke %d %d", 128+16, uint64(1)<<50) // the first device's limit
	h.start()
	must.True(t, damaged(h, "s"), "it is not damaged")
	sibling.expect("refused", "charge 0 1")
	await.Quiet(t, "a process is killed", 5*h.options.Interval, func() bool {
		return vandal.dead() || sibling.dead() || len(h.told(api.EventKilled)) != 0
	})
}

// After a restart the enforcer does not know what a busy process holds beyond its lane. The former enforcer had charged it.
func TestOverheadOfABusyProcessSurvivesARestart(t *testing.T) {
	needs.Root(t)
	h, truth := newTruthHost(t)
	p, _ := h.session("s", on(gpu0, gib))
	p.uses()
	p.must("charge 0 %d", 100*mib)
	truth.set(gpu0, p.pid(), 600*mib)
	eventually(t, "the memory is charged", func() bool { return overhead(h) == 500*mib })
	p.must("begin 0") // it may allocate at any time
	// The samples that must agree take longer than SettleTime.
	h.with(func(*enforcer.Options) { truth.takes = h.options.SettleTime / 5 })
	await.Quiet(t, "it is charged less", 2*h.options.SettleTime, func() bool { return overhead(h) != 500*mib })
	p.expect("refused", "charge 0 %d", 500*mib)
	eventually(t, "it is less, if it stays so", func() bool { truth.set(gpu0, p.pid(), 300*mib); return overhead(h) == 200*mib })
}

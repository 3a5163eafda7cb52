// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/metrics"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

func TestWhatIsFoundIsCounted(t *testing.T) {
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
	eventually(t, "it is counted", says(`gpuslice_bypass_total{action="log"`, 1))
	eventually(t, "its bytes are shown", says("gpuslice_slice_bypass_bytes{", float64(3*gib)))
	truth.set(gpu0, p.pid(), 0)
	eventually(t, "as long as they are there", says("gpuslice_slice_bypass_bytes{", 0))
	expect.True(t, says(`gpuslice_bypass_total{action="log"`, 1)(), "what was counted is not any more, or twice")
}

// The like of TestAnAttachedProcessIsNamedBeyondTheAllowanceAndKilledBeyondTheLimit, where the policy is to refuse.
func TestAnAttachedProcessIsNamedBeyondTheAllowanceAndFreezesItsSliceBeyondTheLimit(t *testing.T) {
	truth := &fakeTruth{}
	h := newPolicyHost(t, truth, api.Refuse, "")
	p, _ := h.session("s", on(gpu0, 8*gib), on(gpu1, 8*gib))
	p.must("attach")
	p.must("charge 0 %d", gib)
	truth.set(gpu0, p.pid(), 4*gib)
	eventually(t, "it is named", func() bool { return len(h.told(api.EventBypass)) == 1 })
	truth.comparisons(t, 20)
	if e := h.told(api.EventBypass)[0]; e.Action != api.Log || e.Cause != api.BypassExcess || h.see("s").State != api.Active {
		t.Fatalf("%+v, %+v", e, h.see("s"))
	}
	p.must("charge 0 %d", gib) // what it hides counts, and there is room
	truth.set(gpu0, p.pid(), 9*gib)
	eventually(t, "it is frozen", func() bool { return h.see("s").State == api.Frozen })
	p.expect("refused", "charge 0 1")
	p.expect("refused", "charge 1 1")
	truth.set(gpu0, p.pid(), 2*gib)
	eventually(t, "it is given back", func() bool { return h.see("s").State == api.Active })
	p.must("charge 1 %d", 8*gib)
	if p.dead() || len(h.told(api.EventKilled)) != 0 {
		t.Fatal("somebody was killed")
	}
}

// A process that never stands still cannot be looked at exactly. What it does not hold any more is given back nevertheless.
func TestAnExcessThatIsGoneIsGivenBackByAProcessThatNeverStandsStill(t *testing.T) {
	truth := &fakeTruth{takes: time.Millisecond} // during which it charges
	h := newHost(t, truth)
	p, _ := h.session("s", on(gpu0, gib))
	p.must("attach")
	truth.set(gpu0, p.pid(), 3*mib)
	eventually(t, "it is charged", func() bool { return overhead(h) == 3*mib })
	p.tell("churn 0 %d", uint64(1)<<40) // up to 7 bytes at a time
	around := func(bytes uint64) bool { o := overhead(h); return o <= bytes && o+7 >= bytes }
	truth.comparisons(t, 40)
	if !around(3 * mib) {
		t.Fatalf("%d are charged", overhead(h))
	}
	truth.set(gpu0, p.pid(), mib)
	eventually(t, "it is given back", func() bool { return around(mib) })
	truth.set(gpu0, p.pid(), 0)
	eventually(t, "all of it", func() bool { return overhead(h) == 0 })
}

// Of some calls only the driver knows what they take: it holds that before the process can charge it.
func TestWhatIsChargedAfterTheCallIsNotTakenForHidden(t *testing.T) {
	h, truth := newTruthHost(t)
	p, _ := h.session("s", on(gpu0, 4*mib))
	p.must("attach")
	p.must("device %s %d", hex0, 80*gib)
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
	eventually(t, "what nobody charges is charged at once", func() bool { return overhead(h) == mib })
}

// A process that says for ever that such a call is under way hides nothing for longer than settle_time.
func TestACallThatNeverEndsHidesNothing(t *testing.T) {
	h, truth := newTruthHost(t)
	p, _ := h.session("s", on(gpu0, gib))
	p.must("attach")
	p.must("device %s %d", hex0, 80*gib)
	p.must("begin 0")
	p.tell("churn 0 %d", uint64(1)<<40)
	hidden, begin := 10*mib, time.Now()
	eventually(t, "all is charged, though it is a little more each time", func() bool {
		hidden++
		truth.set(gpu0, p.pid(), hidden)
		o := overhead(h)
		if took := time.Since(begin); o > 0 && took < h.options.SettleTime {
			t.Fatalf("%d bytes are charged after %s: the call is not waited for", o, took)
		}
		return o > 10*mib-8
	})
}

// One that also charges and gives back by turns cannot be told from one that only makes small allocations. So it can keep what is left to
// such calls, and no more.
func TestAProcessThatClaimsCallsAndGoesUpAndDownHidesLittle(t *testing.T) {
	const most = 32 * mib
	h, truth := newTruthHost(t)
	p, _ := h.session("s", on(gpu0, gib))
	p.must("attach")
	p.must("device %s %d", hex0, 80*gib)
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

// A page that is wrong when the enforcer takes it up may be that of another version: it gives nothing more, and nobody is killed
// for it.
func TestAPageThatIsFoundOverwrittenAtARestartKillsNobody(t *testing.T) {
	h := newPolicyHost(t, nil, api.Kill, api.ScopeSlice)
	vandal, sibling := h.pair(on(gpu0, 4*gib))
	for _, p := range []*proc{vandal, sibling} {
		p.must("attach")
		p.must("device %s %d", hex0, 80*gib)
	}
	h.stop()
	vandal.expect("ok", "poke %d %d", 128+16, uint64(1)<<50) // the first device's limit
	h.start()
	if !damaged(h, "s") {
		t.Fatalf("%+v", h.see("s"))
	}
	sibling.expect("refused", "charge 0 1")
	await.Quiet(t, "a process is killed", 5*h.options.Interval, func() bool {
		return vandal.dead() || sibling.dead() || len(h.told(api.EventKilled)) != 0
	})
}

// An enforcer that starts does not know at once what a process at work holds beyond its lane. The one before it did.
func TestWhatAProcessAtWorkHoldsBeyondItsLaneIsChargedAcrossARestart(t *testing.T) {
	needs.Root(t)
	h, truth := newTruthHost(t)
	p, _ := h.session("s", on(gpu0, gib))
	p.must("attach")
	p.must("device %s %d", hex0, 80*gib)
	p.must("charge 0 %d", 100*mib)
	truth.set(gpu0, p.pid(), 600*mib)
	eventually(t, "it is charged", func() bool { return overhead(h) == 500*mib })
	p.must("begin 0") // and may take more at any time
	h.restart()
	truth.comparisons(t, 10)
	must.Equal(t, overhead(h), 500*mib, "bytes are charged")
	p.expect("refused", "charge 0 %d", 500*mib)
	eventually(t, "it is less, if it stays so", func() bool { truth.set(gpu0, p.pid(), 300*mib); return overhead(h) == 200*mib })
}

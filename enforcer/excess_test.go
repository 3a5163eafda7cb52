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

// Some allocations have a size that only the driver knows. The driver holds it before the process can charge it.
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

// A process that also charges and releases by turns looks like one that makes small allocations. It can hide what is tolerated for those,
// and no more.
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

// A page that is invalid at a restart may be of another version: it grants nothing more, and no process is killed for it.
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

// After a restart the enforcer does not know what a busy process holds beyond its lane. The former enforcer had charged it.
func TestWhatAProcessAtWorkHoldsBeyondItsLaneIsChargedAcrossARestart(t *testing.T) {
	needs.Root(t)
	h, truth := newTruthHost(t)
	p, _ := h.session("s", on(gpu0, gib))
	p.must("attach")
	p.must("device %s %d", hex0, 80*gib)
	p.must("charge 0 %d", 100*mib)
	truth.set(gpu0, p.pid(), 600*mib)
	eventually(t, "it is charged", func() bool { return overhead(h) == 500*mib })
	p.must("begin 0") // it may allocate at any time
	h.restart()
	truth.comparisons(t, 10)
	must.Equal(t, overhead(h), 500*mib, "bytes are charged")
	p.expect("refused", "charge 0 %d", 500*mib)
	eventually(t, "it is less, if it stays so", func() bool { truth.set(gpu0, p.pid(), 300*mib); return overhead(h) == 200*mib })
}

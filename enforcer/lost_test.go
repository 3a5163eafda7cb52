// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// If a process's mappings cannot be read at a restart, it may have the slice's ledger, and its charges count. The slice gets no other
// ledger, and is active again once the process is found to have it.
func TestALedgerThatIsNotFoundIsNotReplaced(t *testing.T) {
	h, truth := newPolicyHost(t, api.Kill, api.ScopeSlice)
	slow, sibling := h.pair(on(gpu0, 4*gib))
	slow.uses().must("charge 0 %d", 3*gib)
	truth.set(gpu0, slow.pid(), 3*gib)
	h.restartBlindTo(slow)
	if s := h.see("s"); s.State != api.Damaged || !strings.Contains(s.Reason, "timed out, and it may have the ledger") {
		t.Fatalf("%+v", s)
	}
	h.wantGranted(gpu0, 4*gib, 76*gib)
	sibling.expect("status 3", "attach")
	slow.expect("status 3", "device %s %d", hex1, 80*gib) // asks the enforcer
	slow.must("charge 0 %d", gib)
	slow.expect("refused", "charge 0 1")
	truth.set(gpu0, slow.pid(), 4*gib)
	truth.comparisons(t, 8)
	if slow.dead() || sibling.dead() || len(h.told(api.EventKilled)) != 0 {
		t.Fatalf("what may be charged is held against it: %+v", h.told(api.EventKilled))
	}
	expect.ErrorIs(t, must.Err(h.set("s", on(gpu0, 8*gib))), api.ErrBadRequest)
	h.restart()
	if s := h.see("s"); s.State != api.Active || s.Devices[0].Used != 4*gib {
		t.Fatalf("%+v", s)
	}
	must.Get(h.set("s", on(gpu0, 5*gib)))(t)
	sibling.uses().must("charge 0 %d", gib)
	slow.expect("refused", "charge 0 1")
}

// restartBlindTo restarts the enforcer, which cannot read the mappings of these processes.
func (h *host) restartBlindTo(silent ...*proc) {
	h.t.Helper()
	h.stop()
	defer enforcer.Silence(func(pid int) bool {
		return slices.ContainsFunc(silent, func(p *proc) bool { return p.pid() == pid })
	})()
	h.start()
}

// lost restarts the enforcer so that the slice of p has lost its ledger.
func (h *host) lost(id string, p *proc) {
	h.t.Helper()
	h.restartBlindTo(p)
	must.Equal(h.t, h.see(id).State, api.Damaged, "state")
}

// A process that may have the lost ledger is in violation only for bytes beyond the quota, and any other process for all its bytes.
func TestASliceWhoseLedgerIsNotFoundIsHeldToItsQuota(t *testing.T) {
	for name, c := range map[string]struct {
		hides      func(slow, sibling *proc) *proc
		has, bytes uint64
		cause      string
	}{
		"who may have it":    {func(slow, _ *proc) *proc { return slow }, 9 * gib, 5 * gib, api.BypassExcess},
		"who cannot have it": {func(_, sibling *proc) *proc { return sibling }, gib, gib, api.BypassUnattached},
	} {
		t.Run(name, func(t *testing.T) {
			h, truth := newPolicyHost(t, api.Kill, api.ScopeProcess)
			slow, sibling := h.pair(on(gpu0, 4*gib))
			slow.uses().must("charge 0 %d", 3*gib)
			h.lost("s", slow)
			hides := c.hides(slow, sibling)
			truth.set(gpu0, hides.pid(), c.has)
			hides.ended()
			told := h.told(api.EventBypass)
			must.True(t, len(told) == 1 && told[0].PID == hides.pid() && told[0].Cause == c.cause && told[0].Bytes == c.bytes, "the events are", told)
			truth.set(gpu0, hides.pid(), 0)
			h.wantGranted(gpu0, 4*gib, 76*gib)
			slow.kill()
			sibling.kill()
			h.wantGone("s")
			eventually(t, "its quota is free", func() bool { return h.device(gpu0).Quotas == 0 })
		})
	}
}

// A process that may have the lost ledger may have charged up to the limit before it was lowered. That is no violation.
func TestChargesBeforeALoweredQuotaAreNoViolationWithoutALedger(t *testing.T) {
	for name, begin := range map[string]func(h *host) (slow *proc, id string){
		"its own": func(h *host) (*proc, string) {
			slow, _ := h.pair(on(gpu0, 4*gib))
			slow.uses().must("charge 0 %d", 4*gib)
			for _, bytes := range []uint64{gib, 2 * gib, gib} {
				must.Get(h.set("s", on(gpu0, bytes)))(h.t)
			}
			return slow, "s"
		},
		"its pool's": func(h *host) (*proc, string) {
			h.pool("llm", on(gpu0, 4*gib))
			slow := h.member("a", "llm").uses()
			slow.must("charge 0 %d", 4*gib)
			must.Get(h.SetPool(context.Background(), "llm", api.PoolRequest{Quotas: []api.Quota{on(gpu0, gib)}}))(h.t)
			return slow, "a"
		},
		"its own, which it had not before": func(h *host) (*proc, string) {
			h.pool("llm", on(gpu0, 4*gib))
			slow := h.member("a", "llm").uses()
			slow.must("charge 0 %d", 4*gib)
			must.Get(h.set("a", on(gpu0, gib)))(h.t)
			return slow, "a"
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, truth := newPolicyHost(t, api.Kill, api.ScopeProcess)
			slow, id := begin(h)
			truth.set(gpu0, slow.pid(), 4*gib)
			for range 2 { // the record is written again in between
				h.lost(id, slow)
				truth.comparisons(t, 8)
			}
			if slow.dead() || len(h.told(api.EventBypass)) != 0 {
				t.Fatalf("what it charged is held against it: %+v", h.told(api.EventBypass))
			}
			truth.set(gpu0, slow.pid(), 6*gib)
			slow.ended()
			if told := h.told(api.EventBypass); len(told) != 1 || told[0].Bytes != 2*gib {
				t.Fatalf("%+v", told)
			}
		})
	}
}

func TestASliceWhoseLedgerIsNotFoundExpires(t *testing.T) {
	h, c := newTimedHost(t)
	slow := h.lease("s", newCgroup(t), time.Hour)
	h.lost("s", slow)
	c.pass(time.Hour)
	slow.ended()
	h.wantGone("s")
}

func TestAPoolsLedgerThatIsNotFoundIsNotReplaced(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	h.pool("llm", on(gpu0, 6*gib))
	slow, other := h.member("a", "llm").uses(), h.member("b", "llm")
	slow.must("charge 0 %d", 5*gib)
	h.restartBlindTo(slow)
	if p := h.seePool("llm"); p.State != api.Damaged || !strings.Contains(p.Reason, "timed out, and it may have the ledger") {
		t.Fatalf("%+v", p)
	}
	told := make(map[string]string) // slices have their causes, and the pool has its own
	for _, e := range h.told(api.EventDenied) {
		told[e.Pool+e.Slice] = e.Cause
	}
	if !strings.Contains(told["llm"], "timed out, and it may have the ledger") || !strings.Contains(told["a"], "timed out, and it may have the ledger") {
		t.Fatalf("%v", told)
	}
	h.wantGranted(gpu0, 6*gib, 74*gib)
	other.expect("status 3", "attach")
	expect.ErrorIs(t, must.Err(h.SetPool(context.Background(), "llm", api.PoolRequest{Quotas: []api.Quota{on(gpu0, gib)}})), api.ErrBadRequest)
	h.member("c", "llm").expect("status 3", "attach")
	h.restart()
	must.True(t, h.pooled("llm") == 5*gib && h.seePool("llm").State == api.Active, "the pool is", h.seePool("llm"))
	other.uses().must("charge 0 %d", gib)
	other.expect("refused", "charge 0 1")
	slow.kill()
	eventually(t, "the memory is released", func() bool { return h.pooled("llm") == gib })
}

// A session's quota stays granted after its end while a process that may have its ledger lives: the process may hold the charged bytes, and
// charge the rest.
func TestProcessThatMayHaveALostLedgerSurvivesItsSession(t *testing.T) {
	needs.Root(t)
	for how, end := range map[string]func(t *testing.T, h *host, first *proc){
		"released by force": func(t *testing.T, h *host, _ *proc) {
			must.Get(h.Release(context.Background(), "s", 0, true))(t)
		},
		"its first process was killed": func(_ *testing.T, _ *host, first *proc) { first.kill() },
	} {
		t.Run(how, func(t *testing.T) {
			h := newHost(t, &fakeTruth{})
			h.believe()
			first, reply, token := h.tokenSession("s", on(gpu0, 8*gib))
			slow := start(t, filepath.Join(reply.Dir, "bind"), "")
			must.Do(t, h.join(slow, "s", token))
			slow.uses().must("charge 0 %d", 3*gib)
			h.lost("s", slow)
			end(t, h, first)
			h.wantGone("s")
			h.wantGranted(gpu0, 8*gib, 72*gib)
			h.restart()
			slow.expect("refused", "charge 0 1") // its mappings can be read now
			slow.kill()
			eventually(t, "its quota is free", func() bool { return h.device(gpu0).Quotas == 0 })
		})
	}
}

// A container was released; what its process holds of the pool still counts there.
func TestAPoolsLedgerThatAReleasedMemberMayHaveIsNotReplaced(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	h.pool("llm", on(gpu0, 6*gib))
	slow, _, _ := h.container(api.RegisterRequest{ID: "s", Pools: api.PoolNames{"llm"}})
	slow.uses().must("charge 0 %d", 5*gib)
	must.Get(h.Release(context.Background(), "s", 0, true))(t)
	h.restartBlindTo(slow)
	must.Equal(t, h.seePool("llm").State, api.Damaged, "state")
	h.restart()
	must.True(t, h.pooled("llm") == 5*gib && h.seePool("llm").State == api.Active, "the pool is", h.seePool("llm"))
	slow.kill()
	eventually(t, "the memory is released", func() bool { return h.pooled("llm") == 0 })
}

func TestTheQuotaOfASliceWhoseLedgerIsNotFoundIsKept(t *testing.T) {
	h := newHost(t, nil)
	slow, _ := h.pair(on(api.AllDevices, 4*gib))
	h.pool("llm", on(api.AllDevices, gib))
	member := h.member("m", "llm")
	h.restartBlindTo(slow, member)
	if h.see("s").State != api.Active || h.seePool("llm").State != api.Active { // no ledger was handed out yet
		t.Fatalf("%+v, %+v", h.see("s"), h.seePool("llm"))
	}
	slow.must("attach")
	member.must("attach")
	h.options.Truth, h.options.NoTruth = &fakeTruth{}, ""
	h.restartBlindTo(slow, member)
	if h.see("s").State != api.Damaged || h.seePool("llm").State != api.Damaged {
		t.Fatalf("%+v, %+v", h.see("s"), h.seePool("llm"))
	}
	h.wantGranted(gpu0, 5*gib, 75*gib)
}

// A process that the host's operator moved to another cgroup still has the page, and continues to charge there.
func TestProcessOutsideTheCgroupKeepsItsLaneAtARestart(t *testing.T) {
	elsewhere := newCgroup(t)
	h := newHost(t, nil)
	_, p := h.pair(on(gpu0, 4*gib))
	p.uses().must("charge 0 %d", gib)
	h.stop()
	must.Do(t, os.WriteFile(filepath.Join(elsewhere, "cgroup.procs"), []byte(strconv.Itoa(p.pid())), 0))
	h.start()
	if s := h.see("s"); s.State != api.Active || s.Devices[0].Used != gib {
		t.Fatalf("%+v", s)
	}
	p.must("charge 0 %d", 3*gib)
	p.expect("refused", "charge 0 1")
	p.kill()
	eventually(t, "the memory is released", func() bool { return h.see("s").Devices[0].Used == 0 })
}

func TestReleasesAtARestartAreEvents(t *testing.T) {
	h := newHost(t, nil)
	a, b := h.pair(on(gpu0, 4*gib))
	a.uses()
	b.uses()
	b.must("charge 0 %d", 3*mib)
	h.stop()
	b.kill()
	h.start()
	eventually(t, "the freed event", func() bool { return len(h.told(api.EventFreed)) > 0 })
	if got := h.told(api.EventFreed); len(got) != 1 || got[0].Bytes != 3*mib {
		t.Fatalf("%+v", got)
	}
}

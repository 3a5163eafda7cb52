// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/api"
)

// A process that does not let itself be looked at when an enforcer starts may have the slice's ledger, and what it holds in that
// counts. So the slice gets no other one, and goes on once the process is found to have it.
func TestALedgerThatIsNotFoundIsNotReplaced(t *testing.T) {
	truth := &fakeTruth{}
	h := newPolicyHost(t, truth, api.Kill, api.ScopeSlice)
	slow, sibling := h.pair(on(gpu0, 4*gib))
	slow.uses().must("charge 0 %d", 3*gib)
	truth.set(gpu0, slow.pid(), 3*gib)
	h.stop()
	restore := enforcer.Silence(func(pid int) bool { return pid == slow.pid() })
	defer restore()
	h.start()
	if s := h.see("s"); s.State != api.Damaged || !strings.Contains(s.Reason, "does not let itself be looked at") {
		t.Fatalf("%+v", s)
	}
	h.given(gpu0, 4*gib, 76*gib)
	sibling.expect("status 3", "attach")                  // closed
	slow.expect("status 3", "device %s %d", hex1, 80*gib) // which asks the enforcer
	slow.must("charge 0 %d", gib)                         // its page is as it was
	slow.expect("refused", "charge 0 1")
	truth.set(gpu0, slow.pid(), 4*gib)
	truth.comparisons(t, 8)
	if slow.dead() || sibling.dead() || len(h.told(api.EventKilled)) != 0 {
		t.Fatalf("what may be charged is held against it: %+v", h.told(api.EventKilled))
	}
	if _, err := h.set("s", on(gpu0, 8*gib)); !errors.Is(err, api.ErrBadRequest) {
		t.Fatal(err)
	}
	restore()
	h.restart()
	if s := h.see("s"); s.State != api.Active || s.Devices[0].Used != 4*gib {
		t.Fatalf("%+v", s)
	}
	if _, err := h.set("s", on(gpu0, 5*gib)); err != nil {
		t.Fatal(err)
	}
	sibling.uses().must("charge 0 %d", gib)
	slow.expect("refused", "charge 0 1")
}

// Past what could be charged, it is memory past the ledger as any other. And such a slice ends as any other.
func TestASliceWhoseLedgerIsNotFoundIsHeldToItsQuota(t *testing.T) {
	truth := &fakeTruth{}
	h := newPolicyHost(t, truth, api.Kill, api.ScopeSlice)
	slow, _ := h.pair(on(gpu0, 4*gib))
	slow.uses().must("charge 0 %d", 3*gib)
	h.stop()
	defer enforcer.Silence(func(pid int) bool { return pid == slow.pid() })()
	h.start()
	truth.set(gpu0, slow.pid(), 9*gib)
	slow.ended()
	truth.set(gpu0, slow.pid(), 0)
	h.gone("s")
	eventually(t, "its quota is free", func() bool { return h.device(gpu0).Quotas == 0 })
}

func TestASliceWhoseLedgerIsNotFoundExpires(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	slow := h.lease("s", newCgroup(t), 3*time.Second)
	h.stop()
	defer enforcer.Silence(func(pid int) bool { return pid == slow.pid() })()
	h.start()
	slow.ended()
	h.gone("s")
}

func TestAPoolsLedgerThatIsNotFoundIsNotReplaced(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	h.pool("llm", on(gpu0, 6*gib))
	slow, other := h.member("a", "llm").uses(), h.member("b", "llm")
	slow.must("charge 0 %d", 5*gib)
	h.stop()
	restore := enforcer.Silence(func(pid int) bool { return pid == slow.pid() })
	defer restore()
	h.start()
	if p := h.seePool("llm"); p.State != api.Damaged || !strings.Contains(p.Reason, "does not let itself be looked at") {
		t.Fatalf("%+v", p)
	}
	h.given(gpu0, 6*gib, 74*gib)
	other.expect("status 3", "attach")
	if _, err := h.SetPool(context.Background(), "llm", api.PoolRequest{Quotas: []api.Quota{on(gpu0, gib)}}); !errors.Is(err, api.ErrBadRequest) {
		t.Fatal(err)
	}
	h.member("c", "llm").expect("status 3", "attach")
	restore()
	h.restart()
	if h.pooled("llm") != 5*gib || h.seePool("llm").State != api.Active {
		t.Fatalf("%+v", h.seePool("llm"))
	}
	other.uses().must("charge 0 %d", gib)
	other.expect("refused", "charge 0 1")
	slow.kill()
	eventually(t, "it is given back", func() bool { return h.pooled("llm") == gib })
}

// A session ends while none runs, and who outlives it cannot be looked at: it is not known to have been the session's.
func TestASessionWhoseLedgerIsNotFoundEnds(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	h.believe()
	first, reply, token := h.tokenSession("s", on(gpu0, 8*gib))
	slow := start(t, filepath.Join(reply.Dir, "bind"), "")
	if err := h.join(slow, "s", token); err != nil {
		t.Fatal(err)
	}
	slow.uses().must("charge 0 %d", 3*gib)
	h.stop()
	defer enforcer.Silence(func(pid int) bool { return pid == slow.pid() })()
	h.start()
	if s := h.see("s"); s.State != api.Damaged {
		t.Fatalf("%+v", s)
	}
	first.kill()
	h.gone("s")
	slow.kill()
	eventually(t, "its quota is free", func() bool { return h.device(gpu0).Quotas == 0 })
}

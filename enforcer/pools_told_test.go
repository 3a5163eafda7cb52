// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestAnOverwrittenPoolGivesNothingMore(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	a, b := h.member("a", "llm").uses(), h.member("b", "llm", on(api.AllDevices, gib)).uses()
	s, _ := h.session("s", on(api.AllDevices, gib))
	s.uses()
	a.expect("ok", "pokepool 144 %d", 100*gib)
	eventually(t, "it is found", func() bool { return h.seePool("llm").State == api.Damaged })
	a.expect("refused", "charge 0 1")
	b.expect("refused", "charge 0 1")
	s.must("charge 0 %d", gib)
	must.Equal(t, h.see("b").State, api.Active, "its members are")
	expect.ErrorIs(t, must.Err(h.SetPool(context.Background(), "llm", api.PoolRequest{Quotas: []api.Quota{on("*", gib)}})), api.ErrBadRequest)
}

// The enforcer cannot tell which member's process overwrote the page, so it kills none.
func TestAnOverwrittenPoolIsTold(t *testing.T) {
	for action, told := range map[api.Action]api.Action{api.Log: api.Log, api.Refuse: api.Refuse, api.Kill: api.Refuse} {
		t.Run(string(action), func(t *testing.T) {
			h := newPolicyHost(t, nil, action, api.ScopeSlice)
			h.pool("llm", on(api.AllDevices, 6*gib))
			a := h.member("a", "llm").uses()
			a.expect("ok", "pokepool 144 %d", 100*gib) // the first device's limit
			eventually(t, "it is told", func() bool { return len(h.told(api.EventBypass)) > 0 })
			h.looks()
			events := h.told(api.EventBypass)
			if e := events[0]; len(events) != 1 || e.Pool != "llm" || e.Slice != "" || e.Cause != api.BypassOverwritten || e.Action != told {
				t.Fatalf("%+v", events)
			}
			a.expect("refused", "charge 0 1")
			if n := len(h.told(api.EventKilled)); n != 0 || a.dead() {
				t.Fatalf("%d were killed", n)
			}
		})
	}
}

func TestAPoolThatIsDeniedADeviceIsTold(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 60*gib))
	a := h.member("a", "llm").uses()
	h.options.Truth, h.options.NoTruth = &fakeTruth{}, ""
	h.restart() // now the enforcer knows the devices' sizes, and one that the pool's ledger lacks
	h.give("s", on(gpu1, 40*gib))
	a.must("device %s %d", hex1, 80*gib)
	a.expect("refused", "charge 1 1")
	events := h.told(api.EventDenied)
	if len(events) != 1 || events[0].Pool != "llm" || events[0].Device != gpu1 || events[0].Requested != 60*gib || !strings.Contains(events[0].Cause, "pool llm asks for") {
		t.Fatalf("%+v", events)
	}
}

func TestARefusalSaysWhoseLimitItWas(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	a := h.member("a", "llm", on(api.AllDevices, 8*gib)).uses()
	a.must("charge 0 %d", 5*gib)
	a.must("refused 0 %d", 2*gib)
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	for since := uint64(0); ; {
		events := must.Get(h.Events(ctx, "", since, true))(t)
		for _, e := range events {
			since = e.Seq
			if e.Kind != api.EventRefused {
				continue
			}
			if e.Pool != "llm" || *e.Limit != 6*gib || *e.Used != 5*gib || e.Requested != 2*gib || e.Slice != "a" {
				t.Fatalf("%+v", e)
			}
			return
		}
	}
}

// For refusals that are reported as a sum, the refusing limit is not known where there are two.
func TestRefusalsOfMembersThatAreToldAsASumNameNoLimitThatItWasNot(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	for _, id := range []string{"own", "none"} {
		var quotas []api.Quota
		if id == "own" {
			quotas = append(quotas, on(api.AllDevices, 8*gib))
		}
		h.member(id, "llm", quotas...).uses().must("count 0 3")
	}
	eventually(t, "all are told", func() bool { return h.refusals() == 6 })
	for _, e := range h.told(api.EventRefused) {
		switch {
		case e.Slice == "own" && (e.Pool != "" || e.Limit != nil), e.Slice == "none" && (e.Pool != "llm" || e.Limit == nil || *e.Limit != 6*gib):
			t.Errorf("%+v", e)
		}
	}
}

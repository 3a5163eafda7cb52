// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

func (h *host) pool(name string, quotas ...api.Quota) {
	h.t.Helper()
	needs.Root(h.t)
	must.Get(h.CreatePool(context.Background(), name, api.PoolRequest{Quotas: quotas}))(h.t)
}

// member registers a session in a pool.
func (h *host) member(id, pool string, quotas ...api.Quota) *proc {
	h.t.Helper()
	return h.memberOf(id, api.PoolNames{pool}, quotas...)
}

func (h *host) memberOf(id string, pools api.PoolNames, quotas ...api.Quota) *proc {
	h.t.Helper()
	p, _ := h.sessionOf(api.RegisterRequest{ID: id, Quotas: quotas, Pools: pools})
	return p
}

// uses attaches a process, which then uses device 0.
func (p *proc) uses() *proc {
	p.t.Helper()
	p.must("attach")
	p.must("device %s %d", hex0, 80*gib)
	return p
}

func (h *host) seePool(name string) api.Pool {
	h.t.Helper()
	return must.Get(h.Pool(context.Background(), name))(h.t)
}

func (h *host) pooled(name string) uint64 {
	h.t.Helper()
	p := h.seePool(name)
	if len(p.Devices) == 0 {
		return 0
	}
	return p.Devices[0].Used + p.Devices[0].Overhead
}

func TestMembersOfAPoolDrawOnTheirOwnQuotaAndOnThePools(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	a, b := h.member("a", "llm", on(api.AllDevices, 4*gib)).uses(), h.member("b", "llm", on(api.AllDevices, 4*gib)).uses()
	a.must("charge 0 %d", 4*gib)
	a.expect("refused", "charge 0 1") // by its own quota
	b.must("charge 0 %d", 2*gib)
	b.expect("refused", "charge 0 1")
	if p := h.seePool("llm"); p.Devices[0].Used != 6*gib || p.Devices[0].Limit != 6*gib || p.Devices[0].Refusals != 1 ||
		strings.Join(p.Members, " ") != "a b" || p.ProcessCount != 2 || p.State != api.Active {
		t.Fatalf("%+v", p)
	}
	if d := h.see("b").Devices[0]; d.Used != 2*gib || d.Limit != 4*gib || d.Refusals != 1 {
		t.Fatalf("what the pool refused is charged to its member: %+v", d)
	}
	a.must("release 0 %d", gib)
	b.must("charge 0 %d", gib)
	a.expect("refused", "charge 0 1")
}

func TestMemberWithoutAQuotaUsesTheRestOfThePool(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	a, b := h.member("a", "llm", on(api.AllDevices, 2*gib)).uses(), h.member("elastic", "llm").uses()
	b.must("charge 0 %d", 5*gib)
	a.must("charge 0 %d", gib)
	b.expect("refused", "charge 0 1")
	if d := h.see("elastic").Devices[0]; d.Limit != 6*gib || d.Used != 5*gib {
		t.Fatalf("%+v", d)
	}
	b.must("release 0 %d", 4*gib)
	a.must("charge 0 %d", gib)
	a.expect("refused", "charge 0 1")
	b.must("charge 0 %d", 3*gib)
}

func TestExitAndExecReleaseInBothLedgers(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	a, b := h.member("a", "llm", on(api.AllDevices, 4*gib)).uses(), h.member("b", "llm").uses()
	a.must("charge 0 %d", 4*gib)
	b.must("charge 0 %d", 2*gib)
	a.tell("exec")
	a.uses()
	if used := h.see("a").Devices[0].Used; used != 0 || h.pooled("llm") != 2*gib {
		t.Fatalf("after exec the slice has %d, the pool %d", used, h.pooled("llm"))
	}
	a.must("charge 0 %d", 4*gib)
	a.kill()
	eventually(t, "the dead one's bytes are back", func() bool { return h.pooled("llm") == 2*gib })
	b.must("charge 0 %d", 4*gib)
	b.expect("refused", "charge 0 1")
	expect.Equal(t, h.seePool("llm").Devices[0].Recovered, 8*gib, "recovered")
}

// The process has charged its slice, and not yet the pool.
func TestAProcessThatDiesBetweenItsTwoChargesLosesNoByte(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	a, b := h.member("a", "llm", on(api.AllDevices, 4*gib)).uses(), h.member("b", "llm").uses()
	a.must("charge 0 %d", gib)
	a.must("half 0 %d", gib)
	a.kill()
	eventually(t, "the dead one's bytes are back", func() bool { return h.pooled("llm") == 0 })
	b.must("charge 0 %d", 6*gib)
}

// A process that skips the pool's charge, or overwrites its lane there, is found by its slice's charge.
func TestChargeMissingInThePoolIsAdded(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	a, b := h.member("a", "llm", on(api.AllDevices, 4*gib)).uses(), h.member("b", "llm").uses()
	a.must("charge 0 %d", gib)
	a.must("half 0 %d", 2*gib)
	eventually(t, "it counts in the pool", func() bool { return h.pooled("llm") == 3*gib })
	must.Equal(t, h.seePool("llm").Devices[0].Overhead, 2*gib, "overhead")
	b.must("charge 0 %d", 3*gib)
	b.expect("refused", "charge 0 1")
	a.kill()
	eventually(t, "its memory is released", func() bool { return h.pooled("llm") == 3*gib })
}

// A process is stopped between its two charges, or skips the second. Those bytes count in the pool if the driver says that the process holds them;
// without driver truth, up to the pool's free bytes.
func TestProcessStoppedBetweenItsChargesDoesNotExceedThePool(t *testing.T) {
	h, truth := newTruthHost(t)
	h.pool("llm", on(gpu0, 6*gib))
	a, b := h.member("a", "llm", on(gpu0, 4*gib)).uses(), h.member("b", "llm").uses()
	a.must("charge 0 %d", gib)
	truth.set(gpu0, a.pid(), gib)
	a.must("half 0 %d", 2*gib)
	truth.comparisons(t, 10)
	b.must("charge 0 %d", 5*gib)
	truth.set(gpu0, b.pid(), 5*gib)
	truth.set(gpu0, a.pid(), 3*gib)
	eventually(t, "the driver has given it to the process", func() bool { return h.pooled("llm") == 8*gib })

	h = newHost(t, nil)
	h.pool("llm", on(gpu0, 6*gib))
	a, b = h.member("a", "llm", on(gpu0, 4*gib)).uses(), h.member("b", "llm").uses()
	a.must("charge 0 %d", gib)
	b.must("charge 0 %d", 4*gib)
	a.must("half 0 %d", 2*gib)
	eventually(t, "the pool is full", func() bool { return h.pooled("llm") == 6*gib })
	b.must("release 0 %d", gib/2)
	eventually(t, "and what becomes free", func() bool { return h.pooled("llm") == 6*gib })
	if d := h.seePool("llm").Devices[0]; d.Peak > 6*gib || d.Overhead != 3*gib/2 {
		t.Errorf("%+v", d)
	}
}

func TestMembersOverheadCountsInThePool(t *testing.T) {
	h, truth := newTruthHost(t)
	h.pool("llm", on(gpu0, 6*gib))
	a, b := h.member("a", "llm", on(api.AllDevices, 4*gib)).uses(), h.member("b", "llm").uses()
	a.must("charge 0 %d", gib)
	truth.set(gpu0, a.pid(), 3*gib)
	eventually(t, "the driver's excess counts", func() bool { return h.pooled("llm") == 3*gib })
	b.must("charge 0 %d", 3*gib)
	b.expect("refused", "charge 0 1")
	truth.set(gpu0, a.pid(), 0)
	a.kill()
	eventually(t, "and goes with its process", func() bool { return h.pooled("llm") == 3*gib })
	b.must("charge 0 %d", 3*gib)
}

// The pool gets back what a member freed while no enforcer ran.
func TestMembersOverheadCountsInThePoolAfterARestart(t *testing.T) {
	h, truth := newTruthHost(t)
	h.pool("llm", on(gpu0, 6*gib))
	a, b := h.member("a", "llm").uses(), h.member("b", "llm").uses()
	a.must("charge 0 %d", gib)
	truth.set(gpu0, a.pid(), 3*gib)
	eventually(t, "it counts in the pool", func() bool { return h.pooled("llm") == 3*gib })
	h.stop()
	truth.set(gpu0, a.pid(), gib)
	h.start()
	eventually(t, "the released memory no longer counts", func() bool { return h.pooled("llm") == gib })
	b.must("charge 0 %d", 5*gib)
	a.expect("refused", "charge 0 1")
}

func TestAReleasedMembersProcessesCountUntilTheyEnd(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	a, b := h.member("a", "llm", on(api.AllDevices, 4*gib)).uses(), h.member("b", "llm").uses()
	a.must("charge 0 %d", 4*gib)
	must.Get(h.Release(context.Background(), "a", 0, true))(t)
	a.expect("refused", "charge 0 1")
	b.expect("refused", "charge 0 %d", 3*gib)
	expect.ErrorIs(t, must.Err(h.DeletePool(context.Background(), "llm")), api.ErrRunning, "a pool with members was deleted")
	a.must("release 0 %d", gib)
	b.must("charge 0 %d", 3*gib)
	a.kill()
	eventually(t, "its bytes are back", func() bool { return h.pooled("llm") == 3*gib })
	b.kill()
	eventually(t, "the last member is gone", func() bool {
		_, err := h.DeletePool(context.Background(), "llm")
		return err == nil
	})
	must.Len(t, must.Get(h.Pools(context.Background()))(t), 0)
}

// Processes of several members compete for a pool's bytes and exit. In the end the pool holds what the living hold.
func TestMembersRaceForThePoolsLastBytesAndDie(t *testing.T) {
	h := newHost(t, nil)
	const limit = 40 // bytes: each process holds up to 7 at one time
	h.pool("tight", on(api.AllDevices, limit))
	var wait sync.WaitGroup
	var live, die []*proc
	for i := range 3 {
		live = append(live, h.member(fmt.Sprint("live", i), "tight", on(api.AllDevices, 30)).uses())
		die = append(die, h.member(fmt.Sprint("die", i), "tight", on(api.AllDevices, 30)).uses())
	}
	var over atomic.Bool
	for i, p := range live {
		die[i].tell("hammer 0 %d", uint64(1)<<40)
		wait.Go(func() {
			for !over.Load() {
				p.must("hammer 0 20000")
			}
		})
	}
	eventually(t, "the pool has been full", func() bool { return h.seePool("tight").Devices[0].Peak >= limit-6 })
	for _, p := range die {
		time.Sleep(20 * time.Millisecond)
		p.kill()
	}
	over.Store(true)
	wait.Wait()
	eventually(t, "nothing is held any more", func() bool { return h.pooled("tight") == 0 })
	p := h.seePool("tight")
	if p.State != api.Active || p.Devices[0].Peak > limit {
		t.Fatalf("%+v", p)
	}
}

func TestAPoolByGrantHasNoMemberThatNamesItWithoutOne(t *testing.T) {
	h := newHost(t, nil)
	must.Get(h.CreatePool(context.Background(), "claim", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 8*gib)}, Tenant: "team", ByGrant: true}))(t)
	p := start(t, filepath.Join(h.options.RunDir, "to-a"), "")
	request := func(pool string, granted bool) error {
		_, err := h.Register(context.Background(), api.RegisterRequest{
			ID: "a", Pools: api.PoolNames{pool}, ByGrant: granted, Session: true, PID: p.pid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
		})
		return err
	}
	for range 2 {
		none, err := request("none", false), request("claim", false)
		if none == nil || err == nil || strings.ReplaceAll(none.Error(), "none", "claim") != err.Error() {
			t.Errorf("%v\nof a pool that does not exist: %v", err, none)
		}
		h.restart()
	}
	expect.NoError(t, request("claim", true))
}

func TestOverwrittenPoolGrantsNothing(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	a, b := h.member("a", "llm").uses(), h.member("b", "llm", on(api.AllDevices, gib)).uses()
	s, _ := h.session("s", on(api.AllDevices, gib))
	s.uses()
	a.expect("ok", "pokepool 144 %d", 100*gib)
	eventually(t, "the pool is damaged", func() bool { return h.seePool("llm").State == api.Damaged })
	a.expect("refused", "charge 0 1")
	b.expect("refused", "charge 0 1")
	s.must("charge 0 %d", gib)
	must.Equal(t, h.see("b").State, api.Active, "its members are")
	expect.ErrorIs(t, must.Err(h.SetPool(context.Background(), "llm", api.PoolRequest{Quotas: []api.Quota{on("*", gib)}})), api.ErrBadRequest)
}

// The enforcer cannot tell which member's process overwrote the page, so it kills none.
func TestOverwrittenPoolIsAnEvent(t *testing.T) {
	for action, told := range map[api.Action]api.Action{api.Log: api.Log, api.Refuse: api.Refuse, api.Kill: api.Refuse} {
		t.Run(string(action), func(t *testing.T) {
			h := newHost(t, nil).does(action, api.ScopeSlice)
			h.pool("llm", on(api.AllDevices, 6*gib))
			a := h.member("a", "llm").uses()
			a.expect("ok", "pokepool 144 %d", 100*gib) // the first device's limit
			eventually(t, "the bypass event", func() bool { return len(h.told(api.EventBypass)) > 0 })
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

func TestPoolDeniedADeviceIsAnEvent(t *testing.T) {
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

func TestRefusalNamesTheLimitingPoolOrSlice(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	a := h.member("a", "llm", on(api.AllDevices, 8*gib)).uses()
	a.must("charge 0 %d", 5*gib)
	a.must("refused 0 %d", 2*gib)
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	for since := uint64(0); ; {
		for _, e := range must.Get(h.Events(ctx, "", since, true))(t) {
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
func TestSummedRefusalsNameNoLimit(t *testing.T) {
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

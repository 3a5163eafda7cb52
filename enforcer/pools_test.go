// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

func (h *host) pool(name string, quotas ...api.Quota) {
	h.t.Helper()
	if os.Geteuid() != 0 {
		h.t.Skip("pools are a privileged enforcer's")
	}
	if _, err := h.CreatePool(context.Background(), name, api.PoolRequest{Quotas: quotas}); err != nil {
		h.t.Fatal(err)
	}
}

// member is session in a pool.
func (h *host) member(id, pool string, quotas ...api.Quota) *proc {
	h.t.Helper()
	return h.memberOf(id, api.PoolNames{pool}, quotas...)
}

func (h *host) memberOf(id string, pools api.PoolNames, quotas ...api.Quota) *proc {
	h.t.Helper()
	link := filepath.Join(h.options.RunDir, "to-"+id)
	p := start(h.t, link, "")
	reply, err := h.Register(context.Background(), api.RegisterRequest{
		ID: id, Quotas: quotas, Pools: pools, Session: true, PID: p.pid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	lead(h.t, link, reply)
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
	p, err := h.Pool(context.Background(), name)
	if err != nil {
		h.t.Fatal(err)
	}
	return p
}

// pooled is what a pool's members hold on its first device.
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
	a.expect("refused", "charge 0 1") // by its own
	b.must("charge 0 %d", 2*gib)
	b.expect("refused", "charge 0 1") // by the pool's
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

func TestAMemberWithoutAQuotaTakesWhatIsFreeInThePool(t *testing.T) {
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

func TestDeathAndExecGiveBackToBothLedgers(t *testing.T) {
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
	if r := h.seePool("llm").Devices[0].Recovered; r != 8*gib {
		t.Fatalf("recovered %d", r)
	}
}

// Between the two charges: the process has charged its slice, and not the pool.
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

// A process that leaves the pool out, or overwrites its lane there, is found by what it charged to its slice.
func TestWhatIsChargedToTheSliceAndNotToThePoolIsChargedThere(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	a, b := h.member("a", "llm", on(api.AllDevices, 4*gib)).uses(), h.member("b", "llm").uses()
	a.must("charge 0 %d", gib)
	a.must("half 0 %d", 2*gib)
	eventually(t, "it counts in the pool", func() bool { return h.pooled("llm") == 3*gib })
	if d := h.seePool("llm").Devices[0]; d.Overhead != 2*gib {
		t.Fatalf("%+v", d)
	}
	b.must("charge 0 %d", 3*gib)
	b.expect("refused", "charge 0 1")
	a.kill()
	eventually(t, "nothing of it is left", func() bool { return h.pooled("llm") == 3*gib })
}

// A process that is stopped between its two charges has nothing of the second one yet. It may be one that leaves the pool out: that
// counts if the driver says so, and where it does not, as far as there is room in the pool.
func TestWhoIsStoppedBetweenItsTwoChargesTakesNothingThatThePoolHasNot(t *testing.T) {
	truth := &fakeTruth{}
	h := newHost(t, truth)
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
	eventually(t, "what is free counts", func() bool { return h.pooled("llm") == 6*gib })
	b.must("release 0 %d", gib/2)
	eventually(t, "and what becomes free", func() bool { return h.pooled("llm") == 6*gib })
	if d := h.seePool("llm").Devices[0]; d.Peak > 6*gib || d.Overhead != 3*gib/2 {
		t.Errorf("%+v", d)
	}
}

func TestWhatTheDriverHoldsForAMemberCountsInThePool(t *testing.T) {
	truth := &fakeTruth{}
	h := newHost(t, truth)
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

// What it gave back while no enforcer ran is the pool's again.
func TestWhatTheDriverHeldForAMemberIsThePoolsAgainAfterARestart(t *testing.T) {
	truth := &fakeTruth{}
	h := newHost(t, truth)
	h.pool("llm", on(gpu0, 6*gib))
	a, b := h.member("a", "llm").uses(), h.member("b", "llm").uses()
	a.must("charge 0 %d", gib)
	truth.set(gpu0, a.pid(), 3*gib)
	eventually(t, "it counts in the pool", func() bool { return h.pooled("llm") == 3*gib })
	h.stop()
	truth.set(gpu0, a.pid(), gib)
	h.start()
	eventually(t, "what is gone does not", func() bool { return h.pooled("llm") == gib })
	b.must("charge 0 %d", 5*gib)
	a.expect("refused", "charge 0 1")
}

func TestAReleasedMembersProcessesCountUntilTheyEnd(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	a, b := h.member("a", "llm", on(api.AllDevices, 4*gib)).uses(), h.member("b", "llm").uses()
	a.must("charge 0 %d", 4*gib)
	if _, err := h.Release(context.Background(), "a", 0, true); err != nil {
		t.Fatal(err)
	}
	a.expect("refused", "charge 0 1")
	b.expect("refused", "charge 0 %d", 3*gib)
	if _, err := h.DeletePool(context.Background(), "llm"); !errors.Is(err, api.ErrRunning) {
		t.Fatalf("a pool with members was deleted: %v", err)
	}
	a.must("release 0 %d", gib)
	b.must("charge 0 %d", 3*gib)
	a.kill()
	eventually(t, "its bytes are back", func() bool { return h.pooled("llm") == 3*gib })
	b.kill()
	eventually(t, "the last member is gone", func() bool {
		_, err := h.DeletePool(context.Background(), "llm")
		return err == nil
	})
	if all, err := h.Pools(context.Background()); err != nil || len(all) != 0 {
		t.Fatal(all, err)
	}
}

func TestAPoolsQuotaIsChangedWhileItIsUsed(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	h.pool("llm", on(api.AllDevices, 6*gib))
	a := h.member("a", "llm").uses()
	a.must("charge 0 %d", 6*gib)
	a.expect("refused", "charge 0 1")
	set := func(quotas ...api.Quota) api.Pool {
		t.Helper()
		p, err := h.SetPool(context.Background(), "llm", api.PoolRequest{Quotas: quotas})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if p := set(on("0", 8*gib)); len(p.Quotas) != 2 || p.Devices[0].Limit != 8*gib || p.Devices[1].Limit != 6*gib {
		t.Fatalf("%+v", p)
	}
	a.must("charge 0 %d", 2*gib)
	a.expect("refused", "charge 0 1")
	set(on(gpu0, gib))
	set(on(gpu0, gib)) // as it was: nothing happened
	a.expect("refused", "charge 0 1")
	a.must("release 0 %d", 7*gib)
	a.expect("refused", "charge 0 1")
	a.must("release 0 1")
	a.must("charge 0 1")
	if _, err := h.SetPool(context.Background(), "other", api.PoolRequest{Quotas: []api.Quota{on("*", gib)}}); !errors.Is(err, api.ErrNotFound) {
		t.Fatal(err)
	}
	var kinds []api.EventKind
	var figures []uint64
	events, err := h.Events(context.Background(), "", 0, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Pool == "llm" && e.Kind != api.EventRefused { // those are told when the next check comes to it
			kinds = append(kinds, e.Kind)
			if e.Kind == api.EventPoolChanged { // with what is so from then on
				figures = append(figures, *e.Limit, *e.Used, *e.Overhead)
			}
		}
	}
	if want := "[pool_created pool_created pool_changed pool_changed]"; fmt.Sprint(kinds) != want { // there are two devices
		t.Fatalf("%v, want %s", kinds, want)
	}
	if want := []uint64{8 * gib, 6 * gib, 0, gib, 8 * gib, 0}; !slices.Equal(figures, want) {
		t.Fatalf("%v, want %v", figures, want)
	}
}

func TestAPoolIsExtendedToAnotherDevice(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	h.pool("llm", on(gpu0, 6*gib))
	a := h.member("a", "llm").uses()
	a.expect("status 5", "device %s %d", hex1, 80*gib)
	p, err := h.SetPool(context.Background(), "llm", api.PoolRequest{Quotas: []api.Quota{on("1", 2*gib)}})
	if err != nil || len(p.Devices) != 2 || p.Devices[0].Limit != 6*gib || p.Devices[1].Limit != 2*gib {
		t.Fatalf("%+v %v", p, err)
	}
	if devices, err := h.Devices(context.Background()); err != nil || devices[1].Quotas != 2*gib {
		t.Fatalf("%+v %v", devices, err)
	}
	if index := a.must("device %s %d", hex1, 80*gib); index != 1 {
		t.Fatalf("index %d", index)
	}
	a.must("charge 1 %d", 2*gib)
	a.expect("refused", "charge 1 1")
	h.restart()
	if p := h.seePool("llm"); p.State != api.Active || len(p.Devices) != 2 || p.Devices[1].Used != 2*gib || p.Devices[1].Limit != 2*gib {
		t.Fatalf("%+v", p)
	}
}

// The pool's quota is given, its members' are parts of it.
func TestThePoolIsWhatCountsOnADevice(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	h.pool("llm", on(gpu0, 60*gib))
	h.member("a", "llm", on(api.AllDevices, 50*gib))
	h.member("b", "llm", on(api.AllDevices, 50*gib))
	h.member("c", "llm")
	devices, err := h.Devices(context.Background())
	if err != nil || devices[0].Quotas != 60*gib || devices[1].Quotas != 0 {
		t.Fatalf("%+v %v", devices, err)
	}
	var refusal *api.Error
	_, err = h.CreatePool(context.Background(), "more", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 21*gib)}})
	if !errors.As(err, &refusal) || refusal.Code != api.CodeQuotaExceeded || !strings.Contains(refusal.Message, "pool llm has 60GiB") {
		t.Fatal(err)
	}
	h.session("s", on(gpu0, 20*gib))
	used := h.member("holds", "llm").uses()
	used.must("charge 0 %d", 50*gib)
	given := func() uint64 {
		devices, err := h.Devices(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return devices[0].Quotas
	}
	set := func(bytes uint64) {
		t.Helper()
		if _, err := h.SetPool(context.Background(), "llm", api.PoolRequest{Quotas: []api.Quota{on(gpu0, bytes)}}); err != nil {
			t.Fatal(err)
		}
	}
	if set(10 * gib); given() != 70*gib {
		t.Fatalf("%d are given: what members hold beyond the new quota is promised to others", given())
	}
	used.must("release 0 %d", 45*gib)
	eventually(t, "it counts less once it is less", func() bool { return given() == 30*gib })
	set(60 * gib)
	if _, err := h.SetPool(context.Background(), "llm", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 61*gib)}}); !errors.Is(err, api.ErrQuotaExceeded) {
		t.Fatal(err)
	}
	if p := h.seePool("llm"); p.Quotas[0].Bytes != 60*gib || p.Devices[0].Limit != 60*gib {
		t.Fatalf("what was refused changed something: %+v", p)
	}
	p := start(t, "/nowhere", "")
	_, err = h.Register(context.Background(), api.RegisterRequest{ID: "x", Session: true, PID: p.pid(), Pools: api.PoolNames{"nobody"}, Quotas: []api.Quota{on(gpu0, gib)}})
	if !errors.Is(err, api.ErrBadRequest) || !strings.Contains(err.Error(), "there is no pool nobody") {
		t.Fatal(err)
	}
	_, err = h.Register(context.Background(), api.RegisterRequest{ID: "x", Session: true, PID: p.pid(), Pools: api.PoolNames{"llm"}, Quotas: []api.Quota{on(gpu1, gib)}})
	if !errors.Is(err, api.ErrNoDevice) || !strings.Contains(err.Error(), "where pool llm has none") {
		t.Fatal(err)
	}
	_, err = h.Register(context.Background(), api.RegisterRequest{ID: "x", Session: true, PID: p.pid(), Pools: api.PoolNames{"llm"}, Mode: api.Record})
	if !errors.Is(err, api.ErrBadRequest) || !strings.Contains(err.Error(), "only records") {
		t.Fatal(err)
	}
}

func TestAPoolIsThereAgainAfterARestart(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	h.pool("idle", api.Quota{Device: api.AllDevices, Percent: 25})
	a, b, dies := h.member("a", "llm", on(api.AllDevices, 4*gib)).uses(), h.member("b", "llm").uses(), h.member("dies", "llm").uses()
	a.must("charge 0 %d", 2*gib)
	b.must("charge 0 %d", gib)
	dies.must("charge 0 %d", gib)
	h.stop()
	dies.kill()
	a.must("charge 0 %d", gib) // nobody is needed for that
	b.expect("refused", "charge 0 %d", 2*gib)
	h.start()
	eventually(t, "what died meanwhile is settled", func() bool { return h.pooled("llm") == 4*gib })
	if p := h.seePool("llm"); p.ProcessCount != 2 || strings.Join(p.Members, " ") != "a b" || p.State != api.Active {
		t.Fatalf("%+v", p)
	}
	b.must("charge 0 %d", 2*gib)
	b.expect("refused", "charge 0 1")
	a.kill()
	eventually(t, "a death after the restart is seen", func() bool { return h.pooled("llm") == 3*gib })
	c := h.member("c", "llm").uses()
	c.must("charge 0 %d", 3*gib)
	c.expect("refused", "charge 0 1")
	if p := h.seePool("idle"); len(p.Quotas) != 1 || p.Quotas[0].Percent != 25 {
		t.Fatalf("%+v", p)
	}
}

func TestAPoolOutlivesTheHostsBootAsWhatItWasMadeFor(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	h.pool("llm", on(gpu0, 6*gib))
	created := h.seePool("llm").Created
	h.stop()
	if err := os.Remove(h.runFile()); err != nil { // with what is in memory
		t.Fatal(err)
	}
	h.start()
	if p := h.seePool("llm"); p.State != api.Active || !p.Created.Equal(created) || len(p.Devices) != 1 || p.Devices[0].Limit != 6*gib || p.Devices[0].Used != 0 {
		t.Fatalf("%+v", p)
	}
	a := h.member("a", "llm").uses()
	a.must("charge 0 %d", 6*gib)
	a.expect("refused", "charge 0 1")
}

func TestAnOverwrittenPoolGivesNothingMore(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	a, b := h.member("a", "llm").uses(), h.member("b", "llm", on(api.AllDevices, gib)).uses()
	s, _ := h.session("s", on(api.AllDevices, gib))
	s.uses()
	a.expect("ok", "pokepool 144 %d", 100*gib) // the first device's limit
	eventually(t, "it is found", func() bool { return h.seePool("llm").State == api.Damaged })
	a.expect("refused", "charge 0 1")
	b.expect("refused", "charge 0 1")
	s.must("charge 0 %d", gib)
	if h.see("b").State != api.Active {
		t.Fatal("its members are")
	}
	if _, err := h.SetPool(context.Background(), "llm", api.PoolRequest{Quotas: []api.Quota{on("*", gib)}}); !errors.Is(err, api.ErrBadRequest) {
		t.Fatal(err)
	}
}

// Nobody is killed for it: which member's process it was nobody can tell.
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
	h.restart() // now it is known how large the devices are, and that there is another, which the pool's ledger has not
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
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for since := uint64(0); ; {
		events, err := h.Events(ctx, "", since, true)
		if err != nil {
			t.Fatal(err)
		}
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

// What is told as a sum nobody has said the limits of.
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

// Who asks for a pool does not know, if he gets no answer, whether it was made. He asks again.
func TestAPoolIsCreatedOnceHoweverOftenThatIsAsked(t *testing.T) {
	ctx := context.Background()
	h := newHost(t, &fakeTruth{})
	r := api.PoolRequest{Quotas: []api.Quota{on("0", 6*gib)}, Tenant: "team", TTL: time.Hour, Label: "team/claim"}
	if _, err := h.CreatePool(ctx, "llm", r); err != nil {
		t.Skip(err) // pools are a privileged enforcer's
	}
	created := h.seePool("llm")
	if _, err := h.SetPool(ctx, "llm", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 7*gib), on(gpu1, gib)}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p, err := h.CreatePool(ctx, "llm", r)
		if err != nil || !p.Created.Equal(created.Created) || len(p.Quotas) != 2 || p.Quotas[0].Bytes != 7*gib {
			t.Fatalf("%+v %v", p, err)
		}
		if p.Tenant != r.Tenant || p.TTL != r.TTL || p.Label != r.Label {
			t.Fatalf("%+v", p)
		}
		h.restart()
	}
	for what, change := range map[string]func(*api.PoolRequest){
		"quotas": func(r *api.PoolRequest) { r.Quotas = []api.Quota{on(gpu0, 7*gib), on(gpu1, gib)} },
		"tenant": func(r *api.PoolRequest) { r.Tenant = "" },
		"ttl":    func(r *api.PoolRequest) { r.TTL = 0 },
		"label":  func(r *api.PoolRequest) { r.Label = "team/other" },
	} {
		other := r
		change(&other)
		if _, err := h.CreatePool(ctx, "llm", other); !errors.Is(err, api.ErrExists) || !strings.Contains(err.Error(), "another "+what+":") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := h.SetPool(ctx, "llm", r); !errors.Is(err, api.ErrBadRequest) || !strings.Contains(err.Error(), "neither its tenant") {
		t.Error(err)
	}
	const many = 20
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			if _, err := h.CreatePool(ctx, "race", api.PoolRequest{Quotas: []api.Quota{on(gpu1, gib)}}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	h.given(gpu1, 2*gib, 78*gib)
}

func TestATenantsPoolIsWithinItsBounds(t *testing.T) {
	ctx := context.Background()
	h := newHost(t, &fakeTruth{})
	h.options.Admission.Tenants = map[string]api.Share{"team": {Bytes: 10 * gib}}
	h.restart()
	claim := func(name string, bytes uint64) error {
		_, err := h.CreatePool(ctx, name, api.PoolRequest{Quotas: []api.Quota{on(gpu0, bytes)}, Tenant: "team", TTL: time.Hour})
		return err
	}
	if err := claim("a", 6*gib); err != nil {
		t.Skip(err) // pools are a privileged enforcer's
	}
	if err := claim("b", 5*gib); !errors.Is(err, api.ErrQuotaExceeded) || !strings.Contains(err.Error(), "tenant team has 4GiB left of 10GiB (pool a has 6GiB)") {
		t.Fatal(err)
	}
	h.pool("operators", on(gpu0, 50*gib))
	h.restart()
	if err := claim("b", 5*gib); !errors.Is(err, api.ErrQuotaExceeded) {
		t.Fatalf("after a restart: %v", err)
	}
	register := func(id string, change func(*api.RegisterRequest)) (api.Slice, error) {
		p := start(t, "/nowhere", "")
		r := api.RegisterRequest{ID: id, Pools: api.PoolNames{"a"}, Session: true, PID: p.pid(), UID: uint32(os.Geteuid())}
		change(&r)
		reply, err := h.Register(ctx, r)
		return reply.Slice, err
	}
	if s, err := register("m", func(*api.RegisterRequest) {}); err != nil || s.Tenant != "team" || s.TTL != time.Hour {
		t.Fatalf("%+v %v", s, err)
	}
	if s, err := register("short", func(r *api.RegisterRequest) { r.TTL = time.Minute }); err != nil || s.TTL != time.Minute {
		t.Fatalf("%+v %v", s, err)
	}
	if s, err := register("long", func(r *api.RegisterRequest) { r.TTL = 2 * time.Hour }); err != nil || s.TTL != time.Hour {
		t.Fatalf("%+v %v", s, err)
	}
	if _, err := register("others", func(r *api.RegisterRequest) { r.Tenant = "other" }); !errors.Is(err, api.ErrBadRequest) || !strings.Contains(err.Error(), "pool a is tenant team's") {
		t.Fatal(err)
	}
}

// Whose end the enforcer has not noticed yet does not keep a pool.
func TestAPoolWhoseMembersHaveEndedIsDeleted(t *testing.T) {
	for range 20 {
		h := newHost(t, nil)
		h.pool("llm", on(api.AllDevices, 6*gib))
		h.member("a", "llm").kill()
		if _, err := h.DeletePool(context.Background(), "llm"); err != nil {
			t.Fatal(err)
		}
		h.stop()
	}
}

// Many processes of several members race for a pool's bytes, and die: what is left is what the living hold.
func TestMembersRaceForThePoolsLastBytesAndDie(t *testing.T) {
	h := newHost(t, nil)
	const limit = 40 // as many bytes: each process holds up to 7 at one time
	h.pool("tight", on(api.AllDevices, limit))
	var wait sync.WaitGroup
	for i := range 6 {
		p := h.member(fmt.Sprintf("m%d", i), "tight", on(api.AllDevices, 30)).uses()
		if i%2 == 0 {
			wait.Go(func() {
				for range 20 {
					p.must("hammer 0 20000")
				}
			})
		} else {
			p.tell("hammer 0 100000000")
			wait.Go(func() {
				time.Sleep(time.Duration(50+40*i) * time.Millisecond)
				p.kill()
			})
		}
	}
	wait.Wait()
	eventually(t, "nothing is held any more", func() bool { return h.pooled("tight") == 0 })
	p := h.seePool("tight")
	if p.State != api.Active || p.Devices[0].Peak > limit || p.Devices[0].Peak < limit-6 {
		t.Fatalf("%+v", p)
	}
}

// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

func TestAPoolsQuotaIsChangedWhileItIsUsed(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	h.pool("llm", on(api.AllDevices, 6*gib))
	a := h.member("a", "llm").uses()
	a.must("charge 0 %d", 6*gib)
	a.expect("refused", "charge 0 1")
	set := func(quotas ...api.Quota) api.Pool {
		t.Helper()
		return must.Get(h.SetPool(context.Background(), "llm", api.PoolRequest{Quotas: quotas}))(t)
	}
	if p := set(on("0", 8*gib)); len(p.Quotas) != 2 || p.Devices[0].Limit != 8*gib || p.Devices[1].Limit != 6*gib {
		t.Fatalf("%+v", p)
	}
	a.must("charge 0 %d", 2*gib)
	a.expect("refused", "charge 0 1")
	set(on(gpu0, gib))
	set(on(gpu0, gib))
	a.expect("refused", "charge 0 1")
	a.must("release 0 %d", 7*gib)
	a.expect("refused", "charge 0 1")
	a.must("release 0 1")
	a.must("charge 0 1")
	expect.ErrorIs(t, must.Err(h.SetPool(context.Background(), "other", api.PoolRequest{Quotas: []api.Quota{on("*", gib)}})), api.ErrNotFound)
	var kinds []api.EventKind
	var figures []uint64
	for _, e := range must.Get(h.Events(context.Background(), "", 0, false))(t) {
		if e.Pool == "llm" && e.Kind != api.EventRefused { // refusals are reported at the next check
			kinds = append(kinds, e.Kind)
			if e.Kind == api.EventPoolChanged {
				figures = append(figures, *e.Limit, *e.Used, *e.Overhead)
			}
		}
	}
	if want := "[pool_created pool_created pool_changed pool_changed]"; fmt.Sprint(kinds) != want { // there are two devices
		t.Fatalf("%v, want %s", kinds, want)
	}
	expect.EqualSlices(t, figures, []uint64{8 * gib, 6 * gib, 0, gib, 8 * gib, 0})
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
	must.Equal(t, must.Get(h.Devices(context.Background()))(t)[1].Quotas, 2*gib)
	must.Equal(t, a.must("device %s %d", hex1, 80*gib), 1, "index")
	a.must("charge 1 %d", 2*gib)
	a.expect("refused", "charge 1 1")
	h.restart()
	if p := h.seePool("llm"); p.State != api.Active || len(p.Devices) != 2 || p.Devices[1].Used != 2*gib || p.Devices[1].Limit != 2*gib {
		t.Fatalf("%+v", p)
	}
}

// Only the pool's quota is granted: its members' quotas are parts of it.
func TestPoolCountsOnADeviceInsteadOfItsMembers(t *testing.T) {
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
		devices := must.Get(h.Devices(context.Background()))(t)
		return devices[0].Quotas
	}
	set := func(bytes uint64) {
		t.Helper()
		must.Get(h.SetPool(context.Background(), "llm", api.PoolRequest{Quotas: []api.Quota{on(gpu0, bytes)}}))(t)
	}
	if set(10 * gib); given() != 70*gib {
		t.Fatalf("%d are given: what members hold beyond the new quota is promised to others", given())
	}
	used.must("release 0 %d", 45*gib)
	eventually(t, "it counts less once it is less", func() bool { return given() == 30*gib })
	set(60 * gib)
	expect.ErrorIs(t, must.Err(h.SetPool(context.Background(), "llm", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 61*gib)}})), api.ErrQuotaExceeded)
	if p := h.seePool("llm"); p.Quotas[0].Bytes != 60*gib || p.Devices[0].Limit != 60*gib {
		t.Fatalf("what was refused changed something: %+v", p)
	}
	p := start(t, "/nowhere", "")
	_, err = h.Register(context.Background(), api.RegisterRequest{ID: "x", Session: true, PID: p.pid(), Pools: api.PoolNames{"nobody"}, Quotas: []api.Quota{on(gpu0, gib)}})
	expect.ErrorSays(t, err, api.ErrBadRequest, "there is no pool nobody")
	_, err = h.Register(context.Background(), api.RegisterRequest{ID: "x", Session: true, PID: p.pid(), Pools: api.PoolNames{"llm"}, Quotas: []api.Quota{on(gpu1, gib)}})
	expect.ErrorSays(t, err, api.ErrNoDevice, "where pool llm has none")
	_, err = h.Register(context.Background(), api.RegisterRequest{ID: "x", Session: true, PID: p.pid(), Pools: api.PoolNames{"llm"}, Mode: api.Record})
	expect.ErrorSays(t, err, api.ErrBadRequest, "only records")
}

func TestPoolSurvivesARestart(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 6*gib))
	h.pool("idle", api.Quota{Device: api.AllDevices, Percent: 25})
	a, b, dies := h.member("a", "llm", on(api.AllDevices, 4*gib)).uses(), h.member("b", "llm").uses(), h.member("dies", "llm").uses()
	a.must("charge 0 %d", 2*gib)
	b.must("charge 0 %d", gib)
	dies.must("charge 0 %d", gib)
	h.stop()
	dies.kill()
	a.must("charge 0 %d", gib) // needs no enforcer
	b.expect("refused", "charge 0 %d", 2*gib)
	h.start()
	eventually(t, "lanes of processes that exited are settled", func() bool { return h.pooled("llm") == 4*gib })
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

func TestPoolSurvivesARebootWithItsQuotas(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	h.pool("llm", on(gpu0, 6*gib))
	created := h.seePool("llm").Created
	h.stop()
	if err := os.RemoveAll(h.records()); err != nil { // with the pools in memory
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

// A client without an answer cannot know whether its pool was created, and asks again.
func TestCreatePoolIsIdempotent(t *testing.T) {
	needs.Root(t)
	ctx := context.Background()
	h := newHost(t, &fakeTruth{})
	r := api.PoolRequest{Quotas: []api.Quota{on("0", 6*gib)}, Tenant: "team", TTL: time.Hour, Label: "team/claim"}
	must.Get(h.CreatePool(ctx, "llm", r))(t)
	created := h.seePool("llm")
	must.Get(h.SetPool(ctx, "llm", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 7*gib), on(gpu1, gib)}}))(t)
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
		"quotas":  func(r *api.PoolRequest) { r.Quotas = []api.Quota{on(gpu0, 7*gib), on(gpu1, gib)} },
		"tenant":  func(r *api.PoolRequest) { r.Tenant = "" },
		"ttl":     func(r *api.PoolRequest) { r.TTL = 0 },
		"label":   func(r *api.PoolRequest) { r.Label = "team/other" },
		"elastic": func(r *api.PoolRequest) { r.Elastic = true },
	} {
		other := r
		change(&other)
		expect.ErrorSays(t, must.Err(h.CreatePool(ctx, "llm", other)), api.ErrExists, "differs in "+what+":", what)
	}
	expect.ErrorSays(t, must.Err(h.SetPool(ctx, "llm", r)), api.ErrBadRequest, "nothing else about it")
	const many = 20
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			expect.NoError(t, must.Err(h.CreatePool(ctx, "race", api.PoolRequest{Quotas: []api.Quota{on(gpu1, gib)}})))
		})
	}
	all.Wait()
	h.wantGranted(gpu1, 2*gib, 78*gib)
}

func TestATenantsPoolIsWithinItsBounds(t *testing.T) {
	needs.Root(t)
	ctx := context.Background()
	h := newHost(t, &fakeTruth{})
	h.with(func(o *enforcer.Options) { o.Admission.Tenants = map[string]api.Share{"team": {Bytes: 10 * gib}} })
	claim := func(name string, bytes uint64) error {
		return must.Err(h.CreatePool(ctx, name, api.PoolRequest{Quotas: []api.Quota{on(gpu0, bytes)}, Tenant: "team", TTL: time.Hour}))
	}
	must.Do(t, claim("a", 6*gib))
	expect.ErrorSays(t, claim("b", 5*gib), api.ErrQuotaExceeded, "tenant team has 4GiB left of 10GiB (pool a has 6GiB)")
	h.pool("operators", on(gpu0, 50*gib))
	h.restart()
	expect.ErrorIs(t, claim("b", 5*gib), api.ErrQuotaExceeded, "after a restart")
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
	must.Equal(t, must.Get(register("short", func(r *api.RegisterRequest) { r.TTL = time.Minute }))(t).TTL, time.Minute)
	must.Equal(t, must.Get(register("long", func(r *api.RegisterRequest) { r.TTL = 2 * time.Hour }))(t).TTL, time.Hour)
	expect.ErrorSays(t, must.Err(register("others", func(r *api.RegisterRequest) { r.Tenant = "other" })), api.ErrBadRequest, "pool a is tenant team's")
}

// A member that has exited does not keep a pool, even before the enforcer notices.
func TestAPoolWhoseMembersHaveEndedIsDeleted(t *testing.T) {
	for range 20 {
		h := newHost(t, nil)
		h.pool("llm", on(api.AllDevices, 6*gib))
		h.member("a", "llm").kill()
		must.Get(h.DeletePool(context.Background(), "llm"))(t)
		h.stop()
	}
}

// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// newOffice is a host of two devices of 80 GiB with these limits.
func newOffice(t *testing.T, rules admission.Limits) *host {
	t.Helper()
	h := newHost(t, &fakeTruth{})
	h.with(func(o *enforcer.Options) { o.Admission = rules })
	return h
}

func (h *host) ask(id string, change func(*api.RegisterRequest), quotas ...api.Quota) (*proc, error) {
	h.t.Helper()
	p := start(h.t, h.t.TempDir(), "")
	r := api.RegisterRequest{ID: id, Session: true, PID: p.pid(), Quotas: quotas}
	if change != nil {
		change(&r)
	}
	_, err := h.Register(context.Background(), r)
	return p, err
}

func (h *host) give(id string, quotas ...api.Quota) *proc {
	h.t.Helper()
	return must.Get(h.ask(id, nil, quotas...))(h.t)
}

func (h *host) device(uuid string) api.Device {
	h.t.Helper()
	for _, d := range must.Get(h.Devices(context.Background()))(h.t) {
		if d.UUID == uuid {
			return d
		}
	}
	h.t.Fatalf("there is no device %s", uuid)
	return api.Device{}
}

func (h *host) wantGranted(uuid string, given, free uint64) {
	h.t.Helper()
	if d := h.device(uuid); d.Quotas != given || d.Free == nil || *d.Free != free {
		h.t.Fatalf("device %s: %d bytes are granted and %v free, want %d and %d", uuid, d.Quotas, d.Free, given, free)
	}
}

func refusal(t *testing.T, err error, says ...string) *api.Error {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeQuotaExceeded {
		t.Fatalf("%v is not the refusal of a quota", err)
	}
	for _, part := range says {
		expect.Contains(t, e.Message, part)
	}
	expect.True(t, !strings.Contains(e.Message, "\n"), e.Message, "has several lines")
	return e
}

func TestQuotasAddUpToNoMoreThanTheDeviceHas(t *testing.T) {
	h := newOffice(t, admission.Limits{})
	h.give("a", on(gpu0, 40*gib))
	h.give("b", on(gpu0, 30*gib))
	_, err := h.ask("c", nil, on(gpu0, 10*gib+1))
	e := refusal(t, err, "c asks for", "device 0 ("+gpu0+")", "asks for 10737418241B", "10737418240B are left of the 85899345920B", "(a has 40GiB, b has 30GiB)", "ask for less")
	if e.Device != gpu0 || e.Requested != 10*gib+1 || e.Limit != 80*gib || e.Current != 70*gib {
		t.Errorf("%+v", e)
	}
	h.wantGranted(gpu0, 70*gib, 10*gib)
	h.give("c", on(gpu0, 10*gib))
	h.wantGranted(gpu0, 80*gib, 0)
	_, err = h.ask("d", nil, on("0", 1))
	refusal(t, err, "0B are left")
	must.Get(h.Release(t.Context(), "a", 0, true))(t)
	h.wantGranted(gpu0, 40*gib, 40*gib)
	h.give("d", api.Quota{Device: gpu0, Percent: 50})
	expect.Equal(t, h.device(gpu0).Slices, 3, "slices")
}

func TestRecordModeSliceIsGrantedNothing(t *testing.T) {
	h := newOffice(t, admission.Limits{MaxVRAM: api.Share{Bytes: gib}})
	for _, id := range []string{"a", "b"} {
		must.Get(h.ask(id, func(r *api.RegisterRequest) { r.Mode = api.Record }, on(gpu0, 80*gib)))(t)
	}
	h.wantGranted(gpu0, 0, 80*gib)
}

func TestWithoutDriverTruthABoundStillHolds(t *testing.T) {
	h := newHost(t, nil)
	h.with(func(o *enforcer.Options) { o.Admission = admission.Limits{MaxVRAM: api.Share{Bytes: 4 * gib}} })
	_, err := h.ask("a", nil, on(gpu0, 4*gib+1))
	refusal(t, err, "(max_vram)")
	_, err = h.ask("a", nil, api.Quota{Device: gpu0, Percent: 1})
	refusal(t, err, "without NVML they cannot be compared")
	h.give("a", on(gpu0, 4*gib))
	for i := range 30 { // without a size nothing is refused
		h.give(fmt.Sprint("s", i), on(gpu0, 4*gib))
	}
	must.Len(t, must.Get(h.Devices(t.Context()))(t), 0)
}

func TestFullDeviceGrantsNothingOnFirstUse(t *testing.T) {
	h := newOffice(t, admission.Limits{})
	h.give("a", on(gpu1, 78*gib))
	link := filepath.Join(t.TempDir(), "link")
	b := start(t, link, "")
	reply := must.Get(h.sees("b", b, []string{"0"}, on(api.AllDevices, 4*gib)))(t)
	relink(t, reply, link)
	b.uses()
	index := b.must("device %s %d", hex1, 80*gib)
	b.must("charge 0 %d", 4*gib)
	b.expect("refused", "charge %d 1", index)
	check := func() {
		t.Helper()
		s := h.see("b")
		if len(s.Devices) != 2 || s.State != api.Active || s.Devices[1].Device != gpu1 || s.Devices[1].Limit != 0 || s.Devices[0].Limit != 4*gib {
			t.Fatalf("%+v", s)
		}
		h.wantGranted(gpu1, 78*gib, 2*gib)
	}
	check()
	events, err := h.Events(t.Context(), "", 0, false)
	if err != nil || !slices.ContainsFunc(events, func(e api.Event) bool {
		return e.Kind == api.EventDenied && e.Slice == "b" && e.Device == gpu1 && e.Requested == 4*gib &&
			strings.Contains(e.Cause, "2GiB are left of the 80GiB")
	}) {
		t.Errorf("no such event: %+v, %v", events, err)
	}
	h.restart()
	check()
	b.expect("refused", "charge %d 1", index)
}

func TestSlicesBeyondALoweredCapacityStayAndNoneIsAdmitted(t *testing.T) {
	h := newOffice(t, admission.Limits{Overcommit: 2000})
	p, _ := h.session("a", on(gpu0, 80*gib))
	p.uses()
	q := must.Get(h.ask("b", func(r *api.RegisterRequest) { r.Tenant = "physics" }, on(gpu0, 60*gib)))(t)
	h.stop()
	var log testhost.Output
	h.options.Admission = admission.Limits{Tenants: map[string]api.Share{"physics": {Bytes: gib}}}
	h.options.Log = slog.New(slog.NewTextHandler(&log, nil))
	h.start()
	p.must("charge 0 %d", 80*gib)
	h.wantGranted(gpu0, 140*gib, 0)
	_, err := h.ask("c", nil, on(gpu0, 1))
	refusal(t, err, "0B are left of the 80GiB")
	q.kill()
	eventually(t, "b is gone", func() bool { return h.device(gpu0).Quotas == 80*gib })
	_, err = h.ask("c", nil, on(gpu0, 1))
	refusal(t, err, "a has 80GiB")
	h.stop()
	for _, line := range []string{"device overcommitted:", "device overcommitted to a tenant:"} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("the log says %d times that %s:\n%s", n, line, log.String())
		}
	}
	h.start()
}

func TestReleasedSlicesMemoryCountsUntilItsProcessesExit(t *testing.T) {
	cgroup := newCgroup(t)
	h := newOffice(t, admission.Limits{})
	link := filepath.Join(t.TempDir(), "link")
	init := start(t, link, cgroup)
	reply := must.Get(h.Register(t.Context(), api.RegisterRequest{ID: "c", Container: "c", PID: init.pid(), Quotas: []api.Quota{on(api.AllDevices, 60*gib)}}))(t)
	relink(t, reply, link)
	init.uses()
	init.must("charge 0 %d", 10*gib)
	must.Get(h.Release(t.Context(), "c", 0, true))(t)
	h.wantGranted(gpu0, 10*gib, 70*gib)
	h.wantGranted(gpu1, 0, 80*gib)
	_, err := h.ask("d", nil, on(gpu0, 71*gib))
	refusal(t, err, "c has 10GiB")
	h.restart()
	h.wantGranted(gpu0, 10*gib, 70*gib)
	init.kill()
	eventually(t, "all is given back", func() bool { return h.device(gpu0).Quotas == 0 })
	h.give("d", on(gpu0, 80*gib))
}

func TestLoweredQuotaCountsForTheMemoryInUse(t *testing.T) {
	h := newOffice(t, admission.Limits{})
	p, _ := h.session("a", on(gpu0, 60*gib))
	p.uses()
	p.must("charge 0 %d", 50*gib)
	must.Get(h.Change(t.Context(), "a", api.ChangeRequest{Quotas: []api.Quota{on(gpu0, 10*gib)}}))(t)
	h.wantGranted(gpu0, 50*gib, 30*gib)
	_, err := h.ask("b", nil, on(gpu0, 31*gib))
	refusal(t, err, "30GiB are left", "a has 50GiB")
	p.must("release 0 %d", 20*gib)
	eventually(t, "released memory can be granted", func() bool { return h.device(gpu0).Quotas == 30*gib })
	p.must("release 0 %d", 30*gib)
	eventually(t, "its quota counts again", func() bool { return h.device(gpu0).Quotas == 10*gib })
	h.give("b", on(gpu0, 70*gib))
	_, err = h.Change(t.Context(), "a", api.ChangeRequest{Quotas: []api.Quota{on(gpu0, 10*gib+1)}})
	refusal(t, err, "10737418240B are left", "b has 70GiB")
	expect.Equal(t, h.see("a").Devices[0].Limit, 10*gib, "limit")
}

func TestMemoryOfExitedProcessesRefusesNoRequest(t *testing.T) {
	h := newOffice(t, admission.Limits{})
	for i := range 20 {
		h.give(fmt.Sprint("s", i), on(gpu0, 80*gib)).kill()
	}
}

func TestConcurrentRequestsGetTheLastBytesOnce(t *testing.T) {
	h := newOffice(t, admission.Limits{})
	const askers, each = 32, 30 * gib // two fit on each device
	p := make([]*proc, askers)
	for i := range p {
		p[i] = start(t, t.TempDir(), "")
	}
	for round := range 3 {
		var ready, done sync.WaitGroup
		ready.Add(1)
		won := make([]bool, askers)
		for i := range askers {
			done.Go(func() {
				ready.Wait()
				_, err := h.Register(context.Background(), api.RegisterRequest{
					ID: fmt.Sprint("s", i), Session: true, PID: p[i].pid(), Quotas: []api.Quota{on(gpu0, each), on(gpu1, each-uint64(i))},
				})
				won[i] = err == nil
				if err != nil && !errors.Is(err, api.ErrQuotaExceeded) {
					t.Error(err)
				}
			})
		}
		ready.Done()
		done.Wait()
		var winners int
		for i, w := range won {
			if w {
				winners++
				expect.NoError(t, must.Err(h.Release(context.Background(), fmt.Sprint("s", i), 0, true)))
			}
		}
		expect.Equal(t, winners, 2, "round", round, "slices of 30 GiB on 80 GiB")
		h.wantGranted(gpu0, 0, 80*gib)
		h.wantGranted(gpu1, 0, 80*gib)
	}
}

// relink points link at the slice of reply.
func relink(t *testing.T, reply api.RegisterReply, link string) {
	t.Helper()
	_ = os.Remove(link)
	lead(t, link, reply)
}

// A limit was lowered below the bytes in use. They stay granted, also if another device's record cannot be written.
func TestFailedStoreOfADeviceKeepsGrantedBytes(t *testing.T) {
	given := func(t *testing.T, h *host, want uint64) {
		t.Helper()
		must.Equal(t, h.device(gpu0).Quotas, want, "bytes of the device are granted")
	}
	fails := func(t *testing.T, h *host, p *proc) {
		t.Helper()
		given(t, h, 30*gib)
		must.Do(t, h.LoseDisk())
		if answer := p.ask("device %s %d", hex1, 80*gib); !strings.HasPrefix(answer, "status ") {
			t.Fatalf("a device that is not stored was added: %s", answer)
		}
		given(t, h, 30*gib)
	}
	t.Run("slice", func(t *testing.T) {
		h := newHost(t, &fakeTruth{})
		link := filepath.Join(h.options.RunDir, "to-s")
		p := start(t, link, "")
		reply := must.Get(h.sees("s", p, []string{"0"}, on(api.AllDevices, 40*gib)))(t)
		lead(t, link, reply)
		p.must("attach")
		p.must("charge 0 %d", 30*gib)
		must.Get(h.set("s", on(api.AllDevices, 10*gib)))(t)
		fails(t, h, p)
	})
	t.Run("pool", func(t *testing.T) {
		h := newHost(t, nil)
		h.pool("llm", on(api.AllDevices, 40*gib))
		p := h.member("s", "llm")
		p.uses()
		p.must("charge 0 %d", 30*gib)
		must.Get(h.SetPool(t.Context(), "llm", api.PoolRequest{Quotas: []api.Quota{on(api.AllDevices, 10*gib)}}))(t)
		fails(t, h, p)
	})
}

// A program's first allocation on a device is a context.
func TestQuotaBelowAContextIsRefused(t *testing.T) {
	for _, c := range []struct {
		name              string
		shows             uint64 // observed size of a first context
		small, sufficient uint64
	}{
		{name: "below what a context costs", shows: 400 * mib, small: 400*mib - 1, sufficient: 400 * mib},
		{name: "what a process shows counts up to what the operator expects", shows: 3 * gib, small: 512*mib - 1, sufficient: 512 * mib},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := context.Background()
			h, truth := newTruthHost(t)
			h.with(func(o *enforcer.Options) { o.ContextBytes = 512 * mib })
			if _, err := h.CreatePool(ctx, "early", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 100)}}); err != nil {
				t.Fatalf("what a context costs is not known yet: %v", err)
			}
			p, _ := h.session("first", on(gpu0, 4*gib))
			p.must("attach")
			asked := p.must("cost 0")
			p.must("charge 0 %d", asked)
			p.must("context 0 %d", asked)
			truth.set(gpu0, p.pid(), c.shows)
			p.must("truth 0")
			eventually(t, "the context cost is learned", func() bool { return h.device(gpu0).Context == c.shows })
			p.kill()
			eventually(t, "the process has ended", func() bool { _, err := h.Slice(ctx, "first"); return err != nil })
			h.give("first", on(gpu0, 4*gib))
			refused := func(what string, err error) {
				t.Helper()
				expect.ErrorContains(t, err, "on device 0 ("+gpu0+"), where a CUDA context alone takes "+api.FormatSize(c.shows), what)
			}
			pool := func(do func(context.Context, string, api.PoolRequest) (api.Pool, error), name string, bytes uint64) error {
				return must.Err(do(ctx, name, api.PoolRequest{Quotas: []api.Quota{on(gpu0, bytes)}}))
			}
			register := func(id string, bytes uint64, mode api.Mode) error {
				return must.Err(h.ask(id, func(r *api.RegisterRequest) { r.Mode = mode }, on(gpu0, bytes)))
			}
			refused("register", register("a", c.small, api.Enforce))
			_, err := h.set("first", on(gpu0, c.small))
			refused("set", err)
			refused("create a pool", pool(h.CreatePool, "p", c.small))
			expect.NoError(t, must.Err(h.set("first", on(gpu0, c.sufficient))))
			expect.NoError(t, pool(h.CreatePool, "p", c.sufficient))
			refused("set a pool", pool(h.SetPool, "p", c.small))
			expect.NoError(t, register("b", c.sufficient, api.Enforce))
			expect.NoError(t, register("c", c.small, api.Record), "nothing is refused to a slice that records")
			h.stop()
			h.start()
			if d := h.see("first").Devices; len(d) == 0 || d[0].Limit != c.sufficient {
				t.Errorf("%+v", d)
			}
		})
	}
}

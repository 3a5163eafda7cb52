// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// Statuses of attach.h, and of testdata/client.c.
const (
	statusInternal    = "status 7"
	statusAway        = "status 9"
	statusUnreachable = "status 100"
)

func elastics(t *testing.T, rules enforcer.Elastic) (*host, *fakeTruth, *fakeMover) {
	t.Helper()
	h, truth, f := movers(t)
	h.with(func(o *enforcer.Options) { o.Elastic = rules })
	return h, truth, f
}

var quick = enforcer.Elastic{Remap: true, Overcommit: 4000, MinResident: 100 * time.Millisecond, Quantum: time.Hour}

func (h *host) elastic(id string, quota uint64, priority int) *proc {
	h.t.Helper()
	return must.Get(h.tryElastic(id, quota, priority))(h.t)
}

func (h *host) tryElastic(id string, quota uint64, priority int) (*proc, error) {
	h.t.Helper()
	return h.tryElasticOf(id, "", quota, priority)
}

func (h *host) tryElasticOf(id, tenant string, quota uint64, priority int) (*proc, error) {
	h.t.Helper()
	link := filepath.Join(h.options.RunDir, "to-"+id)
	p := start(h.t, link, "")
	reply, err := h.Register(context.Background(), api.RegisterRequest{
		ID: id, Quotas: []api.Quota{on(gpu0, quota)}, Session: true, PID: p.pid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
		Elastic: true, Priority: priority, Tenant: tenant,
	})
	if err == nil {
		lead(h.t, link, reply)
	}
	return p, err
}

// returns has a process wait at the gate until its slice is back.
func (p *proc) returns() *proc {
	p.t.Helper()
	said := ""
	await.That(p.t, "its slice returns", func() bool { said = p.ask("return"); return said != statusAway })
	must.Equal(p.t, said, "ok 0", "its return is answered")
	return p
}

func (p *proc) works(truth *fakeTruth, bytes uint64) *proc {
	p.t.Helper()
	p.returns().uses()
	p.must("gate")
	p.takes(truth, bytes)
	return p
}

func (h *host) becomes(id string, state api.State) (s api.Slice) {
	h.t.Helper()
	eventually(h.t, fmt.Sprintf("%s becomes %s", id, state), func() bool { s = h.see(id); return s.State == state })
	return s
}

// idle waits until slices have been idle for long enough to be evicted.
func (h *host) idle(ids ...string) {
	h.t.Helper()
	for _, id := range ids {
		eventually(h.t, id+" is idle", func() bool { return h.Idle(id) >= quick.MinResident })
	}
}

func TestElasticSlicesTakeTurnsOnADevice(t *testing.T) {
	h, truth, f := elastics(t, quick)
	a, b, c := h.elastic("a", 45*gib, 0), h.elastic("b", 45*gib, 0), h.elastic("c", 45*gib, 0)
	if s := h.see("a"); s.State != api.Evicted || s.Elastic == nil || h.granted(t) != 0 || !strings.HasPrefix(s.Reason, "it holds no memory") {
		t.Fatalf("it begins as %+v, %d bytes given", s, h.granted(t))
	}
	a.works(truth, 40*gib)
	if s := h.see("a"); s.State != api.Active || h.granted(t) != 45*gib {
		t.Fatalf("%+v, %d given", s, h.granted(t))
	}
	b.works(truth, 40*gib)
	s := h.becomes("a", api.Evicted)
	if d := s.Devices[0]; d.Used != 0 || d.Suspended != 40*gib || s.Elastic.Evictions != 1 || h.granted(t) != 45*gib || !strings.HasPrefix(s.Reason, "its memory is in host memory") {
		t.Fatalf("%+v %+v, %d given", s, s.Elastic, h.granted(t))
	}
	expect.Equal(t, f.states()[a.pid()], checkpoint.Checkpointed)
	c.works(truth, 40*gib)
	h.becomes("b", api.Evicted)
	a.expect("away", "enter") // a wish to return, too: c asked before
	a.returns()
	if s := h.see("a"); s.Devices[0].Used != 40*gib || s.Elastic.Waited == 0 || s.Elastic.Waits != nil {
		t.Errorf("%+v %+v", s, s.Elastic)
	}
	h.becomes("c", api.Evicted)
	a.expect("ok 1", "enter")
	a.must("leave")
	a.must("charge 0 %d", 5*gib)
	a.expect("refused", "charge 0 1")
	eventually(t, "the events have all moves but those of a slice without memory", func() bool {
		var told []string
		for _, e := range h.events() {
			if e.Kind == api.EventEvicted || e.Kind == api.EventReturned {
				told = append(told, string(e.Kind)+" "+e.Slice)
			}
		}
		return strings.Join(told, ", ") == "returned a, evicted a, returned b, evicted b, returned c, evicted c, returned a"
	})
}

func TestBusySliceIsNotEvicted(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	a, b := h.elastic("a", 60*gib, 0), h.elastic("b", 60*gib, 0)
	a.works(truth, 40*gib)
	a.expect("ok 1", "enter") // a call that does not return
	await.That(t, "the holder of the room is named", func() bool {
		b.expect(statusAway, "return")
		s := h.see("b")
		return s.State == api.Evicted && s.Elastic.Waits != nil && strings.Contains(s.Elastic.Obstacle, "a has 60GiB")
	})
	if s := h.see("a"); s.State != api.Active || s.Elastic.Evictions != 0 {
		t.Fatalf("%+v", s)
	}
	a.must("leave")
	b.returns()
	h.becomes("a", api.Evicted)
}

func TestBusySlicesOfOnePriorityTakeTurns(t *testing.T) {
	o := quick
	o.MinResident, o.Quantum = 50*time.Millisecond, 500*time.Millisecond
	h, truth, _ := elastics(t, o)
	a, b, low := h.elastic("a", 60*gib, 0), h.elastic("b", 60*gib, 0), h.elastic("low", 60*gib, -1)
	begun := time.Now()
	a.works(truth, 40*gib)
	a.expect("ok 1", "enter") // it is busy, also if the test stands still
	low.expect(statusAway, "return")
	must.Equal(t, h.see("a").State, api.Active, "it goes for one of lower priority")
	done := make(chan struct{})
	go func() { // after the quantum, one call after another until the gate is shut
		defer close(done)
		time.Sleep(time.Until(begun.Add(o.Quantum)))
		for a.ask("leave"); a.ask("enter") != "away"; {
			a.ask("leave")
		}
	}()
	b.returns()
	expect.True(t, time.Since(begun) >= o.Quantum, "it went within its quantum")
	<-done
}

// A program may wait in a call for its kernels, or to stay on the device.
func TestHungCallDoesNotPreventEviction(t *testing.T) {
	o := quick
	o.Quantum = 300 * time.Millisecond
	h, truth, _ := elastics(t, o)
	a, b := h.elastic("a", 60*gib, 0), h.elastic("b", 60*gib, 0)
	a.works(truth, 40*gib)
	a.expect("ok 1", "enter")
	b.works(truth, 40*gib)
	b.expect("ok 1", "enter")
	// Its call still waits in the driver, and the slice returns without a request, also after a restart.
	h.restart()
	h.becomes("a", api.Active)
	h.becomes("b", api.Evicted)
	h.becomes("b", api.Active)
}

// A process inside a driver call cannot ask for its slice's return.
func TestDriverCallDuringAMoveCountsAsActivity(t *testing.T) {
	o := quick
	o.Quantum = 300 * time.Millisecond
	h, truth, f := elastics(t, o)
	a, b := h.elastic("a", 60*gib, 0), h.elastic("b", 60*gib, 0)
	a.works(truth, 40*gib)
	a.expect("ok 1", "enter")
	f.afterEach(func(done checkpoint.Action) {
		if done == checkpoint.Checkpoint { // a is evicted, and returns at once
			f.fails = map[checkpoint.Action]map[int]int{checkpoint.Unlock: {a.pid(): 999}, checkpoint.Checkpoint: {a.pid(): 999}}
		}
	})
	b.works(truth, gib)
	h.becomes("a", api.Returning)
	time.Sleep(1500 * time.Millisecond)
	f.set(func() { f.fails, f.then = make(map[checkpoint.Action]map[int]int), nil })
	h.becomes("a", api.Active)
}

func TestExitedProcessNoLongerWaits(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	a := h.elastic("a", 60*gib, 0).works(truth, 40*gib)
	a.expect("ok 1", "enter")
	b := h.elastic("b", 60*gib, 0)
	await.That(t, "it waits", func() bool { b.expect(statusAway, "return"); return h.see("b").Elastic.Waits != nil })
	eventually(t, "it waits no more", func() bool { return h.see("b").Elastic.Waits == nil })
}

func TestALargeSliceGetsItsTurnBesideSmallOnes(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	var small []*proc
	for _, id := range []string{"s1", "s2", "s3"} {
		small = append(small, h.elastic(id, 40*gib, 0).works(truth, gib))
	}
	h.with(func(o *enforcer.Options) { o.Elastic.Quantum = 300 * time.Millisecond })
	for _, p := range small { // in a call that does not end it is never idle, and always wants to return: another waits for its room
		await.That(t, "it is in a call", func() bool { return p.ask("enter") == "ok 1" || p.returns().ask("enter") == "ok 1" })
	}
	h.elastic("big", 80*gib, 0).returns()
}

func TestWaitersReturnByPriority(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	a, b, c := h.elastic("a", 60*gib, 0).works(truth, gib), h.elastic("b", 60*gib, 0), h.elastic("c", 60*gib, 1)
	a.expect("ok 1", "enter")
	b.expect(statusAway, "return")
	c.expect(statusAway, "return") // b has waited for longer
	a.must("leave")
	c.returns()
	b.returns()
	eventually(t, "they have returned in this order", func() bool {
		var returned []string
		for _, e := range h.told(api.EventReturned) {
			returned = append(returned, e.Slice)
		}
		return strings.Join(returned, " ") == "a c b"
	})
}

// Another operation on the slice may be under way.
func TestAnEvictionWaitsForTheSlicesTurn(t *testing.T) {
	h, truth, f := elastics(t, quick)
	a, b := h.elastic("a", 60*gib, 0).works(truth, gib), h.elastic("b", 60*gib, 0)
	release := h.HoldTurns("a")
	b.expect(statusAway, "return")
	await.Quiet(t, "a is moved", 3*quick.MinResident, func() bool { return f.states()[a.pid()] != checkpoint.Running })
	release()
	b.returns()
	h.becomes("a", api.Evicted)
}

func TestTheLowestPriorityGoesFirst(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	high, low := h.elastic("high", 30*gib, 5), h.elastic("low", 30*gib, -5)
	high.works(truth, gib)
	low.works(truth, gib)
	h.idle("high", "low")
	h.elastic("third", 30*gib, 0).works(truth, gib)
	h.becomes("low", api.Evicted)
	if s := h.see("high"); s.State != api.Active { // although it has been idle for longer
		t.Errorf("%+v", s)
	}
}

func TestRegistrationEvictsIdleElasticSlices(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	a := h.elastic("a", 60*gib, 1000)
	a.works(truth, 40*gib)
	h.idle("a")
	link := filepath.Join(h.options.RunDir, "to-ordinary")
	p := start(t, link, "")
	r := api.RegisterRequest{ID: "ordinary", Quotas: []api.Quota{on(gpu0, 50*gib)}, Session: true, PID: p.pid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	_, err := h.Register(context.Background(), r)
	refusedWith(t, err, api.CodeBusy, "ordinary asks for 50GiB", "idle elastic slices are being evicted for it: try again")
	h.becomes("a", api.Evicted)
	reply := must.Get(h.Register(context.Background(), r))(t)
	lead(t, link, reply)
	p.uses().takes(truth, 50*gib)
	expect.Equal(t, h.see("a").State, api.Evicted, "state")
	a.expect(statusAway, "return")
	truth.set(gpu0, p.pid(), 0)
	p.kill()
	a.returns()
}

// Creating or enlarging a pool or slice evicts an idle slice when that makes enough room.
func TestRaisedQuotaEvictsIdleSlices(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	for _, id := range []string{"a", "b", "c"} {
		h.elastic(id, 20*gib, 0).works(truth, 10*gib)
	}
	h.session("ordinary", on(gpu0, 10*gib))
	evicted := func() (n int) {
		for _, id := range []string{"a", "b", "c"} {
			if h.see(id).State == api.Evicted {
				n++
			}
		}
		return n
	}
	for i, grows := range []struct {
		who string
		do  func(ctx context.Context) error
	}{
		{"pool p", func(ctx context.Context) error {
			return must.Err(h.CreatePool(ctx, "p", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 20*gib)}}))
		}},
		{"pool p", func(ctx context.Context) error {
			return must.Err(h.SetPool(ctx, "p", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 40*gib)}}))
		}},
		{"ordinary", func(ctx context.Context) error {
			return must.Err(h.Change(ctx, "ordinary", api.ChangeRequest{Quotas: []api.Quota{on(gpu0, 30*gib)}}))
		}},
	} {
		h.idle("a", "b", "c")
		refusedWith(t, grows.do(t.Context()), api.CodeBusy, grows.who, "idle elastic slices are being evicted for it: try again")
		eventually(t, "there is room", func() bool { return grows.do(t.Context()) == nil })
		expect.Equal(t, evicted(), i+1, "evicted for", grows.who, "and those before it")
	}
}

func TestElasticQuotasAreBoundedByTheOvercommit(t *testing.T) {
	o := quick
	o.Overcommit = 1500
	h, _, _ := elastics(t, o)
	_, err := h.tryElastic("a", 100*gib, 0)
	must.Do(t, err, "a quota on one device is at most the device")
	h.elastic("b", 40*gib, 0)
	_, err = h.tryElastic("c", 40*gib, 0)
	refusedWith(t, err, api.CodeQuotaExceeded, "c asks for 40GiB", "may be promised 120GiB together", "were promised 120GiB")
	must.Get(h.Release(context.Background(), "b", 0, true))(t)
	h.elastic("d", 40*gib, 0)
	h.restart()
	_, err = h.tryElastic("e", gib, 0)
	refusedWith(t, err, api.CodeQuotaExceeded, "were promised 120GiB")
}

func TestARefusedElasticSessionIsPromisedNothing(t *testing.T) {
	h, _, _ := elastics(t, quick)
	h.options.Users = []session.Limit{{User: "5001", MaxVRAM: api.Share{Bytes: 40 * gib}, MaxSessions: 1}}
	h.believe()
	t.Cleanup(enforcer.PretendOwned())
	u := h.Users(func(context.Context) []uint32 { return nil })
	for i, want := range []error{nil, api.ErrQuotaExceeded} {
		p := start(t, "/nonexistent", "")
		_, err := u.Register(as(p.pid(), alice), api.RegisterRequest{ID: fmt.Sprint("s", i), Quotas: []api.Quota{on(gpu0, 20*gib)}, Session: true, PID: p.pid(), UID: alice, Elastic: true})
		must.True(t, errors.Is(err, want), "session", i, err, "want", want)
		if d := h.device(gpu0); d.Elastic == nil || d.Elastic.Promised != 20*gib {
			t.Errorf("after session %d: %+v", i, d.Elastic)
		}
	}
}

func TestAnEvictedSliceOutlivesTheEnforcer(t *testing.T) {
	h, truth, f := elastics(t, quick)
	a, b := h.elastic("a", 60*gib, 0), h.elastic("b", 60*gib, 0)
	a.works(truth, 40*gib)
	b.works(truth, 40*gib)
	h.becomes("a", api.Evicted)
	h.restart()
	if s := h.see("a"); s.State != api.Evicted || s.Devices[0].Suspended != 40*gib || h.granted(t) != 60*gib {
		t.Fatalf("%+v, %d given", s, h.granted(t))
	}
	b.expect("ok 1", "enter") // b stays while a asks
	a.expect("away", "enter")
	b.must("leave")
	a.returns()
	a.expect("ok 1", "enter")
	b.expect("away", "enter")
	if states := f.states(); states[a.pid()] != checkpoint.Running || states[b.pid()] != checkpoint.Checkpointed {
		t.Errorf("%v", states)
	}
}

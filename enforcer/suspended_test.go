// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/store"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

func (h *host) suspended(truth *fakeTruth, id string, quota, bytes uint64) *proc {
	h.t.Helper()
	p, _ := h.session(id, on(gpu0, quota))
	p.uses().takes(truth, bytes)
	must.Do(h.t, h.suspend(id))
	return p
}

// Bytes beyond a lowered quota count until they are released, also over a suspension, during each step of which the ledger is checked.
func TestLoweredQuotaOfAResumedSliceCountsOnceItsMemoryIsReleased(t *testing.T) {
	h, truth, f := movers(t)
	p, _ := h.session("a", on(gpu0, 60*gib))
	p.uses().takes(truth, 50*gib)
	must.Get(h.Change(t.Context(), "a", api.ChangeRequest{Quotas: []api.Quota{on(gpu0, 10*gib)}}))(t)
	f.beforeEach(func(checkpoint.Action, int) { truth.comparisons(t, 3) })
	must.Do(t, h.suspend("a"))
	must.Do(t, h.resume("a"))
	must.Equal(t, h.granted(t), 50*gib, "granted after the return")
	truth.set(gpu0, p.pid(), 5*gib)
	p.must("release 0 %d", 45*gib)
	eventually(t, "its quota counts again", func() bool { return h.granted(t) == 10*gib })
}

// Others would be granted what its processes hold.
func TestLoweredQuotasCountForTheMemoryInUseAfterARestart(t *testing.T) {
	for _, of := range []string{"slice", "pool"} {
		t.Run(of, func(t *testing.T) {
			h, _ := newTruthHost(t)
			lowered := []api.Quota{on(gpu0, 10*gib)}
			var p *proc
			if of == "slice" {
				p, _ = h.session("a", on(gpu0, 60*gib))
				p.uses().must("charge 0 %d", 50*gib)
				must.Get(h.Change(t.Context(), "a", api.ChangeRequest{Quotas: lowered}))(t)
			} else {
				h.pool("team", on(gpu0, 60*gib))
				p = h.member("a", "team")
				p.uses().must("charge 0 %d", 50*gib)
				must.Get(h.SetPool(t.Context(), "team", api.PoolRequest{Quotas: lowered}))(t)
			}
			h.restart()
			must.Equal(t, h.granted(t), 50*gib, "granted after the restart")
			p.must("release 0 %d", 20*gib)
			eventually(t, "released memory counts no longer", func() bool { return h.granted(t) == 30*gib })
			p.must("release 0 %d", 25*gib)
			eventually(t, "its quota counts again", func() bool { return h.granted(t) == 10*gib })
		})
	}
}

// Its processes could not be restored any more.
func TestASuspendedSliceIsNotReleasedWhileItsProcessesLive(t *testing.T) {
	h, truth, _ := movers(t)
	release := func(force bool) error {
		return must.Err(h.Release(context.Background(), "a", 0, force))
	}
	p := h.suspended(truth, "a", 50*gib, 40*gib)
	for _, force := range []bool{true, false} {
		refusedWith(t, release(force), api.CodeRunning, "slice a is suspended", fmt.Sprint("process ", p.pid()), "`gpuslice resume a`", "end its processes")
	}
	h.restart()
	refusedWith(t, release(true), api.CodeRunning, "slice a is suspended")
	must.Do(t, h.resume("a"))
	p.must("charge 0 %d", 10*gib)
	must.Do(t, release(true))
}

// As `gpuslice run` releases its session when its command has ended.
func TestASuspendedSliceIsReleasedOnceItsProcessesOnTheDeviceHaveEnded(t *testing.T) {
	h, truth, _ := movers(t)
	_, more, _ := h.container(api.RegisterRequest{ID: "c", Quotas: []api.Quota{on(gpu0, 50*gib)}})
	p := more()
	p.uses().takes(truth, 40*gib)
	must.Do(t, h.suspend("c"))
	release := func() error {
		return must.Err(h.Release(context.Background(), "c", 0, true))
	}
	refusedWith(t, release(), api.CodeRunning, fmt.Sprint("process ", p.pid()))
	p.kill()
	must.Do(t, release())
	expect.Equal(t, h.granted(t), 0, "bytes are given")
}

// A slice in record mode has no quota, and needs room on the device all the same.
func TestASliceThatOnlyRecordsIsSuspendedAndResumed(t *testing.T) {
	h, truth, f := movers(t)
	p, _ := h.sessionOf(api.RegisterRequest{ID: "r", Mode: api.Record, Quotas: []api.Quota{on(gpu0, gib)}})
	p.uses().takes(truth, 40*gib)
	must.Do(t, h.suspend("r"))
	if s := h.see("r"); s.State != api.Suspended || s.Devices[0].Used != 0 || s.Devices[0].Suspended != 40*gib {
		t.Fatalf("%+v", s)
	}
	b, _ := h.session("b", on(gpu0, 80*gib))
	b.uses().takes(truth, 60*gib)
	refusedWith(t, h.resume("r"), api.CodeQuotaExceeded, "on device 0", "19GiB are free", "b holds 60GiB")
	h.restart()
	must.Equal(t, h.see("r").State, api.Suspended, "state")
	truth.set(gpu0, b.pid(), 0)
	b.must("release 0 %d", 60*gib)
	must.Do(t, h.resume("r"))
	if s := h.see("r"); s.State != api.Active || s.Devices[0].Used != 40*gib || f.states()[p.pid()] != checkpoint.Running {
		t.Errorf("%+v", s)
	}
}

func TestAnEnforcerOfOneSessionSaysWhoCanSuspendIt(t *testing.T) {
	h := newHost(t, &fakeTruth{}) // as `gpuslice run` starts it without gpusliced
	h.session("s", on(gpu0, gib))
	refusedWith(t, h.suspend("s"), api.CodeBadRequest, "serves its own sessions only", "gpusliced can")
	refusedWith(t, h.resume("s"), api.CodeBadRequest, "is not suspended")
}

// CUDA calls of its processes wait, so a process that calls CUDA before it exits is killed after the grace.
func TestASuspendedSliceEndsWhenItsTimeIsOver(t *testing.T) {
	h, truth, _ := movers(t)
	c := &clock{at: time.Hour}
	h.with(func(o *enforcer.Options) { o.Clock, o.Grace = c.now, grace })
	p := h.lease("a", "", time.Hour)
	p.must("stubborn")
	p.takes(truth, gib)
	must.Do(t, h.suspend("a"))
	expect.NoError(t, must.Err(h.Renew(context.Background(), "a", renewed(2*time.Hour))), "its time is not renewed while it is suspended")
	c.pass(90 * time.Minute)
	h.restart()
	must.Equal(t, h.see("a").State, api.Suspended, "state")
	c.pass(time.Hour)
	h.expired("a")
	refusedWith(t, h.resume("a"), api.CodeExpired, "slice a has expired")
	h.restart()
	h.expired("a")
	expect.Equal(t, h.granted(t), 0, "bytes of a slice that expired while it was suspended")
	c.pass(2 * grace)
	p.ended()
	h.wantGone("a")
}

func TestSuspendedSessionResumesWithinTheUsersLimit(t *testing.T) {
	needs.Root(t)
	h, truth, f := movers(t)
	h.stop()
	limited, _ := newUsers(t, nil)
	h.options.Users = limited.options.Users
	h.believe()
	u := h.Users(func(context.Context) []uint32 { return nil })
	move := func(do func(context.Context, string) (api.Slice, error), uid uint32) error {
		return must.Err(do(as(1, uid), "u5001-a"))
	}
	link := filepath.Join(h.options.RunDir, "to-a")
	p := start(t, link, "")
	reply := must.Get(u.Register(as(p.pid(), alice), api.RegisterRequest{ID: "a", Quotas: []api.Quota{on(gpu0, 6*gib)}, Session: true, PID: p.pid(), UID: alice}))(t)
	lead(t, link, reply)
	p.uses().takes(truth, 5*gib)
	expect.Error(t, move(u.Suspend, bob), "another user suspends it")
	must.Do(t, move(u.Suspend, alice))
	must.Do(t, must.Err(begin(t, u, alice, "b", on(gpu0, 6*gib))), "what she suspended counts in her limit")
	const over = "uid 5001's sessions may have 10GiB together (max_vram) and have 6GiB"
	refusedWith(t, move(u.Resume, alice), api.CodeQuotaExceeded, over)
	refusedWith(t, h.resume("u5001-a"), api.CodeQuotaExceeded, over)
	h.restart()
	refusedWith(t, h.resume("u5001-a"), api.CodeQuotaExceeded, over)
	if s := h.see("u5001-a"); s.State != api.Suspended || f.states()[p.pid()] != checkpoint.Checkpointed {
		t.Errorf("%+v", s)
	}
	must.Get(h.Release(context.Background(), "u5001-b", 0, true))(t)
	eventually(t, "it is resumed", func() bool { return h.resume("u5001-a") == nil })
}

func (h *host) rewrite(change func(*store.Slice)) {
	h.t.Helper()
	boot := must.Get(process.BootID())(h.t)
	s, err := store.Open(store.Options{RunDir: h.options.RunDir, StateDir: h.options.StateDir, Boot: boot, Log: slog.New(slog.DiscardHandler)})
	must.Do(h.t, err)
	for _, slice := range s.Slices() {
		change(&slice)
		expect.NoError(h.t, s.PutSlice(slice))
	}
	must.Do(h.t, s.Close())
}

// The record's state is unknown; the driver knows the process's.
func TestSuspendedSliceWithAnUnknownStateIsResumed(t *testing.T) {
	h, truth, f := movers(t)
	p := h.suspended(truth, "a", 50*gib, 40*gib)
	h.stop()
	h.rewrite(func(s *store.Slice) { s.Suspended.State = "?" })
	h.start()
	eventually(t, "it is active", func() bool { return h.see("a").State == api.Active })
	if s := h.see("a"); s.Devices[0].Used != 40*gib || f.states()[p.pid()] != checkpoint.Running || h.granted(t) != 50*gib {
		t.Errorf("%+v, %v", s, f.states())
	}
}

// A page that a process overwrote grants nothing more: the memory stays in host memory until the processes have exited.
func TestASuspendedSliceWhosePageIsOverwrittenEndsWithItsProcesses(t *testing.T) {
	h, truth, f := movers(t)
	p := h.suspended(truth, "a", 50*gib, 40*gib)
	p.expect("ok", "poke %d %d", 128+16, 1<<50)
	eventually(t, "the slice is damaged", func() bool { return damaged(h, "a") })
	h.restart()
	must.Equal(t, h.see("a").State, api.Damaged, "state")
	refusedWith(t, h.resume("a"), api.CodeBadRequest, "slice a is damaged")
	_, err := h.Release(context.Background(), "a", 0, true)
	refusedWith(t, err, api.CodeRunning, "end its processes")
	expect.Equal(t, f.states()[p.pid()], checkpoint.Checkpointed)
	p.kill()
	h.wantGone("a")
	expect.Equal(t, h.granted(t), 0, "bytes are given")
}

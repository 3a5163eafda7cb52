// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// Memory of processes that outlive a session stays granted, however the session ended, also across a restart.
func TestWhatOutlivesASessionCountsUntilItHasEnded(t *testing.T) {
	needs.Root(t)
	for how, end := range map[string]func(t *testing.T, h *host, first, dead *proc){
		"released by force": func(t *testing.T, h *host, _, dead *proc) {
			dead.kill()
			must.Get(h.Release(context.Background(), "s", 0, true))(t)
		},
		"its first process was killed": func(_ *testing.T, _ *host, first, dead *proc) {
			dead.kill()
			first.kill()
		},
		"it was killed while no enforcer ran": func(_ *testing.T, h *host, first, dead *proc) {
			h.stop()
			dead.kill()
			first.kill()
			h.start()
		},
	} {
		t.Run(how, func(t *testing.T) {
			h := newHost(t, &fakeTruth{})
			h.believe()
			first, reply, token := h.tokenSession("s", on(gpu0, 8*gib))
			other := start(t, filepath.Join(reply.Dir, "bind"), "")
			must.Do(t, h.join(other, "s", token))
			other.must("attach")
			other.must("charge 0 %d", 3*gib)
			dead := start(t, filepath.Join(reply.Dir, "bind"), "") // exits before the session's end
			must.Do(t, h.join(dead, "s", token))
			dead.must("attach")
			dead.must("charge 0 %d", 2*gib)
			end(t, h, first, dead)
			gone := func() bool {
				_, err := h.Slice(context.Background(), "s")
				return errors.Is(err, api.ErrNotFound)
			}
			eventually(t, "the session is gone", gone)
			eventually(t, "what it held counts", func() bool { return h.device(gpu0).Quotas == 3*gib })
			other.expect("refused", "charge 0 1")
			h.restart()
			h.given(gpu0, 3*gib, 77*gib)
			p := start(t, "/nonexistent", "")
			_, err := h.Register(as(p.pid(), 0), api.RegisterRequest{ID: "t", Session: true, PID: p.pid(), Quotas: []api.Quota{on(gpu0, 78*gib)}})
			expect.ErrorContains(t, err, "s has 3GiB")
			other.kill()
			eventually(t, "it is free", func() bool { return h.device(gpu0).Quotas == 0 })
			must.Len(t, must.Get(os.ReadDir(filepath.Join(h.options.RunDir, "slices")))(t), 0, "left")
		})
	}
}

// When a lender exits, its memory belongs to the borrower, and no lane has it. The driver tells how much that is; without an answer the
// session's whole quota counts.
func TestWhatADeadProcessLentCountsWithWhoOutlivesTheSession(t *testing.T) {
	needs.Root(t)
	for name, c := range map[string]struct {
		truth, want uint64
		silent      bool
	}{
		"lent":             {5 * gib, 5 * gib, false},
		"given back":       {gib, 3 * gib, false},
		"more than is his": {20 * gib, 8 * gib, false},
		"nobody knows":     {0, 8 * gib, true},
		"driver is silent": {driver.Unknown, 8 * gib, false},
	} {
		t.Run(name, func(t *testing.T) {
			h, truth := newTruthHost(t)
			h.believe()
			first, reply, token := h.tokenSession("s", on(gpu0, 8*gib))
			join := func(bytes uint64) *proc {
				p := start(t, filepath.Join(reply.Dir, "bind"), "")
				must.Do(t, h.join(p, "s", token))
				p.must("attach")
				p.must("charge 0 %d", bytes)
				return p
			}
			other, lender := join(3*gib), join(2*gib)
			release := h.HoldTurns("s")
			defer release()
			lender.kill()
			eventually(t, "its end is seen", func() bool { return other.must("used 0") == 3*gib })
			truth.set(gpu0, other.pid(), c.truth)
			if c.silent {
				truth.mu.Lock()
				truth.hang = make(chan struct{})
				truth.mu.Unlock()
				defer close(truth.hang)
			}
			first.kill()
			release()
			h.gone("s")
			expect.Equal(t, h.device(gpu0).Quotas, c.want, "count")
			if !c.silent {
				h.restart()
				h.given(gpu0, c.want, 80*gib-c.want)
			}
		})
	}
}

// A process counts as what the driver lists for it, or as its charge if that is more.
func TestWhatOutlivesASessionCountsProcessByProcess(t *testing.T) {
	needs.Root(t)
	h, truth := newTruthHost(t)
	h.believe()
	_, reply, token := h.tokenSession("s", on(gpu0, 12*gib))
	for charged, held := range map[uint64]uint64{3 * gib: gib, gib: 4 * gib} {
		p := start(t, filepath.Join(reply.Dir, "bind"), "")
		must.Do(t, h.join(p, "s", token))
		p.must("attach")
		p.must("charge 0 %d", charged)
		truth.set(gpu0, p.pid(), held)
	}
	must.Get(h.Release(context.Background(), "s", 0, true))(t)
	h.given(gpu0, 7*gib, 73*gib)
	h.restart()
	if got := h.device(gpu0).Quotas; got < 7*gib { // and memory beyond the lanes may count twice
		t.Errorf("restarted: %d", got)
	}
}

// For processes in a container's cgroup the driver's listing counts.
func TestWhatAReleasedContainerHoldsPastItsLedgerCounts(t *testing.T) {
	cgroup := newCgroup(t)
	h, truth := newTruthHost(t)
	p := start(t, "/nonexistent", cgroup)
	must.Get(h.Register(context.Background(), api.RegisterRequest{ID: "c", PID: p.pid(), Quotas: []api.Quota{on(gpu0, 8*gib)}}))(t)
	truth.set(gpu0, p.pid(), 5*gib)
	must.Get(h.Release(context.Background(), "c", 0, true))(t)
	h.given(gpu0, 5*gib, 75*gib)
	h.restart()
	h.given(gpu0, 5*gib, 75*gib)
	p.kill()
	eventually(t, "it is free", func() bool { return h.device(gpu0).Quotas == 0 })
}

// A restarted enforcer finds a session's page in any process that maps it, also one that no longer belongs to the session.
func TestAPageIsFoundInWhoeverHasIt(t *testing.T) {
	needs.Root(t)
	h := newHost(t, &fakeTruth{})
	h.believe()
	h.pool("llm", on(gpu0, 8*gib))
	for _, pool := range []string{"", "llm"} {
		id := "s" + pool
		first := start(t, "/nonexistent", "")
		r := api.RegisterRequest{ID: id, Session: true, PID: first.pid()}
		if pool == "" {
			r.Quotas = []api.Quota{on(gpu0, 8*gib)}
		} else {
			r.Pools = api.PoolNames{pool}
		}
		reply := must.Get(h.Register(as(first.pid(), 0), r))(t)
		stray := startBelow(t, filepath.Join(reply.Dir, "bind"))
		must.Do(t, h.join(stray, id, tokenOf(t, reply)))
		stray.must("attach")
		stray.must("charge 0 %d", 3*gib)
		if err := stray.cmd.Process.Kill(); err != nil { // it had joined; its child has the page
			t.Fatal(err)
		}
		for range 2 {
			h.restart()
			if s := h.see(id); s.State != api.Active || s.Devices[0].Used != 3*gib || len(s.Processes) != 1 {
				t.Errorf("%+v", s)
			}
		}
		stray.must("charge 0 %d", 5*gib)
		stray.expect("refused", "charge 0 1")
		stray.in.Close()
		eventually(t, "it is given back", func() bool { return h.see(id).Devices[0].Used == 0 })
	}
}

// A pool counts the processes that outlive its member.
func TestAPoolCountsWhatOutlivesASessionInItUntilItHasEnded(t *testing.T) {
	needs.Root(t)
	h := newHost(t, &fakeTruth{})
	h.pool("llm", on(gpu0, 8*gib))
	link := filepath.Join(h.options.RunDir, "to-s")
	below := startBelow(t, link)
	reply := must.Get(h.Register(context.Background(), api.RegisterRequest{ID: "s", Pools: api.PoolNames{"llm"}, Session: true, PID: below.pid()}))(t)
	lead(t, link, reply)
	below.must("attach")
	below.must("charge 0 %d", 3*gib)
	used := func(want uint64) func() bool {
		return func() bool { return h.seePool("llm").Devices[0].Used == want }
	}
	if !used(3 * gib)() {
		t.Fatalf("%+v", h.seePool("llm"))
	}
	must.Do(t, below.cmd.Process.Kill())
	eventually(t, "the session is gone", func() bool {
		_, err := h.Slice(context.Background(), "s")
		return errors.Is(err, api.ErrNotFound) && used(3*gib)()
	})
	for range 2 {
		h.restart()
		if !used(3 * gib)() {
			t.Errorf("restarted: %+v", h.seePool("llm"))
		}
	}
	p := h.member("t", "llm")
	p.must("attach")
	p.must("charge 0 %d", 5*gib)
	p.expect("refused", "charge 0 1")
	below.in.Close()
	eventually(t, "it is free", used(5*gib))
	p.must("charge 0 %d", 3*gib)
}

// Also if its first process lives, and the process with the page does not descend from it.
func TestAPoolCountsWhatAReleasedSessionHolds(t *testing.T) {
	needs.Root(t)
	h := newHost(t, &fakeTruth{})
	h.believe()
	h.pool("llm", on(gpu0, 8*gib))
	first := start(t, "/nonexistent", "")
	reply := must.Get(h.Register(as(first.pid(), 0), api.RegisterRequest{ID: "s", Pools: api.PoolNames{"llm"}, Session: true, PID: first.pid()}))(t)
	other := startBelow(t, filepath.Join(reply.Dir, "bind"))
	must.Do(t, h.join(other, "s", tokenOf(t, reply)))
	other.must("attach")
	other.must("charge 0 %d", 3*gib)
	if err := other.cmd.Process.Kill(); err != nil { // it had joined; its child has the page
		t.Fatal(err)
	}
	must.Get(h.Release(context.Background(), "s", 0, true))(t)
	for range 2 {
		h.restart()
		expect.Equal(t, h.seePool("llm").Devices[0].Used, 3*gib, "are used")
	}
	other.in.Close()
	eventually(t, "it is free", func() bool { return h.seePool("llm").Devices[0].Used == 0 })
}

// Ending one session after another while their processes live gives a user no more.
func TestAUsersLimitHoldsForWhatOutlivesHisSessions(t *testing.T) {
	needs.Root(t)
	for _, truth := range []*fakeTruth{{}, nil} {
		h, u := newUsers(t, truth)
		link := filepath.Join(h.options.RunDir, "to-a")
		p := start(t, link, "")
		reply, err := u.Register(as(p.pid(), alice), api.RegisterRequest{ID: "a", Quotas: []api.Quota{on(gpu0, 8*gib)}, Session: true, PID: p.pid(), UID: alice})
		must.Do(t, err)
		lead(t, link, reply)
		p.must("attach")
		p.must("device %s %d", hex0, 80*gib)
		p.must("charge 0 %d", 8*gib)
		must.Get(u.Release(as(p.pid(), alice), "u5001-a", 0, true))(t)
		expect.ErrorSays(t, must.Err(begin(t, u, alice, "b", on(gpu0, 3*gib))), api.ErrQuotaExceeded, "have 8GiB")
		p.kill()
		eventually(t, "it is the user's again", func() bool {
			_, err := begin(t, u, alice, "b", on(gpu0, 3*gib))
			return err == nil
		})
	}
}

// Nor does killing a session's first process while the next session is admitted.
func TestAUsersLimitHoldsWhileTheEndOfASessionIsNotSeenYet(t *testing.T) {
	needs.Root(t)
	h, u := newUsers(t, &fakeTruth{})
	first := start(t, "/nonexistent", "")
	reply, err := u.Register(as(first.pid(), alice), api.RegisterRequest{ID: "a", Quotas: []api.Quota{on(gpu0, 8*gib)}, Session: true, PID: first.pid(), UID: alice})
	must.Do(t, err)
	other := start(t, filepath.Join(reply.Dir, "bind"), "")
	must.Get(u.Join(api.WithToken(as(other.pid(), alice), tokenOf(t, reply)), "u5001-a", api.JoinRequest{PID: other.pid()}))(t)
	other.must("attach")
	other.must("device %s %d", hex0, 80*gib)
	other.must("charge 0 %d", 8*gib)
	release := h.HoldTurns("u5001-a")
	defer release()
	next := start(t, "/nonexistent", "")
	began := make(chan error, 1)
	go func() {
		_, err := u.Register(as(next.pid(), alice), api.RegisterRequest{ID: "b", Quotas: []api.Quota{on(gpu0, 3*gib)}, Session: true, PID: next.pid(), UID: alice})
		began <- err
	}()
	time.Sleep(50 * time.Millisecond) // by then it usually waits
	first.kill()
	release()
	expect.ErrorSays(t, <-began, api.ErrQuotaExceeded, "have 8GiB")
}

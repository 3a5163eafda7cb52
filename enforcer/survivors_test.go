// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/store"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// Memory of processes that outlive a session stays granted, however the session ended, also across a restart.
func TestProcessesThatSurviveASessionCountUntilTheyExit(t *testing.T) {
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
			released := func() bool {
				_, err := h.Slice(context.Background(), "s")
				return errors.Is(err, api.ErrNotFound)
			}
			eventually(t, "the session is gone", released)
			eventually(t, "the exited process's memory counts", func() bool { return h.device(gpu0).Quotas == 3*gib })
			other.expect("refused", "charge 0 1")
			h.restart()
			h.wantGranted(gpu0, 3*gib, 77*gib)
			p := start(t, "/nonexistent", "")
			_, err := h.Register(as(p.pid(), 0), api.RegisterRequest{ID: "t", Session: true, PID: p.pid(), Quotas: []api.Quota{on(gpu0, 78*gib)}})
			expect.ErrorContains(t, err, "s has 3GiB")
			other.kill()
			eventually(t, "the memory is free", func() bool { return h.device(gpu0).Quotas == 0 })
			must.Len(t, must.Get(os.ReadDir(filepath.Join(h.options.RunDir, "slices")))(t), 0, "left")
		})
	}
}

// When a lender exits, its memory belongs to the borrower, and no lane has it. The driver tells how much that is; without an answer the
// session's whole quota counts.
func TestMemoryLentByAnExitedProcessCountsForTheSurvivors(t *testing.T) {
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
			h.wantGone("s")
			expect.Equal(t, h.device(gpu0).Quotas, c.want, "count")
			if !c.silent {
				h.restart()
				h.wantGranted(gpu0, c.want, 80*gib-c.want)
			}
		})
	}
}

// A process counts as what the driver lists for it, or as its charge if that is more.
func TestSurvivorsOfASessionCountSeparately(t *testing.T) {
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
	h.wantGranted(gpu0, 7*gib, 73*gib)
	h.restart()
	if got := h.device(gpu0).Quotas; got < 7*gib { // and memory beyond the lanes may count twice
		t.Errorf("restarted: %d", got)
	}
}

// For processes in a container's cgroup the driver's listing counts.
func TestHiddenMemoryOfAReleasedContainerCounts(t *testing.T) {
	cgroup := newCgroup(t)
	h, truth := newTruthHost(t)
	p := start(t, "/nonexistent", cgroup)
	must.Get(h.Register(context.Background(), api.RegisterRequest{ID: "c", PID: p.pid(), Quotas: []api.Quota{on(gpu0, 8*gib)}}))(t)
	truth.set(gpu0, p.pid(), 5*gib)
	must.Get(h.Release(context.Background(), "c", 0, true))(t)
	h.wantGranted(gpu0, 5*gib, 75*gib)
	h.restart()
	h.wantGranted(gpu0, 5*gib, 75*gib)
	p.kill()
	eventually(t, "the memory is free", func() bool { return h.device(gpu0).Quotas == 0 })
}

// A restarted enforcer finds a session's page in any process that maps it, also one that no longer belongs to the session.
func TestPageIsFoundInAnyProcessThatMapsIt(t *testing.T) {
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
		eventually(t, "the memory is released", func() bool { return h.see(id).Devices[0].Used == 0 })
	}
}

// A pool counts the processes that outlive its member.
func TestPoolCountsSurvivorsOfASessionUntilTheyExit(t *testing.T) {
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
	must.True(t, used(3*gib)(), "it does not use 3 GiB")
	must.Do(t, below.cmd.Process.Kill())
	eventually(t, "the session is gone", func() bool {
		_, err := h.Slice(context.Background(), "s")
		return errors.Is(err, api.ErrNotFound) && used(3*gib)()
	})
	for range 2 {
		h.restart()
		expect.True(t, used(3*gib)(), "restarted, it does not use 3 GiB")
	}
	p := h.member("t", "llm")
	p.must("attach")
	p.must("charge 0 %d", 5*gib)
	p.expect("refused", "charge 0 1")
	below.in.Close()
	eventually(t, "the memory is free", used(5*gib))
	p.must("charge 0 %d", 3*gib)
}

// Also if its first process lives, and the process with the page does not descend from it.
func TestPoolCountsMemoryOfAReleasedSession(t *testing.T) {
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
	eventually(t, "the memory is free", func() bool { return h.seePool("llm").Devices[0].Used == 0 })
}

// Ending one session after another while their processes live gives a user no more.
func TestUsersLimitIncludesSurvivorsOfSessions(t *testing.T) {
	needs.Root(t)
	for _, truth := range []*fakeTruth{{}, nil} {
		h, u := newUsers(t, truth)
		link := filepath.Join(h.options.RunDir, "to-a")
		p := start(t, link, "")
		reply := must.Get(u.Register(as(p.pid(), alice), api.RegisterRequest{ID: "a", Quotas: []api.Quota{on(gpu0, 8*gib)}, Session: true, PID: p.pid(), UID: alice}))(t)
		lead(t, link, reply)
		p.uses()
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
func TestUsersLimitIncludesASessionWhoseEndIsNotNoticed(t *testing.T) {
	needs.Root(t)
	h, u := newUsers(t, &fakeTruth{})
	first := start(t, "/nonexistent", "")
	reply := must.Get(u.Register(as(first.pid(), alice), api.RegisterRequest{ID: "a", Quotas: []api.Quota{on(gpu0, 8*gib)}, Session: true, PID: first.pid(), UID: alice}))(t)
	other := start(t, filepath.Join(reply.Dir, "bind"), "")
	must.Get(u.Join(api.WithToken(as(other.pid(), alice), tokenOf(t, reply)), "u5001-a", api.JoinRequest{PID: other.pid()}))(t)
	other.uses()
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

// startBelow starts a process as the child of p.cmd. Once that is killed, the process descends from no process of the slice.
func startBelow(t *testing.T, dir string) *proc {
	t.Helper()
	client, err := buildClient()
	if err != nil {
		t.Skipf("a C compiler is needed: %v", err)
	}
	r, w, err := os.Pipe()
	must.Do(t, err)
	defer r.Close()
	out, end, err := os.Pipe()
	must.Do(t, err)
	defer end.Close()
	// A shell redirects the standard input of its background processes, so the test passes descriptor 3.
	cmd := exec.Command("/bin/sh", "-c", `"$0" "$1" <&3 3<&- & wait`, client, dir)
	cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = []*os.File{r}, end, os.Stderr
	must.Do(t, cmd.Start())
	p := &proc{t: t, cmd: cmd, in: w, out: bufio.NewReader(out)}
	t.Cleanup(func() { p.kill(); out.Close() }) // the child exits at the end of its input
	p.ask("hello")
	return p
}

// A session's child outlives the session's first process while no enforcer runs. The next enforcer closes its page, and has to look for it among
// all processes, since it no longer descends from the session's.
func TestSurvivorsOfASessionGetNoMoreMemoryAfterARestart(t *testing.T) {
	needs.Root(t)
	h := newHost(t, nil)
	link := filepath.Join(h.options.RunDir, "to-s")
	child := startBelow(t, link)
	first := child.cmd.Process
	reply := must.Get(h.Register(context.Background(), api.RegisterRequest{ID: "s", Session: true, PID: first.Pid, Quotas: []api.Quota{on(gpu0, 4*gib)}}))(t)
	relink(t, reply, link)
	child.uses()
	child.must("charge 0 %d", gib)
	other, _ := h.session("other", on(gpu0, gib))
	other.uses()
	h.stop()
	_ = first.Kill()
	_, _ = first.Wait()
	child.must("charge 0 %d", gib) // needs no enforcer, and no enforcer has closed the page yet
	h.start()
	expect.ErrorIs(t, must.Err(h.Slice(context.Background(), "s")), api.ErrNotFound, "the session is still there")
	child.expect("refused", "charge 0 1")
	child.must("release 0 %d", gib)
	child.expect("refused", "charge 0 1")
	other.must("charge 0 %d", gib)
}

// A session ends with its first process, also for processes that joined it.
func TestJoinedProcessesGetNoMoreMemoryAfterTheSession(t *testing.T) {
	h := newHost(t, nil)
	h.believe()
	first, reply, token := h.tokenSession("s", on(gpu0, 4*gib))
	joined := start(t, filepath.Join(reply.Dir, "bind"), "")
	must.Do(t, h.join(joined, "s", token))
	joined.uses()
	joined.must("charge 0 %d", gib)
	first.kill()
	h.wantGone("s")
	joined.expect("refused", "charge 0 1")
	eventually(t, "its token is gone with it", func() bool {
		_, err := os.Stat(filepath.Join(reply.Dir, api.TokenName))
		return os.IsNotExist(err)
	})
}

// The enforcer identifies a process by the socket that it connects to and the cgroup that it is in. Both must be of one slice.
func TestAProcessOfOneContainerIsAStrangerInAnother(t *testing.T) {
	h := newHost(t, nil)
	victim, reply, err := h.newBox("victim", on(gpu0, gib))
	must.Do(t, err)
	thief, _, err := h.newBox("thief", on(gpu0, gib))
	must.Do(t, err)
	victim.init.must("attach")
	victim.init.must("device %s %d", hex0, 80*gib)
	victim.init.must("charge 0 %d", gib)
	relink(t, reply, thief.link) // as if it had reached the other's directory
	thief.init.expect("status 1", "attach")
	thief.init.expect("status 1", "device %s %d", hex0, 80*gib)
	if s := h.see("victim"); s.ProcessCount != 1 || s.Devices[0].Used != gib {
		t.Errorf("%+v", s)
	}
}

func TestSlicesOfAnEarlierBootAreDropped(t *testing.T) {
	needs.Root(t)
	h := newHost(t, &fakeTruth{})
	p, _ := h.session("s", on(gpu0, 60*gib))
	h.stop()
	another := store.RecordsDir(h.options.RunDir, "another")
	must.Do(t, os.Rename(h.records(), another))
	h.start()
	expect.ErrorIs(t, must.Err(os.Lstat(another)), os.ErrNotExist)
	must.Len(t, slicesOf(t, h), 0)
	h.wantGranted(gpu0, 0, 80*gib)
	must.Len(t, must.Get(os.ReadDir(filepath.Join(h.options.RunDir, "slices")))(t), 0, "left")
	p.kill()
}

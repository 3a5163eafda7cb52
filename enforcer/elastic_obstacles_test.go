// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// A program outside all slices holds what was free.
func TestASliceWaitsForRoomThatTheDeviceDoesNotHave(t *testing.T) {
	h, truth, f := elastics(t, quick)
	a, b := h.elastic("a", 60*gib, 0), h.elastic("b", 60*gib, 0)
	a.works(truth, 40*gib)
	b.works(truth, gib)
	h.becomes("a", api.Evicted)
	truth.set(gpu0, 1, 50*gib)
	await.That(t, "the holder of the room is named, once b has been idle", func() bool {
		a.expect(statusAway, "return")
		s := h.see("a")
		return s.State == api.Evicted && s.Elastic.Waits != nil && strings.Contains(s.Elastic.Obstacle, "process 1")
	})
	expect.Equal(t, f.states()[a.pid()], checkpoint.Checkpointed, "it was restored without room")
	truth.set(gpu0, 1, 0)
	a.returns()
}

func TestImmovableSliceStaysResident(t *testing.T) {
	t.Cleanup(enforcer.ForgetObstacles())
	h, truth, f := elastics(t, quick)
	a, b := h.elastic("a", 60*gib, 0), h.elastic("b", 60*gib, 0)
	a.works(truth, gib)
	f.fail(checkpoint.Checkpoint, a.pid(), checkpoint.ResultNotSupported)
	eventually(t, "a stays, whenever its eviction is tried", func() bool {
		b.expect(statusAway, "return")
		s := h.see("a")
		return s.State == api.Active && strings.Contains(s.Elastic.Obstacle, "managed memory") && f.states()[a.pid()] == checkpoint.Running
	})
	eventually(t, "the gate is open", func() bool { return a.ask("enter") == "ok 1" })
	a.must("leave")
}

func TestAProcessThatDoesNotCountItsCallsIsEvictedByTheDriver(t *testing.T) {
	h, truth, f := elastics(t, quick)
	a, b := h.elastic("a", 60*gib, 0), h.elastic("b", 60*gib, 0)
	a.returns().uses().takes(truth, 40*gib)
	b.works(truth, 40*gib)
	if s := h.see("a"); s.State != api.Evicted || f.states()[a.pid()] != checkpoint.Checkpointed {
		t.Errorf("%+v, %v", s, f.states())
	}
}

// If its own processes keep a slice on the device while another waits, it is ended; if the host lacks memory for it, it is not.
func TestSliceThatBlocksOthersBeyondPatienceExpires(t *testing.T) {
	for name, c := range map[string]struct {
		hostMemory uint64
		ends       bool
	}{"by managed memory": {ends: true}, "for want of host memory": {hostMemory: gib}} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(enforcer.ForgetObstacles())
			o := quick
			o.Patience, o.HostMemory = time.Nanosecond, c.hostMemory
			h, truth, f := elastics(t, o)
			a, b := h.elastic("a", 60*gib, 0), h.elastic("b", 60*gib, 0)
			a.works(truth, 40*gib)
			f.fail(checkpoint.Checkpoint, a.pid(), checkpoint.ResultNotSupported)
			if !c.ends {
				for range 3 {
					b.expect(statusAway, "return")
				}
				h.becomes("a", api.Active)
				return
			}
			await.That(t, "b returns, once the SIGTERM has ended a", func() bool {
				return b.ask("return") != statusAway
			})
			expired := h.told(api.EventExpired)
			if len(expired) != 1 || !strings.Contains(expired[0].Cause, "patience in [elastic]") || !strings.Contains(expired[0].Cause, "managed memory") {
				t.Errorf("%+v", expired)
			}
		})
	}
}

func TestWaitersKeepTheirOrderWhenABlockingSliceExpires(t *testing.T) {
	t.Cleanup(enforcer.ForgetObstacles())
	o := quick
	o.Patience = time.Nanosecond
	h, truth, f := elastics(t, o)
	clock, begun := &clock{at: time.Hour}, time.Now()
	h.with(func(o *enforcer.Options) {
		o.Clock, o.Grace = func() time.Duration { return clock.now() + time.Since(begun) }, grace
	})
	a, b, c := h.elastic("a", 40*gib, 0), h.elastic("b", 60*gib, 0), h.elastic("c", 30*gib, 0)
	a.works(truth, gib)
	f.fail(checkpoint.Checkpoint, a.pid(), checkpoint.ResultNotSupported)
	must.Do(t, a.cmd.Process.Signal(syscall.SIGSTOP)) // it does not exit at SIGTERM
	eventually(t, "a is ended", func() bool {
		b.expect(statusAway, "return")
		return len(h.told(api.EventExpired)) == 1
	})
	back := make(chan struct{})
	go func() { // it asks again and again
		defer close(back)
		b.returns()
	}()
	c.expect(statusAway, "return")
	eventually(t, "a has had its SIGTERM", func() bool { return h.Asked("a") })
	clock.pass(grace)
	await.Value(t, "b returns, once a is killed", back)
}

// The driver does not report what a process that does not progress is doing.
func TestHungMoveEndsTheSlice(t *testing.T) {
	o := quick
	o.Patience = time.Nanosecond
	h, truth, f := elastics(t, o)
	a, b := h.elastic("a", 60*gib, 0), h.elastic("b", 60*gib, 0)
	a.works(truth, gib/16)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	f.beforeEach(func(_ checkpoint.Action, pid int) {
		if pid == a.pid() {
			<-release
		}
	})
	await.That(t, "b returns, once a is ended", func() bool { return b.ask("return") != statusAway })
	expired := h.told(api.EventExpired)
	if len(expired) != 1 || !strings.Contains(expired[0].Cause, "its move took longer than") {
		t.Errorf("%+v", expired)
	}
}

// A slice that cannot be moved delays the eviction of no other.
func TestAllVictimsAreEvictedConcurrently(t *testing.T) {
	h, truth, f := elastics(t, quick)
	a, b, c := h.elastic("a", 30*gib, 0), h.elastic("b", 30*gib, 0), h.elastic("c", 70*gib, 0)
	a.works(truth, gib)
	b.works(truth, gib)
	var both sync.WaitGroup
	both.Add(2)
	begins := map[int]func(){a.pid(): sync.OnceFunc(both.Done), b.pid(): sync.OnceFunc(both.Done)}
	f.beforeEach(func(step checkpoint.Action, pid int) {
		if begin := begins[pid]; step == checkpoint.Lock && begin != nil {
			begin()
			both.Wait()
		}
	})
	c.returns()
}

func TestMovesInProgressCountInHostMemory(t *testing.T) {
	o := quick
	o.HostMemory = 15 * gib
	h, truth, f := elastics(t, o)
	a, b, c := h.elastic("a", 30*gib, 0), h.elastic("b", 30*gib, 0), h.elastic("c", 70*gib, 0)
	a.works(truth, 10*gib)
	b.works(truth, 10*gib)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	f.beforeEach(func(checkpoint.Action, int) { <-release })
	eventually(t, "one stays, since the other is on the way", func() bool {
		c.expect(statusAway, "return")
		return strings.Contains(h.see("a").Elastic.Obstacle+h.see("b").Elastic.Obstacle, "20GiB would be in host memory, and host_memory is 15GiB")
	})
}

func TestEvictedSlicesStayWithinHostMemory(t *testing.T) {
	o := quick
	o.HostMemory = 50 * gib
	h, truth, _ := elastics(t, o)
	a, b, c := h.elastic("a", 60*gib, 0), h.elastic("b", 60*gib, 0), h.elastic("c", 60*gib, 0)
	a.works(truth, 40*gib)
	b.works(truth, 40*gib)
	h.becomes("a", api.Evicted)
	eventually(t, "b stays", func() bool {
		c.expect(statusAway, "return")
		s := h.see("b")
		return s.State == api.Active && strings.Contains(s.Elastic.Obstacle, "80GiB would be in host memory, and host_memory is 50GiB")
	})
}

// Calls that a process made before a restart do not ask for its slice's return.
func TestEvictedSliceStaysEvictedAfterARestart(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	a, b := h.elastic("a", 60*gib, 0).works(truth, 40*gib), h.elastic("b", 60*gib, 0).works(truth, gib)
	h.becomes("a", api.Evicted)
	h.restart()
	h.elastic("c", 10*gib, 0).works(truth, gib) // it returns after a look at all slices
	if s := h.see("a"); s.State != api.Evicted || s.Elastic.Waits != nil {
		t.Errorf("%+v", s)
	}
	a.kill()
	b.kill()
}

// An elastic slice that was suspended by hand stays suspended until it is resumed by hand.
func TestASuspendedElasticSliceDoesNotReturnByItself(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	a := h.elastic("a", 60*gib, 0).works(truth, gib)
	must.Do(t, h.suspend("a"))
	a.expect("away", "enter")
	a.expect(statusAway, "return")
	expect.Equal(t, h.see("a").State, api.Suspended, "state")
	must.Do(t, h.resume("a"))
	a.returns()
}

func TestAnEvictedSliceMayBeSuspended(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	a, b := h.elastic("a", 60*gib, 0).works(truth, 40*gib), h.elastic("b", 60*gib, 0).works(truth, gib)
	h.becomes("a", api.Evicted)
	must.Do(t, h.suspend("a"))
	for range 2 {
		if a.expect(statusAway, "return"); h.see("a").State != api.Suspended || h.see("b").State != api.Active {
			t.Fatalf("%+v", h.see("a"))
		}
		h.restart()
	}
	refusedWith(t, h.suspend("a"), api.CodeBadRequest, "is suspended already")
	resumed(t, h, "a")
	if h.becomes("b", api.Evicted); truth.holds(a.pid()) != 40*gib {
		t.Errorf("%+v", h.see("a"))
	}
	b.returns()
}

// A slice can be suspended while others are evicted for its return.
func TestASliceMayBeSuspendedWhileRoomIsMadeForIt(t *testing.T) {
	h, truth, f := elastics(t, quick)
	a, b := h.elastic("a", 60*gib, 0).works(truth, 40*gib), h.elastic("b", 60*gib, 0).works(truth, gib)
	h.becomes("a", api.Evicted)
	said := make(chan error, 1)
	var once sync.Once
	f.afterEach(func(done checkpoint.Action) {
		if done == checkpoint.Checkpoint {
			once.Do(func() { said <- h.suspend("a") })
		}
	})
	a.expect(statusAway, "return")
	h.becomes("b", api.Evicted)
	must.Do(t, <-said)
	for range 3 {
		if a.expect(statusAway, "return"); h.see("a").State != api.Suspended {
			t.Fatalf("%+v", h.see("a"))
		}
	}
	b.returns()
}

func resumed(t *testing.T, h *host, id string) {
	t.Helper()
	eventually(t, id+" is resumed", func() bool { return h.resume(id) == nil })
	must.Equal(t, h.see(id).State, api.Active, "state")
}

// A slice for which there is no room is evicted when it is resumed.
func TestASliceThatIsResumedWithoutRoomComesBackInItsTurn(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	a := h.elastic("a", 60*gib, 0).works(truth, gib)
	must.Do(t, h.suspend("a"))
	other, _ := h.session("ordinary", on(gpu0, 50*gib))
	refusedWith(t, h.resume("a"), api.CodeQuotaExceeded, "30GiB are left", "it comes back when there is room and one of its processes asks")
	must.Equal(t, h.see("a").State, api.Evicted, "state")
	h.restart()
	a.expect(statusAway, "return")
	other.kill()
	a.returns()
}

func TestUnsupportedElasticSliceIsRefusedWithAReason(t *testing.T) {
	h, _, _ := elastics(t, quick)
	for words, r := range map[string]api.RegisterRequest{
		"priority 1001 is not accepted: -1000 to 1000 are":            {Elastic: true, Priority: 1001},
		"priority 1 is given for a slice or pool that is not elastic": {Priority: 1},
		"only records cannot be elastic":                              {Elastic: true, Mode: api.Record},
		"in pool p is elastic if the pool is":                         {Elastic: true, Pools: api.PoolNames{"p"}},
	} {
		r.ID, r.Session, r.PID, r.Quotas = "x", true, os.Getpid(), []api.Quota{on(gpu0, gib)}
		_, err := h.Register(context.Background(), r)
		refusedWith(t, err, api.CodeBadRequest, words)
	}
	_, err := h.Register(context.Background(), api.RegisterRequest{ID: "x", PID: start(t, "", newCgroup(t)).pid(), Quotas: []api.Quota{on(gpu0, gib)}, Elastic: true, Priority: 1})
	refusedWith(t, err, api.CodeBadRequest, "up to 0 is accepted (max_priority in [elastic]")
	h.with(func(o *enforcer.Options) { o.Checkpoint = nil })
	_, err = h.tryElastic("x", gib, 0)
	refusedWith(t, err, api.CodeBadRequest, "cannot be elastic", "gpusliced can")
}

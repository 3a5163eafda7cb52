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
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestAProcessOfAnElasticSliceMovesItsMemoryItself(t *testing.T) {
	h, truth, f, a, b, m := ownTurns(t)
	expect.Equal(t, ledger.Place(m.begun[0]&15), ledger.Running, "it was told", m.begun, "when it attached")
	b.works(truth, 30*gib)
	s := h.becomes("a", api.Evicted)
	if got := m.been(); got != "locked aside" || f.steps() != "" {
		t.Fatalf("it was %s", got)
	}
	// The remainder on the device counts for admission and as used, and is no process's excess.
	if d := s.Devices[0]; d.Used+d.Overhead != 600*mib || d.Suspended != 40*gib-600*mib || h.granted(t) != 45*gib+600*mib {
		t.Errorf("%+v, %d given", d, h.granted(t))
	}
	if p := h.see("a").Processes[0].Devices[0]; p.Used+p.Overhead != 600*mib || p.Suspended != 40*gib-600*mib {
		t.Errorf("%+v", p)
	}
	truth.comparisons(t, 4)
	expect.Equal(t, h.see("a").Devices[0].Used+h.see("a").Devices[0].Overhead, 600*mib, "it is charged for what it has left")
	truth.set(gpu0, a.pid(), 2*gib)
	eventually(t, "memory beyond the remainder is charged", func() bool { return h.see("a").Devices[0].Overhead == 2*gib-600*mib })
	truth.set(gpu0, a.pid(), 600*mib)
	h.restart()
	if s := h.see("a"); s.State != api.Evicted || s.Devices[0].Suspended != 40*gib-600*mib || h.granted(t) != 45*gib+600*mib {
		t.Fatalf("%+v, %d given", s, h.granted(t))
	}
	a.expect("away", "enter")
	b.must("release 0 %d", 30*gib)
	truth.set(gpu0, b.pid(), 0)
	a.returns()
	if got := m.been(); got != "locked running" || f.states()[a.pid()] != checkpoint.Running || truth.holds(a.pid()) != 40*gib {
		t.Errorf("it was %s, %v", got, f.states())
	}
	if s := h.see("a"); s.Devices[0].Used != 40*gib || s.Devices[0].Suspended != 0 {
		t.Errorf("%+v", s)
	}
}

// Only the process itself knows what it left.
func TestMemoryLeftOnTheDeviceCountsUntilExit(t *testing.T) {
	h, truth, _, a, b, _ := ownTurns(t)
	b.works(truth, gib)
	h.becomes("a", api.Evicted)
	a.kill()
	truth.set(gpu0, a.pid(), 0)
	eventually(t, "it counts for nothing", func() bool { return h.granted(t) == 45*gib })
}

func TestAProcessThatDoesNotMoveItselfIsLeftToTheDriver(t *testing.T) {
	for what, does := range map[string]func(*selfMover){
		"too little can be moved so":        func(m *selfMover) { m.fails[ledger.Locked] = ledger.MoveFew },
		"it finds that out later":           func(m *selfMover) { m.fails[ledger.Aside] = ledger.MoveFew },
		"it has no memory":                  func(m *selfMover) { m.fails[ledger.Aside] = ledger.MoveHost },
		"it does not answer when it locks":  func(m *selfMover) { m.mute[ledger.Locked] = true },
		"it does not answer when it moves":  func(m *selfMover) { m.mute[ledger.Aside] = true },
		"it does not answer when it's done": func(m *selfMover) { m.mute[ledger.Locked], m.mute[ledger.Running] = true, true },
	} {
		t.Run(what, func(t *testing.T) {
			t.Cleanup(enforcer.LosePatience())
			h, truth, f, a, b, m := ownTurns(t)
			m.set(does)
			b.works(truth, gib)
			h.becomes("a", api.Evicted)
			if got := f.steps(); got != fmt.Sprintf("lock %d, checkpoint %d", a.pid(), a.pid()) || truth.holds(a.pid()) != 0 || m.place() != ledger.Running {
				t.Fatalf("the driver moved it: %s", got)
			}
			expect.Equal(t, h.granted(t), 45*gib, "given")
			a.returns()
			expect.Contains(t, f.steps(), fmt.Sprintf("restore %d, unlock %d", a.pid(), a.pid()), "the driver moved it:")
		})
	}
}

// The driver is to move it, and finds that a program outside gpuslice has locked it.
func TestProcessLockedByAnotherProgramStays(t *testing.T) {
	t.Cleanup(enforcer.LosePatience())
	h, _, f, a, b, m := ownTurns(t)
	m.set(func(m *selfMover) { m.mute[ledger.Locked] = true })
	f.set(func() { f.state[a.pid()] = checkpoint.Locked })
	eventually(t, "the reason is shown", func() bool {
		b.expect(statusAway, "return")
		return strings.Contains(h.see("a").Elastic.Obstacle, "by a program outside gpuslice")
	})
	if s := h.becomes("a", api.Active); f.states()[a.pid()] != checkpoint.Running && f.states()[a.pid()] != checkpoint.Locked {
		t.Errorf("%+v", s)
	}
}

// containerOf starts n elastic processes of one container, which hold 10 GiB each.
func (h *host) containerOf(id string, n int, truth *fakeTruth) (all []*proc) {
	h.t.Helper()
	cgroup := newCgroup(h.t)
	link := filepath.Join(h.options.RunDir, "to-"+id)
	for range n {
		all = append(all, start(h.t, link, cgroup))
	}
	reply, err := h.Register(context.Background(), api.RegisterRequest{ID: id, Container: id, PID: all[0].pid(), Quotas: []api.Quota{on(gpu0, 45*gib)}, Elastic: true})
	must.Do(h.t, err)
	lead(h.t, link, reply)
	for _, p := range all {
		p.works(truth, 10*gib)
	}
	return all
}

func TestOneProcessMovesItselfAndTheDriverAnother(t *testing.T) {
	h, truth, f := elastics(t, quick)
	all, b := h.containerOf("c", 2, truth), h.elastic("b", 45*gib, 0)
	m := h.movesItself(all[0], "c", truth)
	b.works(truth, gib)
	s := h.becomes("c", api.Evicted)
	other := all[1].pid()
	if got := f.steps(); m.place() != ledger.Aside || got != fmt.Sprintf("lock %d, checkpoint %d", other, other) {
		t.Fatalf("%s", got)
	}
	if d := s.Devices[0]; d.Suspended != 20*gib-600*mib || h.granted(t) != 45*gib+600*mib {
		t.Errorf("%+v, %d given", d, h.granted(t))
	}
	all[0].returns()
	got := f.steps()
	if !strings.HasSuffix(got, fmt.Sprintf("restore %d, unlock %d", other, other)) || strings.Contains(got, fmt.Sprint(" ", all[0].pid())) || truth.holds(all[0].pid()) != 10*gib {
		t.Errorf("%s", got)
	}
	// Either all processes of a slice move or none.
	f.fail(checkpoint.Checkpoint, other, checkpoint.ResultNotSupported)
	time.Sleep(2 * quick.MinResident)
	b.expect(statusAway, "return")
	eventually(t, "c stays, and its memory", func() bool {
		s := h.see("c")
		return s.State == api.Active && strings.Contains(s.Elastic.Obstacle, "managed memory") && m.place() == ledger.Running && truth.holds(all[0].pid()) == 10*gib
	})
}

// Its memory stays in host memory, and a later return succeeds.
func TestProcessWithoutRoomStaysInHostMemory(t *testing.T) {
	h, truth, f, a, b, m := ownTurns(t)
	b.works(truth, gib)
	h.becomes("a", api.Evicted)
	m.set(func(m *selfMover) { m.fails[ledger.Locked] = ledger.MoveDevice })
	a.expect(statusAway, "return")
	eventually(t, "the obstacle is shown", func() bool { return strings.Contains(h.see("a").Elastic.Obstacle, "the device has no room") })
	if s := h.becomes("a", api.Evicted); m.place() != ledger.Aside || truth.holds(a.pid()) != 600*mib || s.Devices[0].Suspended != 40*gib-600*mib || f.moved(a) {
		t.Errorf("%+v", s)
	}
	m.set(func(m *selfMover) { clear(m.fails) })
	a.returns()
	expect.True(t, truth.holds(a.pid()) == 40*gib && !f.moved(a), "it holds", truth.holds(a.pid()))
}

// Its remainder on the device need not be free for its return.
func TestReturnReusesTheMemoryLeftOnTheDevice(t *testing.T) {
	h, truth, _, a, b, m := ownTurns(t)
	m.set(func(m *selfMover) { m.left = 10 * gib })
	b.works(truth, gib)
	h.becomes("a", api.Evicted)
	b.must("release 0 %d", gib)
	truth.set(gpu0, b.pid(), 0)
	truth.set(gpu0, 1, 39*gib) // of no slice: 30 GiB are free beside a's 10
	a.expect(statusAway, "return")
	truth.set(gpu0, 1, 39*gib-64*mib)
	a.returns()
}

// Driver truth contradicts the process, and the driver moves it without delay.
func TestDriverMovesAProcessWithAFalseClaimOfAMove(t *testing.T) {
	t.Cleanup(enforcer.LosePatience())
	h, truth, f, a, b, m := ownTurns(t)
	m.set(func(m *selfMover) { m.lies = true })
	b.works(truth, gib)
	if s := h.becomes("a", api.Evicted); m.place() != ledger.Running || truth.holds(a.pid()) != 0 || s.Devices[0].Suspended != 40*gib || h.granted(t) != 45*gib {
		t.Errorf("%+v", s)
	}
	a.returns()
	expect.True(t, m.place() == ledger.Running && truth.holds(a.pid()) == 40*gib, "the processes are", f.states())
	h.becomes("b", api.Evicted)
	// This one reports a move before the request, and answers nothing else.
	m.set(func(m *selfMover) {
		m.mute = map[ledger.Place]bool{ledger.Locked: true, ledger.Aside: true, ledger.Running: true, ledger.Bare: true}
	})
	m.says(ledger.Aside, nil)
	time.Sleep(2 * quick.MinResident)
	b.tell("return")
	eventually(t, "the driver evicts it in the end", func() bool { return h.see("a").State == api.Evicted && truth.holds(a.pid()) == 0 })
	if said, err := b.out.ReadString('\n'); err != nil || said != statusAway+"\n" && said != "ok 0\n" {
		t.Fatal(said, err)
	}
	b.returns()
	a.expect(statusAway, "return")
	m.set(func(m *selfMover) { clear(m.mute) })
	a.returns()
	expect.True(t, m.place() == ledger.Running && truth.holds(a.pid()) == 40*gib && f.states()[a.pid()] == checkpoint.Running, "the processes are", f.states())
}

// However far a move was when the enforcer died, also if it continued then, the next enforcer reads its state in the lane.
func TestRestartReadsWhereAProcessHasMoved(t *testing.T) {
	for _, when := range []string{"before", "behind"} {
		for _, way := range []string{"out locked", "out aside", "back locked", "back running"} {
			for _, goesOn := range []bool{true, false} {
				t.Run(fmt.Sprint(when, " ", way, " ", goesOn), func(t *testing.T) {
					h, truth, f, a, b, m := ownTurns(t)
					stopped := make(chan struct{})
					stop := func() {
						go func() {
							defer close(stopped)
							h.stop()
						}()
						if goesOn { // the process continues after the enforcer has stopped
							<-stopped
						}
					}
					hooks := [2]func(){stop, nil}
					if when == "behind" {
						hooks = [2]func(){nil, stop}
					}
					direction, place, _ := strings.Cut(way, " ")
					first := map[ledger.Place][2]func(){map[string]ledger.Place{"locked": ledger.Locked, "aside": ledger.Aside, "running": ledger.Running}[place]: hooks}
					waits := func(p *proc) {
						p.tell("return")
						<-stopped
						must.Get(p.out.ReadString('\n'))(t)
					}
					if direction == "out" {
						m.set(func(m *selfMover) { m.first = first })
						waits(b)
					} else {
						b.works(truth, gib)
						h.becomes("a", api.Evicted)
						m.set(func(m *selfMover) { m.first = first })
						waits(a)
					}
					h.start()
					if goesOn || direction == "back" { // otherwise it may have happened before
						h.becomes("a", api.Active)
					}
					a.returns()
					if m.place() != ledger.Running || truth.holds(a.pid()) != 40*gib || h.granted(t) != 45*gib {
						t.Fatalf("%d, %d given", m.place(), h.granted(t))
					}
					b.returns()
					h.becomes("a", api.Evicted)
					a.returns()
					expect.True(t, truth.holds(a.pid()) == 40*gib && !f.moved(a), "it holds", truth.holds(a.pid()))
				})
			}
		}
	}
}

func TestASelfMoverIsSuspendedByHand(t *testing.T) {
	h, truth, f, a, _, m := ownTurns(t)
	must.Do(t, h.suspend("a"))
	if s := h.see("a"); s.State != api.Suspended || m.place() != ledger.Aside || h.granted(t) != 600*mib {
		t.Errorf("%+v, %d given", s, h.granted(t))
	}
	a.expect(statusAway, "return")
	if err := h.resume("a"); err != nil || truth.holds(a.pid()) != 40*gib || f.steps() != "" {
		t.Fatal(err)
	}
}

// The enforcer ignores that an ordinary slice's process can move itself.
func TestAProcessOfAnOrdinarySliceIsNotAskedToMoveItself(t *testing.T) {
	h, truth, f := movers(t)
	a, _ := h.session("a", on(gpu0, 50*gib))
	a.uses().takes(truth, 40*gib)
	m := h.movesItself(a, "a", truth)
	must.Do(t, h.suspend("a"))
	expect.True(t, m.begun[0] == 0 && m.been() == "" && f.states()[a.pid()] == checkpoint.Checkpointed && h.granted(t) == 0, "the processes are", f.states())
}

func TestHostMemoryIsKeptWhileItIsPlentiful(t *testing.T) {
	var limited atomic.Bool
	h, truth, _, a, b, m := ownTurns(t)
	t.Cleanup(enforcer.LimitMemory(func(pid int) bool { return pid == a.pid() && limited.Load() }))
	bare := func() bool { return m.wasTold(ledger.Bare) }
	turn := func() {
		t.Helper()
		b.works(truth, mib)
		h.becomes("a", api.Evicted)
		a.returns()
		h.HoldTurns("a")() // its return has ended
	}
	turn()
	await.Quiet(t, "it keeps none, though there is plenty", 50*time.Millisecond, bare)
	// The host of 1 TiB has 6 GiB less than an eighth available, so the process gives back 6 GiB.
	enforcer.HostHas(122 * gib)
	turn()
	eventually(t, "the host memory is released", bare)
	expect.Equal(t, atomic.LoadUint64(m.keep), 40*gib-600*mib-6*gib, "it keeps")
	enforcer.HostHas(gib)
	turn()
	eventually(t, "it keeps nothing of a host that has too little", bare)
	enforcer.HostHas(1 << 40)
	limited.Store(true)
	turn()
	eventually(t, "it keeps nothing, since its cgroup is limited", bare)
}

func TestKeptHostMemoryIsReleasedForAnEviction(t *testing.T) {
	for _, budget := range []bool{false, true} {
		t.Run(fmt.Sprint("host_memory ", budget), func(t *testing.T) {
			o := quick
			if budget {
				o.HostMemory = 75 * gib
			}
			h, truth, _, a, b, m := ownTurnsBy(t, o)
			c, d := h.elastic("c", 35*gib, 0), h.elastic("d", 35*gib, 0)
			b.works(truth, gib)
			h.becomes("a", api.Evicted)
			a.returns()
			h.becomes("b", api.Evicted)
			// Now a is on the device and keeps 39.4 GiB of host memory. One of the others fits on the device with it.
			c.works(truth, 35*gib)
			must.True(t, !m.wasTold(ledger.Bare), "it keeps none")
			if !budget {
				enforcer.HostHasBy(func() uint64 {
					if m.isBare() {
						return 300 * gib
					}
					return 20 * gib
				})
			}
			a.expect("ok 1", "enter") // keeps it on the device
			d.returns()
			h.becomes("c", api.Evicted)
			expect.True(t, m.wasTold(ledger.Bare) && h.see("a").State == api.Active, "the slice is", h.see("a"))
		})
	}
}

// The remainder makes way for a slice that may have the whole device. The enforcer dies at each step of that.
func TestMemoryLeftOnTheDeviceIsMovedForAWaiter(t *testing.T) {
	for _, ends := range []checkpoint.Action{"", checkpoint.Lock, checkpoint.Checkpoint, checkpoint.Restore, checkpoint.Unlock} {
		t.Run(fmt.Sprint("the enforcer ends at ", ends), func(t *testing.T) {
			h, truth, f := elastics(t, quick)
			a, b := h.elastic("a", 80*gib, 0), h.elastic("b", 80*gib, 0)
			m := h.movesItself(a.works(truth, 40*gib), "a", truth)
			other := h.movesItself(b.returns().uses(), "b", truth)
			b.must("gate")
			other.set(func(m *selfMover) { m.left = 0 })
			a.returns()
			m.been()
			stopped := make(chan struct{})
			if ends == "" {
				close(stopped)
			}
			var once sync.Once
			f.afterEach(func(done checkpoint.Action) {
				if done == ends {
					once.Do(func() {
						go func() {
							defer close(stopped)
							h.stop()
						}()
						time.Sleep(50 * time.Millisecond)
					})
				}
			})
			goes := func(p *proc) {
				t.Helper()
				for range 100 {
					if p.ask("return") == "ok 0" {
						return
					}
					select {
					case <-stopped:
						if ends != "" {
							ends = ""
							h.start()
						}
					default:
					}
				}
				t.Fatal("its slice does not return")
			}
			goes(b)
			goes(a)
			goes(b)
			if s := h.becomes("a", api.Evicted); m.place() != ledger.Aside || truth.holds(a.pid()) != 0 || s.Devices[0].Suspended != 40*gib || h.granted(t) != 80*gib {
				t.Fatalf("%+v, %d given, %d held", s, h.granted(t), truth.holds(a.pid()))
			}
			goes(a)
			if s := h.see("a"); m.place() != ledger.Running || truth.holds(a.pid()) != 40*gib || s.Devices[0].Used != 40*gib || f.states()[a.pid()] != checkpoint.Running {
				t.Errorf("%+v, %v", s, f.states())
			}
		})
	}
}

func TestMemoryLeftOnTheDeviceIsMovedForAnOrdinarySlice(t *testing.T) {
	h, truth, f, a, b, _ := ownTurns(t)
	b.works(truth, gib)
	h.becomes("a", api.Evicted)
	truth.set(gpu0, b.pid(), 0)
	b.kill()
	eventually(t, "the released memory is no longer granted", func() bool { return h.granted(t) == 600*mib })
	p := start(t, filepath.Join(h.options.RunDir, "to-ordinary"), "")
	r := api.RegisterRequest{ID: "ordinary", Quotas: []api.Quota{on(gpu0, 80*gib)}, Session: true, PID: p.pid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	_, err := h.Register(context.Background(), r)
	refusedWith(t, err, api.CodeBusy, "a has 600MiB", "try again")
	eventually(t, "there is room", func() bool {
		_, err := h.Register(context.Background(), r)
		return err == nil
	})
	expect.True(t, truth.holds(a.pid()) == 0 && f.states()[a.pid()] == checkpoint.Checkpointed, "the processes are", f.states())
}

func TestImmovableMemoryStays(t *testing.T) {
	h, truth, f := elastics(t, quick)
	a, b := h.elastic("a", 80*gib, 0), h.elastic("b", 80*gib, 0)
	m := h.movesItself(a.works(truth, 40*gib), "a", truth)
	f.fail(checkpoint.Checkpoint, a.pid(), checkpoint.ResultNotSupported)
	eventually(t, "the obstacle is shown", func() bool {
		b.expect(statusAway, "return")
		return strings.Contains(h.see("b").Elastic.Obstacle, "a has 600MiB")
	})
	if s := h.becomes("a", api.Evicted); s.Devices[0].Suspended != 40*gib-600*mib || h.granted(t) != 600*mib {
		t.Errorf("%+v, %d given", s, h.granted(t))
	}
	a.returns()
	expect.True(t, m.place() == ledger.Running && truth.holds(a.pid()) == 40*gib && f.states()[a.pid()] == checkpoint.Running, "the processes are", f.states())
}

func leavesAPart(all ...*selfMover) {
	for _, m := range all {
		m.set(func(m *selfMover) { m.part = true })
	}
}

// Two slices of 45 GiB share 80 GiB: each moves only what the other has no room for.
func TestEvictionMovesNoMoreThanNeeded(t *testing.T) {
	h, truth, f, a, b, m := ownTurns(t)
	leavesAPart(m)
	b.works(truth, 44*gib)
	other := h.movesItself(b, "b", truth)
	leavesAPart(other)
	b.must("gate")
	// 35 GiB are free beside the other's 45; a margin is kept free.
	rest := 35*gib - 128*mib
	if s := h.becomes("a", api.Evicted); truth.holds(a.pid()) != rest || s.Devices[0].Used != rest || s.Devices[0].Suspended != 40*gib-rest || h.granted(t) != 45*gib+rest {
		t.Fatalf("%+v, %d given, %d held", s, h.granted(t), truth.holds(a.pid()))
	}
	for range 3 {
		a.returns()
		if s := h.becomes("b", api.Evicted); truth.holds(a.pid()) != 40*gib || truth.holds(b.pid()) != rest || h.granted(t) != 45*gib+rest {
			t.Fatalf("%+v, %d given", s, h.granted(t))
		}
		b.returns()
		if h.becomes("a", api.Evicted); truth.holds(a.pid()) != rest || truth.holds(b.pid()) != 44*gib {
			t.Fatalf("%d and %d", truth.holds(a.pid()), truth.holds(b.pid()))
		}
	}
	expect.True(t, m.place() == ledger.Aside && other.place() == ledger.Running && !f.moved(a) && !f.moved(b), "the actions were", f.steps())
}

// For a third slice the processes move the remainder themselves, without the driver.
func TestMemoryThatStayedIsMovedForAThirdSlice(t *testing.T) {
	h, truth, f, a, b, m := ownTurns(t)
	leavesAPart(m)
	b.works(truth, 44*gib)
	other := h.movesItself(b, "b", truth)
	leavesAPart(other)
	b.must("gate")
	h.becomes("a", api.Evicted)
	c := h.elastic("c", 45*gib, 0)
	c.works(truth, gib)
	if h.becomes("b", api.Evicted); h.granted(t) > 80*gib || truth.holds(a.pid())+truth.holds(b.pid()) > 35*gib || f.moved(a) || f.moved(b) {
		t.Fatalf("%d given, %d and %d held; %s", h.granted(t), truth.holds(a.pid()), truth.holds(b.pid()), f.steps())
	}
	// The next one may have the whole device. The processes move all that they can, the driver the rest.
	truth.set(gpu0, c.pid(), 0)
	c.kill()
	d := h.elastic("d", 80*gib, 0)
	d.works(truth, gib)
	if h.becomes("a", api.Evicted); m.place() != ledger.Aside || other.place() != ledger.Aside || truth.holds(a.pid()) != 0 || truth.holds(b.pid()) != 0 || h.granted(t) != 80*gib {
		t.Fatalf("%d given, %d and %d held", h.granted(t), truth.holds(a.pid()), truth.holds(b.pid()))
	}
	a.returns()
	b.returns()
	if truth.holds(a.pid())+truth.holds(b.pid()) < 44*gib || m.place() != ledger.Running && other.place() != ledger.Running {
		t.Errorf("%d and %d held", truth.holds(a.pid()), truth.holds(b.pid()))
	}
}

func TestASelfMoverThatIsSuspendedByHandLeavesNothingThatItCanMove(t *testing.T) {
	h, truth, _, a, b, m := ownTurns(t)
	leavesAPart(m)
	b.works(truth, gib)
	h.becomes("a", api.Evicted)
	must.True(t, truth.holds(a.pid()) >= 30*gib, "it holds", truth.holds(a.pid()))
	a.returns()
	must.Do(t, h.suspend("a"))
	expect.Equal(t, truth.holds(a.pid()), 600*mib)
	resumed(t, h, "a")
	b.returns()
	if h.becomes("a", api.Evicted); truth.holds(a.pid()) < 30*gib {
		t.Fatalf("%d", truth.holds(a.pid()))
	}
	if err := h.suspend("a"); err != nil || truth.holds(a.pid()) != 600*mib || h.see("a").State != api.Suspended || m.place() != ledger.Aside {
		t.Errorf("%v, %d held, %+v", err, truth.holds(a.pid()), h.see("a"))
	}
}

// An earlier move needed more.
func TestEvictedProcessReleasesUnneededHostMemory(t *testing.T) {
	h, truth, f, a, b, m := ownTurns(t)
	leavesAPart(m)
	must.Do(t, h.suspend("a"))
	must.Do(t, h.resume("a"))
	b.works(truth, 44*gib)
	other := h.movesItself(b, "b", truth)
	leavesAPart(other)
	b.must("gate")
	h.becomes("a", api.Evicted)
	enforcer.HostHasBy(func() uint64 {
		if atomic.LoadUint64(m.keep) < 39*gib {
			return 1 << 40
		}
		return gib
	})
	t.Cleanup(func() { enforcer.HostHas(0) })
	m.wasTold(ledger.Aside)
	a.returns()
	if h.becomes("b", api.Evicted); !m.wasTold(ledger.Aside) || truth.holds(a.pid()) != 40*gib || f.moved(a) || f.moved(b) {
		t.Errorf("%d kept, %d held; %s", atomic.LoadUint64(m.keep), truth.holds(a.pid()), f.steps())
	}
}

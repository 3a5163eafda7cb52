// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/hostmem"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

type fakeHolder struct {
	mu    sync.Mutex
	err   error // fails requests
	fresh bool
	steps map[hostmem.Process]map[uint64]bool // what it gave, by offset
	grown []int                               // processes in the order of requests

	host  atomic.Uint64
	short atomic.Pointer[func(pid int, n uint64) bool] // which cgroups lack room
}

const holderPID = 1<<22 - 1

func (f *fakeHolder) Begin() (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fresh, f.err
}

func (f *fakeHolder) PID() (int, error) { return holderPID, f.Err() }

func (f *fakeHolder) Grow(p hostmem.Process, size, from, to uint64) (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil || to > size {
		return nil, errors.Join(f.err, fmt.Errorf("%d of %d", to, size))
	}
	f.grown = append(f.grown, p.PID)
	if f.steps[p] == nil {
		f.steps[p] = make(map[uint64]bool)
	}
	for at := from; at < to; at += hostmem.Step {
		f.steps[p][at] = true
	}
	return os.Open("/dev/null")
}

func (f *fakeHolder) Trim(p hostmem.Process, from, to uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for at := from; at < to; at += hostmem.Step {
		delete(f.steps[p], at)
	}
	return f.err
}

func (f *fakeHolder) Bytes(p hostmem.Process) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return uint64(len(f.steps[p])) * hostmem.Step, f.err
}

func (f *fakeHolder) Used() (uint64, error) { return 0, f.Err() }
func (f *fakeHolder) Close() error          { return nil }

func (f *fakeHolder) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *fakeHolder) set(do func(*fakeHolder)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(f)
}

func (f *fakeHolder) hasNoRoom(is func(pid int, n uint64) bool) { f.short.Store(&is) }

func (f *fakeHolder) bytesOf(p *proc) (bytes uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for of, steps := range f.steps {
		if of.PID == p.pid() {
			bytes += uint64(len(steps)) * hostmem.Step
		}
	}
	return bytes
}

// givenTurns is ownTurns with a holder. Before a moves its memory it asks for the host memory that it lacks.
func givenTurns(t *testing.T) (h *host, truth *fakeTruth, f *fakeMover, a, b *proc, m *selfMover, held *fakeHolder) {
	t.Helper()
	held = &fakeHolder{steps: make(map[hostmem.Process]map[uint64]bool)}
	held.host.Store(1 << 40)
	held.hasNoRoom(func(int, uint64) bool { return false })
	t.Cleanup(enforcer.ShortOfMemory(func(pid int, n uint64) bool { return (*held.short.Load())(pid, n) }))
	h, truth, f = elastics(t, quick)
	h.stop()
	enforcer.HostHasBy(held.host.Load)
	h.options.HostMemory = held
	h.start()
	a, b = h.elastic("a", 45*gib, 0), h.elastic("b", 45*gib, 0)
	a.works(truth, 40*gib)
	m = h.movesItself(a, "a", truth)
	m.asks(a, held)
	return h, truth, f, a, b, m, held
}

const part = ledger.HostPart

// asks has p ask for the host memory that it lacks, in parts, at its next move to the host. If a request is refused, p reports
// ledger.MoveHost.
func (m *selfMover) asks(p *proc, held *fakeHolder) {
	m.set(func(m *selfMover) {
		m.first = map[ledger.Place][2]func(){ledger.Aside: {func() {
			for at := held.bytesOf(p); at < 40*gib; at += part {
				if p.ask("host %d %d", at, min(at+part, 40*gib)) != "ok 1" {
					m.fails[ledger.Aside] = ledger.MoveHost
					return
				}
			}
		}}}
	})
}

func TestSelfMovingProcessGetsHostMemory(t *testing.T) {
	h, truth, f, a, b, m, held := givenTurns(t)
	const (
		refused, malformed = "status 8", "status 4"
	)
	a.expect(refused, "host 0 %d", part) // its slice is on the device
	m.set(func(m *selfMover) {
		m.first = map[ledger.Place][2]func(){ledger.Aside: {func() {
			a.expect("ok 1", "host 0 %d", part)
			for _, wrong := range [][2]uint64{{0, 0}, {part, 0}, {1, part}, {0, part - 4096}, {0, part + hostmem.Step}, {1<<64 - hostmem.Step, 0}} {
				a.expect(malformed, "host %d %d", wrong[0], wrong[1])
			}
			for at := uint64(part); at < 40*gib; at += part {
				a.expect("ok 1", "host %d %d", at, at+part)
			}
			a.expect(refused, "host %d %d", 40*gib, 40*gib+hostmem.Step) // more than it holds
		}}}
	})
	b.works(truth, gib)
	h.becomes("a", api.Evicted)
	if held.bytesOf(a) != 40*gib || held.bytesOf(b) != 0 || f.steps() != "" {
		t.Errorf("%d and %d", held.bytesOf(a), held.bytesOf(b))
	}
	a.expect("ok 1", "host 0 %d", part)  // given before
	b.expect(refused, "host 0 %d", part) // it is not being moved
	a.returns()
	a.expect(refused, "host 0 %d", part)
}

func TestWithoutAHostCgroupAProcessUsesItsOwnMemory(t *testing.T) {
	h, truth, _, a, b, _ := ownTurns(t)
	a.expect("status 10", "host 0 %d", part)
	b.works(truth, gib)
	h.becomes("a", api.Evicted)
	a.expect("status 10", "host 0 %d", part)
}

// The process's own cgroup limits neither its move nor what it keeps.
func TestGrantedHostMemoryIsNotChargedToTheProcess(t *testing.T) {
	t.Cleanup(enforcer.LosePatience())
	h, truth, f, a, b, m, held := givenTurns(t)
	held.hasNoRoom(func(pid int, bytes uint64) bool { return pid == a.pid() })
	for range 2 {
		b.works(truth, mib)
		h.becomes("a", api.Evicted)
		a.returns()
		h.becomes("b", api.Evicted)
		must.True(t, !f.moved(a) && !m.wasTold(ledger.Bare) && held.bytesOf(a) == 40*gib, "it holds", held.bytesOf(a))
	}
	// Without enough host memory it must keep none. If it ignores that, the enforcer frees its memory.
	held.host.Store(41 * gib)
	m.set(func(m *selfMover) { m.mute[ledger.Bare] = true })
	b.works(truth, mib)
	h.becomes("a", api.Evicted)
	a.returns()
	eventually(t, "the process has no host memory", func() bool { return held.bytesOf(a) == 0 })
	expect.True(t, m.wasTold(ledger.Bare), "it was not told so")
}

func TestDriverMovesIfTheHostCgroupIsFull(t *testing.T) {
	h, truth, f, a, b, m, held := givenTurns(t)
	var full atomic.Bool
	held.hasNoRoom(func(pid int, bytes uint64) bool {
		return pid == holderPID && bytes >= gib || pid == a.pid() && full.Load()
	})
	b.works(truth, mib)
	h.becomes("a", api.Evicted)
	if got := f.steps(); got != fmt.Sprintf("lock %d, checkpoint %d", a.pid(), a.pid()) || m.been() != "" || held.bytesOf(a) != 0 {
		t.Fatalf("%s", got)
	}
	a.returns()
	// The process's own cgroup has no room either: it stays on the device, and the obstacle names both.
	full.Store(true)
	b.expect(statusAway, "return")
	eventually(t, "the reason is shown", func() bool {
		o := h.see("a").Elastic.Obstacle
		return strings.Contains(o, fmt.Sprint("cgroup of ", holderPID)) && strings.Contains(o, "and by the driver") && strings.Contains(o, fmt.Sprint("cgroup of ", a.pid()))
	})
	if s := h.see("a"); s.State != api.Active || f.states()[a.pid()] != checkpoint.Running {
		t.Errorf("%+v", s)
	}
}

// The room is gone by the time of the request.
func TestDriverMovesAProcessWithTooLittleHostMemory(t *testing.T) {
	for what, fails := range map[string]func(held *fakeHolder){
		"the cgroup is full": func(held *fakeHolder) {
			held.hasNoRoom(func(pid int, bytes uint64) bool { return pid == holderPID && bytes < 40*gib })
		},
		"the holder is gone": func(held *fakeHolder) {
			held.set(func(f *fakeHolder) { f.err = errors.New("it is gone") })
		},
	} {
		t.Run(what, func(t *testing.T) {
			h, truth, f, a, b, m, held := givenTurns(t)
			m.set(func(m *selfMover) {
				asks := m.first[ledger.Aside][0]
				m.first = map[ledger.Place][2]func(){ledger.Locked: {func() { fails(held) }}, ledger.Aside: {asks}}
			})
			b.works(truth, mib)
			h.becomes("a", api.Evicted)
			if got := f.steps(); !strings.HasSuffix(got, fmt.Sprintf("checkpoint %d", a.pid())) || truth.holds(a.pid()) != 0 {
				t.Fatalf("%s", got)
			}
			a.returns()
			expect.True(t, truth.holds(a.pid()) == 40*gib && m.place() == ledger.Running, "the processes are", f.states())
		})
	}
}

func TestMissingHolderIsReported(t *testing.T) {
	h, truth, f, a, b, _, held := givenTurns(t)
	check := func() api.Check {
		health, _ := h.Health(context.Background())
		for _, c := range health.Checks {
			if c.Name == "host_memory" {
				expect.True(t, health.Ready, "it is not ready")
				return c
			}
		}
		t.Fatal("there is no such check")
		return api.Check{}
	}
	if c := check(); !c.OK || c.Message != "" {
		t.Errorf("%+v", c)
	}
	held.set(func(f *fakeHolder) { f.err = errors.New("it cannot be had") })
	if c := check(); c.OK || !strings.Contains(c.Message, "it cannot be had") {
		t.Errorf("%+v", c)
	}
	h.restart() // also without a restart
	b.works(truth, mib)
	h.becomes("a", api.Evicted)
	if got := f.steps(); !strings.HasSuffix(got, fmt.Sprintf("checkpoint %d", a.pid())) {
		t.Errorf("%s", got)
	}
	a.returns()
}

// A process's kept memory is freed when another needs room in the holder's cgroup, also after a restart.
func TestCachedHostMemoryIsReleasedForAnother(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart ", restart), func(t *testing.T) {
			h, truth, f, a, b, m, held := givenTurns(t)
			c := h.elastic("c", 34*gib, 0)
			b.works(truth, 30*gib)
			h.movesItself(b, "b", truth)
			h.becomes("a", api.Evicted)
			a.returns()
			h.becomes("b", api.Evicted)
			must.Equal(t, held.bytesOf(a), 40*gib)
			if restart {
				h.restart()
			}
			a.expect("ok 1", "enter")
			b.kill()
			eventually(t, "b is gone", func() bool { return h.granted(t) == 45*gib || h.granted(t) == 45*gib+600*mib })
			truth.set(gpu0, b.pid(), 0)
			c.works(truth, 20*gib)
			h.movesItself(c, "c", truth)
			d := h.elastic("d", 34*gib, 0)
			held.hasNoRoom(func(pid int, bytes uint64) bool { return pid == holderPID && held.bytesOf(a) > 0 })
			m.wasTold(ledger.Bare)
			d.returns()
			h.becomes("c", api.Evicted)
			if told, has, moved := m.wasTold(ledger.Bare), held.bytesOf(a), f.steps(); !told || has != 0 || strings.Contains(moved, fmt.Sprint(" ", c.pid())) {
				t.Errorf("%v, it has %d, the driver's steps: %s", told, has, moved)
			}
		})
	}
}

// A new holder knows nothing of the memory that a former one gave.
func TestHostMemoryOfALostHolderIsReleased(t *testing.T) {
	h, truth, _, a, b, m, held := givenTurns(t)
	b.works(truth, mib)
	h.becomes("a", api.Evicted)
	a.returns()
	h.becomes("b", api.Evicted)
	m.wasTold(ledger.Bare)
	h.restart()
	await.Quiet(t, "its holder is taken for lost", 50*time.Millisecond, func() bool { return m.wasTold(ledger.Bare) })
	h.stop()
	held.set(func(f *fakeHolder) { clear(f.steps); f.fresh = true })
	h.start()
	eventually(t, "it returns what it has", func() bool { return m.isBare() })
}

func TestOneSlicesRequestsForHostMemoryDelayAnothersByOne(t *testing.T) {
	h, truth, _, a, b, _, held := givenTurns(t)
	b.works(truth, gib)
	h.elastic("c", 79*gib, 0).works(truth, mib)
	h.becomes("a", api.Evicted)
	h.becomes("b", api.Evicted)
	held.set(func(f *fakeHolder) { f.grown = nil })
	var asked sync.WaitGroup
	give := h.HoldHosting()
	for n, p := range []*proc{a, a, a, a, b} {
		asked.Go(func() {
			expect.NoError(t, h.AskForHost(map[*proc]string{a: "a", b: "b"}[p], p.pid(), part))
		})
		await.That(t, "the request waits", func() bool { return waitingIn("GiveHost") == n+1 })
	}
	give()
	asked.Wait()
	expect.Equal(t, slices.Index(held.grown, b.pid()), 1, "b's place behind a's requests")
}

func waitingIn(function string) (n int) {
	all := make([]byte, 1<<20)
	for _, one := range strings.Split(string(all[:runtime.Stack(all, true)]), "\n\n") {
		state, _, _ := strings.Cut(one, "\n")
		if strings.Contains(state, "[select") && strings.Contains(one, "."+function+"(") {
			n++
		}
	}
	return n
}

// The memory belonged to its former image.
func TestAProcessThatBeginsAnewHasNoHostMemory(t *testing.T) {
	h, truth, _, a, b, _, held := givenTurns(t)
	b.works(truth, mib)
	h.becomes("a", api.Evicted)
	a.returns()
	must.Equal(t, held.bytesOf(a), 40*gib)
	a.must("attach")
	eventually(t, "the process has no host memory", func() bool { return held.bytesOf(a) == 0 })
	_ = h
}

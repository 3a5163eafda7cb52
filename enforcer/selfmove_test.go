// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// selfMover plays the interceptor's thread that moves a process's memory, over what fakeTruth says that it holds on the first device.
type selfMover struct {
	truth *fakeTruth
	pid   int
	word  *uint32 // struct ledger_move

	mu    sync.Mutex
	fails map[ledger.Place]ledger.MoveFailure // at the step to that place
	mute  map[ledger.Place]bool               // there it does nothing any more, until it is wanted elsewhere
	lies  bool                                // it moves nothing
	left  uint64                              // bytes that it cannot move
	away  uint64                              // bytes that it has moved
	told  []ledger.Place
	did   []ledger.Place // where it has been
}

// movesItself has a process that has attached begin to say that it can.
func (h *host) movesItself(p *proc, id string, truth *fakeTruth) *selfMover {
	h.t.Helper()
	file, lane := h.LedgerOf(id, p.pid())
	mem, err := unix.Mmap(int(file.Fd()), 0, int(ledger.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	file.Close()
	if err != nil {
		h.t.Fatal(err)
	}
	const header, entry, move = 4096, 64, 36 // of struct ledger, ledger_entry, and where ledger_move is in ledger_lane
	at := header + int(lane)*(entry+ledger.Devices*entry) + move
	m := &selfMover{
		truth: truth, pid: p.pid(), word: (*uint32)(unsafe.Pointer(&mem[at])), left: 600 * mib,
		fails: make(map[ledger.Place]ledger.MoveFailure), mute: make(map[ledger.Place]bool),
	}
	m.says(ledger.Running, nil)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				m.step()
			}
		}
	}()
	h.t.Cleanup(func() {
		close(stop)
		<-done
		_ = unix.Munmap(mem)
	})
	return m
}

// read is what the word says; bytes as in memory.
func (m *selfMover) read() (b [4]uint8) {
	word := atomic.LoadUint32(m.word)
	return *(*[4]uint8)(unsafe.Pointer(&word))
}

func (m *selfMover) is() ledger.Place { return ledger.Place(m.read()[1]) }

// says writes where its memory is, and its answer unless that is nil. The enforcer's byte stays as it is.
func (m *selfMover) says(is ledger.Place, answer *ledger.MoveFailure) {
	want := m.read()[0]
	for {
		was := atomic.LoadUint32(m.word)
		b := *(*[4]uint8)(unsafe.Pointer(&was))
		b[1] = uint8(is)
		if answer != nil {
			b[2], b[3] = want, uint8(*answer)
		}
		if atomic.CompareAndSwapUint32(m.word, was, *(*uint32)(unsafe.Pointer(&b))) {
			return
		}
	}
}

// step goes one step towards what is wanted, or answers.
func (m *selfMover) step() {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.read()
	want, is, answered := ledger.Place(b[0]&15), ledger.Place(b[1]), b[2]
	if b[0] == answered || want == ledger.PlaceUnknown {
		return
	}
	if len(m.told) == 0 || m.told[len(m.told)-1] != want {
		m.told = append(m.told, want)
	}
	goal := want
	if want == ledger.Bare {
		goal = ledger.Running
	}
	next := goal
	switch {
	case is == goal:
		if !m.mute[want] {
			why := m.fails[want]
			m.says(is, &why)
		}
		return
	case is == ledger.Running, is != ledger.Locked && goal == ledger.Running:
		next = ledger.Locked
	}
	if m.mute[next] {
		return
	}
	if why := m.fails[next]; why != ledger.MoveDone {
		if next == ledger.Locked && is == ledger.Aside {
			is = ledger.Between
			m.moves(m.away / 2)
		}
		m.says(is, &why)
		return
	}
	switch {
	case next == ledger.Aside:
		m.truth.mu.Lock()
		held := m.truth.bytes[gpu0][m.pid]
		m.truth.mu.Unlock()
		m.moves(-(held - min(held, m.left)))
	case next == ledger.Locked && is != ledger.Running:
		m.moves(m.away)
	}
	m.did = append(m.did, next)
	m.says(next, nil)
}

// moves moves bytes back to the device, or away from there.
func (m *selfMover) moves(back uint64) {
	if m.lies {
		return
	}
	m.truth.mu.Lock()
	held := m.truth.bytes[gpu0][m.pid]
	m.truth.mu.Unlock()
	m.away -= back
	m.truth.set(gpu0, m.pid, held+back)
}

func (m *selfMover) set(f func(*selfMover)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m)
}

// been says where it has been since it was asked last.
func (m *selfMover) been() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for _, place := range m.did {
		names = append(names, map[ledger.Place]string{ledger.Running: "running", ledger.Locked: "locked", ledger.Aside: "aside"}[place])
	}
	m.did = nil
	return strings.Join(names, " ")
}

// wasTold says whether it was told to go there since it was asked last.
func (m *selfMover) wasTold(place ledger.Place) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() { m.told = nil }()
	return slices.Contains(m.told, place)
}

// steps are what the driver was asked to do since that was asked last.
func (f *fakeMover) steps() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.did = nil }()
	return strings.Join(f.did, ", ")
}

// holds says what the driver lists for a process on the first device.
func (f *fakeTruth) holds(pid int) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes[gpu0][pid]
}

// ownTurns is a host with an elastic slice whose process holds 40 GiB and moves itself, and another that waits to be asked.
func ownTurns(t *testing.T) (h *host, truth *fakeTruth, f *fakeMover, a, b *proc, m *selfMover) {
	t.Helper()
	h, truth, f = elastics(t, quick)
	a, b = h.elastic("a", 45*gib, 0), h.elastic("b", 45*gib, 0)
	a.works(truth, 40*gib)
	return h, truth, f, a, b, h.movesItself(a, "a", truth)
}

func TestAProcessOfAnElasticSliceMovesItsMemoryItself(t *testing.T) {
	h, truth, f, a, b, m := ownTurns(t)
	b.works(truth, 30*gib)
	s := h.becomes("a", api.Evicted)
	if got := m.been(); got != "locked aside" || f.steps() != "" {
		t.Fatalf("it was %s", got)
	}
	// What is left counts: for admission, as used, and for nobody's excess.
	if d := s.Devices[0]; d.Used+d.Overhead != 600*mib || d.Suspended != 40*gib-600*mib || h.granted(t) != 45*gib+600*mib {
		t.Errorf("%+v, %d given", d, h.granted(t))
	}
	if p := h.see("a").Processes[0].Devices[0]; p.Used+p.Overhead != 600*mib || p.Suspended != 40*gib-600*mib {
		t.Errorf("%+v", p)
	}
	truth.comparisons(t, 4)
	if d := h.see("a").Devices[0]; d.Used+d.Overhead != 600*mib {
		t.Errorf("it is charged for what it has left: %+v", d)
	}
	truth.set(gpu0, a.pid(), 2*gib)
	eventually(t, "what is beyond that is charged", func() bool { return h.see("a").Devices[0].Overhead == 2*gib-600*mib })
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

// Of what was left nobody knows but the process that left it.
func TestWhatAProcessHasLeftCountsUntilItsEnd(t *testing.T) {
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
		"it does not answer when it's done": func(m *selfMover) { m.mute[ledger.Locked], m.mute[ledger.Bare] = true, true },
	} {
		t.Run(what, func(t *testing.T) {
			h, truth, f, a, b, m := ownTurns(t)
			m.set(does)
			b.works(truth, gib)
			h.becomes("a", api.Evicted)
			if got := f.steps(); got != fmt.Sprintf("lock %d, checkpoint %d", a.pid(), a.pid()) || truth.holds(a.pid()) != 0 || m.is() != ledger.Running {
				t.Fatalf("the driver was asked to %s", got)
			}
			if h.granted(t) != 45*gib {
				t.Errorf("%d given", h.granted(t))
			}
			a.returns()
			if got := f.steps(); !strings.Contains(got, fmt.Sprintf("restore %d, unlock %d", a.pid(), a.pid())) {
				t.Errorf("the driver was asked to %s", got)
			}
		})
	}
}

// The one that the driver moves is found to be somebody else's.
func TestAProcessThatSomebodyElseHasLockedStays(t *testing.T) {
	h, _, f, a, b, m := ownTurns(t)
	m.set(func(m *selfMover) { m.mute[ledger.Locked] = true })
	f.mu.Lock()
	f.state[a.pid()] = checkpoint.Locked
	f.mu.Unlock()
	b.expect(statusAway, "return")
	eventually(t, "it is said", func() bool { return strings.Contains(h.see("a").Elastic.Obstacle, "by somebody else's doing") })
	if s := h.becomes("a", api.Active); f.states()[a.pid()] != checkpoint.Running && f.states()[a.pid()] != checkpoint.Locked {
		t.Errorf("%+v", s)
	}
}

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

	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/test/must"
)

// selfMover plays the interceptor's thread that moves a process's memory, over what fakeTruth lists for it on the first device.
type selfMover struct {
	truth *fakeTruth
	pid   int
	word  *uint32
	stay  *uint64  // of the first device: bytes that may stay there
	keep  *uint64  // bytes of host memory that it may keep
	begun [4]uint8 // the word when it had attached

	mu    sync.Mutex
	fails map[ledger.Place]ledger.MoveFailure // at the step to that place
	mute  map[ledger.Place]bool               // there it stops answering, until another place is requested
	lies  bool
	left  uint64 // bytes that it cannot move
	part  bool   // it leaves what may stay
	away  uint64 // bytes that it has moved
	told  []ledger.Place
	did   []ledger.Place
	first map[ledger.Place][2]func() // called once each, before and after it goes there
}

// movesItself has an attached process announce that it can move itself.
func (h *host) movesItself(p *proc, id string, truth *fakeTruth) *selfMover {
	h.t.Helper()
	file, lane := h.LedgerOf(id, p.pid())
	mem, err := unix.Mmap(int(file.Fd()), 0, int(ledger.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	file.Close()
	must.Do(h.t, err)
	at := laneAt(lane) + 36                  // of its struct ledger_move
	const devices, stay, keep = 128, 96, 104 // of the first struct ledger_device, and of these in it
	m := &selfMover{
		truth: truth, pid: p.pid(), word: (*uint32)(unsafe.Pointer(&mem[at])), stay: (*uint64)(unsafe.Pointer(&mem[devices+stay])), keep: (*uint64)(unsafe.Pointer(&mem[devices+keep])), left: 600 * mib,
		fails: make(map[ledger.Place]ledger.MoveFailure), mute: make(map[ledger.Place]bool),
	}
	m.begun = m.read()
	well := ledger.MoveDone
	m.says(ledger.Running, &well)
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

// read returns the word's bytes in the order of memory.
func (m *selfMover) read() (b [4]uint8) {
	word := atomic.LoadUint32(m.word)
	return *(*[4]uint8)(unsafe.Pointer(&word))
}

func (m *selfMover) place() ledger.Place { return ledger.Place(m.read()[1]) }

// says writes where its memory is, and its answer unless that is nil. The enforcer's byte is unchanged.
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

func (m *selfMover) step() {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.read()
	want, place, answered := ledger.Place(b[0]&15), ledger.Place(b[1]), b[2]
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
	case place == goal:
		if !m.mute[want] {
			if place == ledger.Aside && m.fails[want] == ledger.MoveDone { // less may stay now
				m.goesAside()
			}
			why := m.fails[want]
			m.says(place, &why)
		}
		return
	case place == ledger.Running, place != ledger.Locked && goal == ledger.Running:
		next = ledger.Locked
	}
	if m.mute[next] {
		return
	}
	if why := m.fails[next]; why != ledger.MoveDone {
		if next == ledger.Locked && place == ledger.Aside {
			place = ledger.Between
			m.moves(m.away / 2)
		}
		m.says(place, &why)
		return
	}
	hooks := m.first[next]
	delete(m.first, next)
	if hooks[0] != nil {
		hooks[0]()
	}
	switch {
	case next == ledger.Aside:
		m.goesAside()
	case next == ledger.Locked && place != ledger.Running:
		m.moves(m.away)
	}
	m.did = append(m.did, next)
	m.says(next, nil)
	if hooks[1] != nil {
		hooks[1]()
	}
}

func (m *selfMover) goesAside() {
	held, left := m.truth.holds(m.pid), m.left
	if m.part {
		left = max(left, atomic.LoadUint64(m.stay))
	}
	m.moves(-(held - min(held, left)))
}

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

// been returns the places since the last call.
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

// wasTold returns whether the enforcer requested that place since the last call.
func (m *selfMover) wasTold(place ledger.Place) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() { m.told = nil }()
	return slices.Contains(m.told, place)
}

// isBare returns whether it may keep no host memory.
func (m *selfMover) isBare() bool {
	b := m.read()
	return ledger.Place(b[0]&15) == ledger.Bare && b[0] == b[2]
}

// moved returns whether the driver acted on a process since the last call.
func (f *fakeMover) moved(p *proc) bool {
	return strings.Contains(f.steps()+",", fmt.Sprintf(" %d,", p.pid()))
}

// steps returns the driver's actions since the last call.
func (f *fakeMover) steps() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.did = nil }()
	return strings.Join(f.did, ", ")
}

func (f *fakeTruth) holds(pid int) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes[gpu0][pid]
}

// ownTurns is a host with two elastic slices. The first one's process holds 40 GiB and moves itself; the second has not used the device yet.
func ownTurns(t *testing.T) (h *host, truth *fakeTruth, f *fakeMover, a, b *proc, m *selfMover) {
	t.Helper()
	return ownTurnsBy(t, quick)
}

func ownTurnsBy(t *testing.T, o enforcer.Elastic) (h *host, truth *fakeTruth, f *fakeMover, a, b *proc, m *selfMover) {
	t.Helper()
	t.Cleanup(enforcer.LimitMemory(func(int) bool { return false }))
	h, truth, f = elastics(t, o)
	a, b = h.elastic("a", 45*gib, 0), h.elastic("b", 45*gib, 0)
	a.works(truth, 40*gib)
	return h, truth, f, a, b, h.movesItself(a, "a", truth)
}

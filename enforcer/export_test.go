// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

func init() {
	patienceOfRelease, returnPatience, drainPatience = 3*time.Second, 300*time.Millisecond, 200*time.Millisecond
	lockPatience, answerPatience, mutePatience, ownSlowest = 300*time.Millisecond, 500*time.Millisecond, 100*time.Millisecond, 1<<50
	moveTimeout = 5 * time.Second
}

// What tests may change while an enforcer runs, which looks at it when it likes.
var (
	pretendedIdle  atomic.Int64
	pretendedHost  atomic.Pointer[func() uint64]
	pretendedShort atomic.Pointer[func(pid int, bytes uint64) *cgroup.Short]
)

func init() {
	idleAfter = func() time.Duration { return cmp.Or(time.Duration(pretendedIdle.Load()), api.IdleAfter) }
	memoryOfHost = func() (available, total uint64, known bool) {
		if f := pretendedHost.Load(); f != nil {
			return (*f)(), 1 << 40, true
		}
		return hostMemory()
	}
	memoryShort = func(host *cgroup.Host, needs map[int]uint64) (*cgroup.Short, error) {
		f := pretendedShort.Load()
		if f == nil {
			return host.MemoryShort(needs)
		}
		for pid, bytes := range needs {
			if short := (*f)(pid, bytes); short != nil {
				return short, nil
			}
		}
		return nil, nil
	}
}

// IdleAfter makes who makes no call for so long count as idle on his devices, until it is called again with 0.
func IdleAfter(d time.Duration) { pretendedIdle.Store(int64(d)) }

// HostHas makes the host have so many bytes of memory available, of 1 TiB, until it is called again with 0.
func HostHas(bytes uint64) {
	if bytes == 0 {
		pretendedHost.Store(nil)
		return
	}
	HostHasBy(func() uint64 { return bytes })
}

// HostHasBy makes the host have as many bytes available as f says when it is asked.
func HostHasBy(f func() uint64) { pretendedHost.Store(&f) }

// LimitMemory has the cgroups of those processes have a limit of memory for which f says so, and no others, until restore.
func LimitMemory(f func(pid int) bool) (restore func()) {
	return pretendShort(func(pid int, bytes uint64) *cgroup.Short {
		if !f(pid) || bytes <= 1<<42 {
			return nil
		}
		return &cgroup.Short{Dir: "x", Limit: 1 << 42, Left: 1 << 42, Need: bytes}
	})
}

// ShortOfMemory has the cgroup of a process have no room for so many more bytes for which f says so, until restore.
func ShortOfMemory(f func(pid int, bytes uint64) bool) (restore func()) {
	return pretendShort(func(pid int, bytes uint64) *cgroup.Short {
		if !f(pid, bytes) {
			return nil
		}
		return &cgroup.Short{Dir: fmt.Sprint("of ", pid), Limit: 1 << 30, Left: 1 << 20, Need: bytes}
	})
}

func pretendShort(f func(pid int, bytes uint64) *cgroup.Short) (restore func()) {
	pretendedShort.Store(&f)
	return func() { pretendedShort.Store(nil) }
}

// LeavePlaces makes the slice's ledger look as if all but n of its process slots had been given out.
func (e *Enforcer) LeavePlaces(id string, n int) {
	s := e.find(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quota.Next = uint32(ledger.Slots + 1 - n)
}

// LeavePlacesInPool is LeavePlaces for a pool's ledger.
func (e *Enforcer) LeavePlacesInPool(name string, n int) {
	p := e.findPool(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quota.Next = uint32(ledger.Slots + 1 - n)
}

// HoldSlice takes a slice's lock, as one would who never gives it back; HoldTurns the turns of slices and pools. What they return
// gives it back, and may be called twice.
func (e *Enforcer) HoldSlice(id string) (release func()) {
	s := e.find(id)
	s.mu.Lock()
	return sync.OnceFunc(s.mu.Unlock)
}

func (e *Enforcer) HoldTurns(names ...string) (release func()) {
	var turns []*guard.Turn
	for _, name := range names {
		if s := e.find(name); s != nil {
			turns = append(turns, s.turn)
		}
		if p := e.findPool(name); p != nil {
			turns = append(turns, p.turn)
		}
	}
	for _, t := range turns {
		t.Wait()
	}
	return sync.OnceFunc(func() {
		for _, t := range turns {
			t.Give()
		}
	})
}

// Age makes all that was done be longer ago.
func (e *Enforcer) Age(by time.Duration) {
	e.progress.checked.Add(-int64(by))
	e.progress.changed.Add(-int64(by))
	if e.truth != nil {
		for _, g := range e.truth.devices {
			g.answer.Add(-int64(by))
		}
	}
}

// Asked says whether it is noted that the slice's processes were asked to end.
func (e *Enforcer) Asked(id string) bool {
	s := e.find(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked != 0
}

// LoseDisk has every write to the disk fail from now on.
func (e *Enforcer) LoseDisk() error { return e.store.Close() }

// BeforeWrites has f called before each write of an enforcer that is started from now on until restore, with what is written; its
// error fails the write.
func BeforeWrites(f func(key string) error) (restore func()) {
	beforeWrite = f
	return func() { beforeWrite = nil }
}

// Silence has reading the mappings of processes time out, from the next start of an enforcer until restore.
func Silence(silent func(pid int) bool) (restore func()) {
	hang := make(chan struct{})
	findIn = func(pid int, wanted ledger.Wanted, open func(ledger.Identity) bool) ([]ledger.Found, error) {
		if silent(pid) {
			<-hang
			return nil, os.ErrNotExist
		}
		return ledger.Find(pid, wanted, open)
	}
	return sync.OnceFunc(func() {
		findIn = ledger.Find
		close(hang)
	})
}

// HideCgroups has the kernel not tell which cgroup a process is in, as if that were too deep, until restore.
func HideCgroups() (restore func()) {
	was := membershipOf
	membershipOf = func(*cgroup.Host, int) (cgroup.Membership, error) { return cgroup.Membership{}, syscall.ENAMETOOLONG }
	return func() { membershipOf = was }
}

// PretendOwned has every process be of every user, until restore.
func PretendOwned() (restore func()) {
	ownedBy = func(int, uint32) bool { return true }
	return func() { ownedBy = process.OwnedBy }
}

// TellRefusals tells so many refusals of a slice.
func (e *Enforcer) TellRefusals(id string, n int) {
	s := e.find(id)
	for range n {
		s.tell(api.Event{Kind: api.EventRefused, Count: 1})
	}
}

// WaitWithReleases makes a release wait for the driver for so long.
func WaitWithReleases(limit time.Duration) (restore func()) {
	was := patienceOfRelease
	patienceOfRelease = limit
	return func() { patienceOfRelease = was }
}

// ForgetObstacles has it be tried again at once to evict what could not be moved.
func ForgetObstacles(e *Enforcer) {
	for _, s := range e.elasticOnes() {
		s.obstruct(nil)
	}
}

// HoldHosting takes the turn of requests for host memory, and returns what gives it.
func (e *Enforcer) HoldHosting() (give func()) {
	e.hosting.Wait()
	return e.hosting.Give
}

// AskForHost has a process of a slice ask for host memory.
func (e *Enforcer) AskForHost(id string, pid int, to uint64) error {
	s := e.find(id)
	s.mu.Lock()
	peer := s.quota.Of(pid).Process
	s.mu.Unlock()
	files, err := s.giveHost(peer, 0, to)
	for _, f := range files {
		_ = f.Close()
	}
	return err
}

// LedgerOf is a slice's ledger, and the lane of one of its processes there.
func (e *Enforcer) LedgerOf(id string, pid int) (*os.File, uint32) {
	s := e.find(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	file, err := s.quota.Ledger.File()
	if err != nil {
		panic(err)
	}
	return file, s.quota.Of(pid).Number
}

// EvictFor has others evicted for a slice that was refused by the book.
func (e *Enforcer) EvictFor(id string, refused error) error {
	return e.evictFor(refused, e.find(id).wantBack(""))
}

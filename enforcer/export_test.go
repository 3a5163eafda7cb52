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
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/devices"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/mover"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/test/await"
)

var (
	pretendedIdle  atomic.Int64
	pretendedHost  atomic.Pointer[func() uint64]
	pretendedShort atomic.Pointer[func(pid int, bytes uint64) *cgroup.Short]
	moveLimits     = mover.Limits{Call: 5 * time.Second, Lock: await.Patience, Answer: await.Patience, Silent: await.Patience, Slowest: 1 << 50}
)

func init() {
	patienceOfRelease, returnPatience, drainPatience, tellPatience = 3*time.Second, 300*time.Millisecond, 200*time.Millisecond, await.Patience
	idleAfter = func() time.Duration { return cmp.Or(time.Duration(pretendedIdle.Load()), api.IdleAfter) }
	moverOptions = func(o *mover.Options) {
		meminfo, short := o.Meminfo, o.MemoryShort
		o.Limits = moveLimits
		o.Meminfo = func() (available, total uint64, known bool) {
			if f := pretendedHost.Load(); f != nil {
				return (*f)(), 1 << 40, true
			}
			return meminfo()
		}
		o.MemoryShort = func(needs, beside map[int]uint64) (*cgroup.Short, error) {
			f := pretendedShort.Load()
			if f == nil {
				return short(needs, beside)
			}
			for pid, bytes := range needs {
				if short := (*f)(pid, bytes); short != nil {
					return short, nil
				}
			}
			return nil, nil
		}
	}
}

// IdleAfter makes lanes count as idle after d without a call. 0 undoes it.
func IdleAfter(d time.Duration) { pretendedIdle.Store(int64(d)) }

// HostHas sets the available memory of the host, out of 1 TiB. 0 undoes it.
func HostHas(bytes uint64) {
	if bytes == 0 {
		pretendedHost.Store(nil)
		return
	}
	HostHasBy(func() uint64 { return bytes })
}

// HostHasBy has f return the available memory of the host.
func HostHasBy(f func() uint64) { pretendedHost.Store(&f) }

// LimitMemory has only those processes' cgroups limit memory for which f returns true, until restore.
func LimitMemory(f func(pid int) bool) (restore func()) {
	return pretendShort(func(pid int, bytes uint64) *cgroup.Short {
		if !f(pid) || bytes <= 1<<42 {
			return nil
		}
		return &cgroup.Short{Dir: "x", Limit: 1 << 42, Left: 1 << 42, Need: bytes}
	})
}

// ShortOfMemory has a process's cgroup lack room for more bytes where f returns true, until restore.
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

// HoldSlice takes a slice's lock, HoldTurns the turns of slices and pools. Their results undo that, and may be called twice.
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

// Backdate moves the times of the last progress, and of the driver's last answers, back.
func (e *Enforcer) Backdate(by time.Duration) {
	e.progress.checked.Add(-int64(by))
	e.progress.changed.Add(-int64(by))
	if e.truth != nil {
		for _, g := range e.truth.All() {
			g.Answer.Add(-int64(by))
		}
	}
}

// Asked returns whether the slice's record notes the request to its processes to exit.
func (e *Enforcer) Asked(id string) bool {
	s := e.find(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Asked != 0
}

// LoseDisk makes all further writes to the disk fail.
func (e *Enforcer) LoseDisk() error { return e.store.Close() }

// BeforeWrites has enforcers that are started before restore call f before each write. f's error fails the write.
func BeforeWrites(f func(key string) error) (restore func()) {
	beforeWrite = f
	return func() { beforeWrite = nil }
}

// Silence makes reading the mappings of processes time out in enforcers that are started before restore.
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

// HideCgroups has the kernel not report any process's cgroup, as if its path were too long, until restore.
func HideCgroups() (restore func()) {
	was := membershipOf
	membershipOf = func(*cgroup.Host, int) (cgroup.Membership, error) { return cgroup.Membership{}, syscall.ENAMETOOLONG }
	return func() { membershipOf = was }
}

func PretendOwned() (restore func()) {
	ownedBy = func(int, uint32) bool { return true }
	return func() { ownedBy = process.OwnedBy }
}

func (e *Enforcer) TellRefusals(id string, n int) {
	s := e.find(id)
	for range n {
		s.tell(api.Event{Kind: api.EventRefused, Count: 1})
	}
}

func WaitWithReleases(limit time.Duration) (restore func()) {
	was := patienceOfRelease
	patienceOfRelease = limit
	return func() { patienceOfRelease = was }
}

// TellInTime has the enforcer answer processes in its usual time, until restore.
func TellInTime() (restore func()) {
	tellPatience = devices.ShortTimeout
	return func() { tellPatience = await.Patience }
}

// LosePatience shortens the waits for processes that do not move themselves, in enforcers that are started before restore.
func LosePatience() (restore func()) {
	was := moveLimits
	moveLimits.Lock, moveLimits.Answer, moveLimits.Silent = 300*time.Millisecond, 500*time.Millisecond, 100*time.Millisecond
	return func() { moveLimits = was }
}

// Idle returns for how long an elastic slice has been idle, by all calls that its processes have made.
func (e *Enforcer) Idle(id string) (idle time.Duration) {
	s := e.find(id)
	e.observeAll()
	e.book.Do(func(a *core.Accounts) {
		a.At(e.now())
		idle = a.Waiting(s.holder).Idle
	})
	return idle
}

// ForgetObstacles has enforcers retry failed evictions soon.
func ForgetObstacles() (restore func()) {
	was := obstacleLasts
	obstacleLasts = 100 * time.Millisecond
	return func() { obstacleLasts = was }
}

// HoldHosting takes the turn for requests for host memory, and returns the function that gives it back.
func (e *Enforcer) HoldHosting() (give func()) {
	e.mover.Giving.Wait()
	return e.mover.Giving.Give
}

func (e *Enforcer) AskForHost(id string, pid int, to uint64) error {
	s := e.find(id)
	s.mu.Lock()
	peer := s.quota.Of(pid).Process
	s.mu.Unlock()
	files, err := s.memory.GiveHost(peer, 0, to)
	for _, f := range files {
		_ = f.Close()
	}
	return err
}

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

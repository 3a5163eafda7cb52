// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// fakeMover is the driver's checkpoint, over what fakeTruth lists for each process.
type fakeMover struct {
	truth *fakeTruth
	mu    sync.Mutex
	state map[int]checkpoint.State
	away  map[int]map[string]uint64
	fails map[checkpoint.Action]map[int]int
	did   []string

	deafens checkpoint.Action // at this action the driver stops answering
	deaf    bool
	before  func(checkpoint.Action, int) // called before an action on a process, unless nil
	then    func(checkpoint.Action)      // called after an action, unless nil
}

func newMover(truth *fakeTruth) *fakeMover {
	return &fakeMover{truth: truth, state: make(map[int]checkpoint.State), away: make(map[int]map[string]uint64), fails: make(map[checkpoint.Action]map[int]int)}
}

func (f *fakeMover) State(of process.Identity, _ time.Duration) (checkpoint.State, error) {
	pid := of.PID
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deaf {
		return 0, errors.New("the driver does not answer")
	}
	return f.state[pid], nil
}

// set changes what it does.
func (f *fakeMover) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeMover) beforeEach(do func(checkpoint.Action, int)) { f.set(func() { f.before = do }) }
func (f *fakeMover) afterEach(do func(checkpoint.Action))       { f.set(func() { f.then = do }) }

// deafen has the driver stop answering at an action, and answer again with "".
func (f *fakeMover) deafen(action checkpoint.Action) {
	f.set(func() { f.deafens, f.deaf = action, false })
}

func (f *fakeMover) Do(action checkpoint.Action, to process.Identity, _ time.Duration) error {
	pid := to.PID
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	if before != nil {
		before(action, pid)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.did = append(f.did, fmt.Sprint(action, " ", pid))
	if f.deaf = f.deaf || action == f.deafens; f.deaf {
		return errors.New("the driver does not answer")
	}
	step := map[checkpoint.Action][2]checkpoint.State{
		checkpoint.Lock:       {checkpoint.Running, checkpoint.Locked},
		checkpoint.Checkpoint: {checkpoint.Locked, checkpoint.Checkpointed},
		checkpoint.Restore:    {checkpoint.Checkpointed, checkpoint.Locked},
		checkpoint.Unlock:     {checkpoint.Locked, checkpoint.Running},
	}[action]
	if f.state[pid] != step[0] {
		return &checkpoint.Error{Action: action, PID: pid, Result: 401, Name: "CUDA_ERROR_ILLEGAL_STATE"}
	}
	if result := f.fails[action][pid]; result != 0 {
		if action == checkpoint.Restore {
			f.state[pid] = checkpoint.Failed
		}
		return &checkpoint.Error{Action: action, PID: pid, Result: result, Name: fmt.Sprint("CUDA_ERROR_", result)}
	}
	switch action {
	case checkpoint.Checkpoint:
		f.away[pid] = make(map[string]uint64)
		for _, uuid := range []string{gpu0, gpu1} {
			f.truth.mu.Lock()
			bytes := f.truth.bytes[uuid][pid]
			f.truth.mu.Unlock()
			if bytes > 0 {
				f.away[pid][uuid] = bytes
				f.truth.set(uuid, pid, 0)
			}
		}
	case checkpoint.Restore:
		for uuid, bytes := range f.away[pid] {
			f.truth.set(uuid, pid, bytes)
		}
	}
	f.state[pid] = step[1]
	if f.then != nil {
		f.then(action)
	}
	return nil
}

func (f *fakeMover) fail(action checkpoint.Action, pid, result int) {
	f.set(func() { f.fails[action] = map[int]int{pid: result} })
}

func (f *fakeMover) states() map[int]checkpoint.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.state)
}

func movers(t *testing.T) (*host, *fakeTruth, *fakeMover) {
	t.Helper()
	enforcer.HostHas(1 << 40)
	t.Cleanup(func() { enforcer.HostHas(0) })
	h, truth := newTruthHost(t)
	f := newMover(truth)
	h.with(func(o *enforcer.Options) { o.Checkpoint = f })
	return h, truth, f
}

func (p *proc) takes(truth *fakeTruth, bytes uint64) {
	p.t.Helper()
	p.must("charge 0 %d", bytes)
	truth.mu.Lock()
	had := truth.bytes[gpu0][p.pid()]
	truth.mu.Unlock()
	truth.set(gpu0, p.pid(), had+bytes)
}

func (h *host) suspend(id string) error {
	return must.Err(h.Suspend(context.Background(), id))
}

func (h *host) resume(id string) error {
	return must.Err(h.Resume(context.Background(), id))
}

func refusedWith(t *testing.T, err error, code api.Code, words ...string) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("%v, want a refusal %q", err, code)
	}
	for _, w := range words {
		expect.Contains(t, e.Message, w)
	}
}

func (h *host) granted(t *testing.T) uint64 {
	t.Helper()
	devices := must.Get(h.Devices(context.Background()))(t)
	return devices[0].Quotas
}

func TestTwoSlicesThatDoNotFitTogetherTakeTurnsOnADevice(t *testing.T) {
	h, truth, f := movers(t)
	a, _ := h.session("a", on(gpu0, 50*gib))
	a.uses().takes(truth, 40*gib)
	must.Do(t, h.suspend("a"))
	s := h.see("a")
	if d := s.Devices[0]; s.State != api.Suspended || d.Used != 0 || d.Overhead != 0 || d.Suspended != 40*gib || d.Limit != 50*gib {
		t.Fatalf("%+v", s)
	}
	if p := s.Processes; len(p) != 1 || p[0].Devices[0].Used != 0 || p[0].Devices[0].Suspended != 40*gib {
		t.Errorf("%+v", p)
	}
	if devices, err := h.Devices(context.Background()); err != nil || devices[0].Quotas != 0 || devices[0].Suspended != 40*gib {
		t.Errorf("%+v, %v", devices, err)
	}
	refusedWith(t, h.suspend("a"), api.CodeBadRequest, "is suspended already")

	b, _ := h.session("b", on(gpu0, 50*gib))
	b.uses().takes(truth, 45*gib)
	refusedWith(t, h.resume("a"), api.CodeQuotaExceeded, "a asks for 50GiB", "b has 50GiB")
	if s := h.see("a"); s.State != api.Suspended || f.states()[a.pid()] != checkpoint.Checkpointed {
		t.Fatalf("after a refusal: %+v, %v", s, f.states())
	}
	must.Do(t, h.suspend("b"))
	must.Do(t, h.resume("a"))
	if s := h.see("a"); s.State != api.Active || s.Devices[0].Used != 40*gib || s.Devices[0].Suspended != 0 || h.granted(t) != 50*gib {
		t.Fatalf("%+v", s)
	}
	a.must("charge 0 %d", 10*gib)
	a.expect("refused", "charge 0 1")
	refusedWith(t, h.resume("a"), api.CodeBadRequest, "is not suspended")
	refusedWith(t, h.resume("b"), api.CodeQuotaExceeded, "a has 50GiB")
	refusedWith(t, h.resume("c"), api.CodeNotFound)
}

// A thread of the suspended process has charged, and waits in the driver to allocate.
func TestAChargeThatWaitsIsWithinTheQuotaOfASuspendedSlice(t *testing.T) {
	h, truth, _ := movers(t)
	a, _ := h.session("a", on(gpu0, 4*gib))
	a.uses().takes(truth, 3*gib)
	must.Do(t, h.suspend("a"))
	a.must("charge 0 %d", gib)
	a.expect("refused", "charge 0 1")
	expect.Equal(t, h.see("a").Devices[0].Used, 0, "used")
	must.Do(t, h.resume("a"))
	expect.Equal(t, h.see("a").Devices[0].Used, 4*gib, "used")
}

func two(t *testing.T, h *host, id string, quota uint64) (a, b *proc) {
	t.Helper()
	a, more, _ := h.container(api.RegisterRequest{ID: id, Quotas: []api.Quota{on(gpu0, quota)}})
	b = more()
	return a.uses(), b.uses()
}

// Its memory may be on the device.
func TestSliceKeepsItsGrantIfTheDriverDoesNotAnswer(t *testing.T) {
	for _, action := range []checkpoint.Action{checkpoint.Lock, checkpoint.Checkpoint} {
		h, truth, f := movers(t)
		a, _ := h.session("a", on(gpu0, 50*gib))
		a.uses().takes(truth, 40*gib)
		f.deafen(action)
		expect.Error(t, h.suspend("a"), "it is suspended")
		if s := h.see("a"); s.State != api.Resuming || h.granted(t) != 50*gib {
			t.Errorf("%s: %+v, %d granted", action, s, h.granted(t))
		}
		f.deafen("")
		must.Do(t, h.resume("a"))
		if s := h.see("a"); s.State != api.Active || s.Devices[0].Used != 40*gib || f.states()[a.pid()] != checkpoint.Running {
			t.Errorf("%s: %+v, %v", action, s, f.states())
		}
	}
}

// The slice is evicted, its return cannot be recorded, so its processes stay stopped.
func TestSliceRunsOnlyAfterItsReturn(t *testing.T) {
	var full atomic.Bool
	t.Cleanup(enforcer.BeforeWrites(func(key string) error {
		if full.Load() && key == "slices/a" {
			return syscall.ENOSPC
		}
		return nil
	}))
	h, truth, f := elastics(t, quick)
	a := h.elastic("a", 50*gib, 0).works(truth, 40*gib)
	f.fail(checkpoint.Unlock, a.pid(), 999)
	f.afterEach(func(done checkpoint.Action) {
		if done == checkpoint.Checkpoint {
			full.Store(true)
		}
	})
	expect.Error(t, h.suspend("a"), "it is suspended")
	if s := h.see("a"); s.State != api.Resuming || h.granted(t) != 50*gib {
		t.Errorf("%+v, %d granted", s, h.granted(t))
	}
	a.expect("away", "enter")
	full.Store(false)
	f.fail(checkpoint.Unlock, 0, 0)
	must.Do(t, h.resume("a"))
	a.expect("ok 1", "enter")
}

func TestAllProcessesOfASliceAreSuspendedOrNone(t *testing.T) {
	h, truth, f := movers(t)
	a, b := two(t, h, "c", 50*gib)
	a.takes(truth, 10*gib)
	b.takes(truth, 10*gib)
	last := max(a.pid(), b.pid())
	untouched := func(what string) {
		t.Helper()
		for pid, state := range f.states() {
			expect.Equal(t, state, checkpoint.Running, what, "process", pid)
		}
		if s := h.see("c"); s.State != api.Active || s.Devices[0].Used != 20*gib || h.granted(t) != 50*gib {
			t.Errorf("%s: %+v", what, s)
		}
	}
	f.fail(checkpoint.Checkpoint, last, checkpoint.ResultNotSupported)
	refusedWith(t, h.suspend("c"), api.CodeBadRequest, fmt.Sprint("process ", last), "managed memory")
	untouched("managed memory")
	f.fail(checkpoint.Checkpoint, 0, 0)
	f.fail(checkpoint.Lock, last, checkpoint.ResultNotReady)
	refusedWith(t, h.suspend("c"), api.CodeBadRequest, "does not finish")
	untouched("work that does not end")
	f.fail(checkpoint.Lock, 0, 0)

	f.set(func() { f.state[last] = checkpoint.Locked })
	refusedWith(t, h.suspend("c"), api.CodeBadRequest, "is locked by a program outside gpuslice")
	f.set(func() { f.state[last] = checkpoint.Running })
	untouched("one that is locked")
	enforcer.HostHas(15 * gib)
	refusedWith(t, h.suspend("c"), api.CodeBadRequest, "it holds 20GiB, and the host has 15GiB")
	untouched("a host that has not the memory")
	enforcer.HostHas(1 << 40)

	must.Do(t, h.suspend("c"))
	b.kill()
	eventually(t, "its bytes are given back", func() bool { return h.see("c").Devices[0].Suspended == 10*gib })
	must.Do(t, h.resume("c"))
	if s := h.see("c"); s.State != api.Active || s.Devices[0].Used != 10*gib {
		t.Errorf("%+v", s)
	}
}

func TestMovesAtOneTimeShareTheHostsMemory(t *testing.T) {
	h, truth, f := movers(t)
	a, _ := h.session("a", on(gpu0, 30*gib))
	b, _ := h.session("b", on(gpu0, 30*gib))
	a.uses().takes(truth, 20*gib)
	b.uses().takes(truth, 20*gib)
	enforcer.HostHas(30 * gib)
	var beside error
	f.beforeEach(func(action checkpoint.Action, pid int) {
		if action == checkpoint.Checkpoint && pid == a.pid() {
			beside = h.suspend("b")
		}
	})
	must.Do(t, h.suspend("a"))
	refusedWith(t, beside, api.CodeBadRequest, "it holds 20GiB, and the host has 10GiB")
	must.Do(t, h.suspend("b"))
}

func TestASliceWithAProcessThatNeverAttachedIsNotSuspended(t *testing.T) {
	h, truth, _ := movers(t)
	cgroup := newCgroup(t)
	a := start(t, filepath.Join(h.options.RunDir, "to"), cgroup)
	must.Get(h.Register(context.Background(), api.RegisterRequest{ID: "c", Container: "c", PID: a.pid(), Quotas: []api.Quota{on(gpu0, gib)}}))(t)
	truth.set(gpu0, a.pid(), 64*mib)
	refusedWith(t, h.suspend("c"), api.CodeBadRequest, fmt.Sprint("process ", a.pid()), "never attached")
}

// On a card the driver's calls on such a process do not return.
func TestTheDriverIsNotAskedForAProcessThatIsStopped(t *testing.T) {
	h, truth, f := movers(t)
	a, _ := two(t, h, "one", 40*gib)
	a.takes(truth, gib)
	must.Do(t, a.cmd.Process.Signal(syscall.SIGSTOP))
	eventually(t, "it is stopped", func() bool { return process.Stopped(a.pid()) })
	refusedWith(t, h.suspend("one"), api.CodeBadRequest, "is stopped", fmt.Sprintf("kill -CONT %d", a.pid()))
	if _, asked := f.states()[a.pid()]; asked {
		t.Error("the driver was asked")
	}
	must.Do(t, a.cmd.Process.Signal(syscall.SIGCONT))
	eventually(t, "the process continues", func() bool { return !process.Stopped(a.pid()) })
	must.Do(t, h.suspend("one"))
	must.Do(t, h.resume("one"))
}

func TestNothingIsRestoredWithoutRoomOnTheDevice(t *testing.T) {
	h, truth, f := movers(t)
	a, _ := h.session("a", on(gpu0, 50*gib))
	a.uses().takes(truth, 40*gib)
	must.Do(t, h.suspend("a"))
	truth.set(gpu0, 1, 45*gib) // of no slice
	refusedWith(t, h.resume("a"), api.CodeQuotaExceeded, "on device 0", "34GiB are free", "outside slices holds 45GiB")
	if s := h.see("a"); s.State != api.Suspended || h.granted(t) != 0 || f.states()[a.pid()] != checkpoint.Checkpointed {
		t.Fatalf("%+v", s)
	}
	truth.set(gpu0, 1, 0)
	must.Do(t, h.resume("a"))
}

// The driver gives no reason, and such a process cannot be restored.
func TestSliceWithALostProcessStaysSuspendedUntilThatExits(t *testing.T) {
	h, truth, f := movers(t)
	a, b := two(t, h, "c", 50*gib)
	a.takes(truth, 10*gib)
	b.takes(truth, 10*gib)
	must.Do(t, h.suspend("c"))
	first, last := a, b
	if a.pid() > b.pid() {
		first, last = b, a
	}
	f.fail(checkpoint.Restore, last.pid(), 2)
	expect.Error(t, h.resume("c"), "it is resumed without one of its processes")
	if s := h.see("c"); s.State != api.Suspended || !strings.Contains(s.Reason, fmt.Sprint(last.pid())) || f.states()[first.pid()] != checkpoint.Checkpointed {
		t.Fatalf("%+v, %v", s, f.states())
	}
	refusedWith(t, h.resume("c"), api.CodeBadRequest, fmt.Sprint("lost process ", last.pid()))
	last.kill()
	eventually(t, "the others come back", func() bool { return h.resume("c") == nil })
	eventually(t, "they hold what they held", func() bool {
		s := h.see("c")
		return s.State == api.Active && s.Devices[0].Used == 10*gib
	})
}

// A restore without room would lose it, too.
func TestWhatWasNotBroughtBackIsNotForThatOneOfAllIsLost(t *testing.T) {
	h, truth, f := movers(t)
	cgroup := newCgroup(t)
	link := filepath.Join(h.options.RunDir, "to-c")
	var all []*proc
	for range 3 {
		all = append(all, start(t, link, cgroup))
	}
	reply := must.Get(h.Register(context.Background(), api.RegisterRequest{ID: "c", Container: "c", PID: all[0].pid(), Quotas: []api.Quota{on(gpu0, 50*gib)}}))(t)
	lead(t, link, reply)
	for _, p := range all {
		p.uses().takes(truth, 10*gib)
	}
	must.Do(t, h.suspend("c"))
	slices.SortFunc(all, func(a, b *proc) int { return a.pid() - b.pid() })
	f.fail(checkpoint.Restore, all[1].pid(), 2)
	expect.Error(t, h.resume("c"), "it is resumed without one of its processes")
	for _, step := range f.did {
		expect.True(t, step != fmt.Sprint("restore ", all[2].pid()), "the last was restored", f.did)
	}
}

func TestOtherMembersMayUseASuspendedMembersMemory(t *testing.T) {
	h, truth, _ := movers(t)
	h.pool("llm", on(gpu0, 8*gib))
	a, b := h.member("a", "llm").uses(), h.member("b", "llm", on(gpu0, 8*gib)).uses()
	a.takes(truth, 6*gib)
	b.expect("refused", "charge 0 %d", 4*gib)
	must.Do(t, h.suspend("a"))
	expect.Equal(t, h.pooled("llm"), 0, "bytes of a suspended member are shown as used")
	b.takes(truth, 4*gib)
	refusedWith(t, h.resume("a"), api.CodeQuotaExceeded, "pool llm")
	h.restart()
	if s := h.see("a"); s.State != api.Suspended || s.Devices[0].Suspended != 6*gib {
		t.Fatalf("%+v", s)
	}
	b.must("charge 0 %d", 4*gib)
	b.must("release 0 %d", 4*gib)
	refusedWith(t, h.resume("a"), api.CodeQuotaExceeded, "pool llm")
	b.must("release 0 %d", 2*gib)
	must.Do(t, h.resume("a"))
	b.expect("refused", "charge 0 1")
}

func TestASuspendedSliceOutlivesTheEnforcer(t *testing.T) {
	h, truth, f := movers(t)
	a, _ := h.session("a", on(gpu0, 50*gib))
	a.uses().takes(truth, 40*gib)
	must.Do(t, h.suspend("a"))
	h.restart()
	if s := h.see("a"); s.State != api.Suspended || s.Devices[0].Used != 0 || s.Devices[0].Suspended != 40*gib || h.granted(t) != 0 {
		t.Fatalf("%+v", s)
	}
	expect.Error(t, must.Err(h.set("a", on(gpu0, 60*gib))), "it has another quota, which nobody gave it")
	if err := h.resume("a"); err != nil || f.states()[a.pid()] != checkpoint.Running {
		t.Fatal(err, f.states())
	}
	h.restart()
	if s := h.see("a"); s.State != api.Active || s.Devices[0].Used != 40*gib {
		t.Fatalf("%+v", s)
	}
}

func TestASuspendedSliceLetsNoProcessAttach(t *testing.T) {
	h, truth, _ := movers(t)
	a, b := two(t, h, "c", 4*gib)
	a.takes(truth, gib)
	must.Do(t, h.suspend("c"))
	b.tell("exec")
	b.expect("status 3", "attach")
	must.Do(t, h.resume("c"))
	b.must("attach")
}

// A tool on the host restored it without the enforcer.
func TestSuspendedProcessRestoredByAnotherProgramIsCharged(t *testing.T) {
	h, truth, _ := movers(t)
	a, _ := h.session("s", on(gpu0, 4*gib))
	a.uses().takes(truth, 2*gib)
	must.Do(t, h.suspend("s"))
	truth.comparisons(t, 4)
	must.Equal(t, overhead(h), 0, "bytes are charged to a suspended slice")
	truth.set(gpu0, a.pid(), 2*gib)
	eventually(t, "the memory is charged", func() bool { return overhead(h) == 2*gib })
	eventually(t, "and counts", func() bool { return h.granted(t) == 2*gib || h.granted(t) == 0 })
}

func TestASuspendedSliceThatEndsLeavesNothing(t *testing.T) {
	h, truth, _ := movers(t)
	a, _ := h.session("a", on(gpu0, 50*gib))
	a.uses().takes(truth, 40*gib)
	must.Do(t, h.suspend("a"))
	a.kill()
	h.wantGone("a")
	b, _ := h.session("b", on(gpu0, 80*gib))
	b.uses().must("charge 0 %d", 80*gib)
}

// held has the driver's restore of a process hang until let is called, and closes begun when it has begun.
func (f *fakeMover) held(pid int) (begun <-chan struct{}, let func()) {
	started, release := make(chan struct{}), make(chan struct{})
	f.beforeEach(func(action checkpoint.Action, of int) {
		if action == checkpoint.Restore && of == pid {
			close(started)
			<-release
		}
	})
	return started, sync.OnceFunc(func() { close(release) })
}

// A process that does not return delays those of its slice. It delays no other slice that has room, on its device or another.
func TestFailedReturnDelaysNoOtherSlice(t *testing.T) {
	h, truth, f := movers(t)
	silent := h.suspended(truth, "silent", 40*gib, 30*gib)
	h.suspended(truth, "beside", 20*gib, 10*gib)
	other, _ := h.session("other", on(gpu1, 50*gib))
	other.must("attach")
	other.must("device %s %d", hex1, 80*gib)
	other.must("charge 0 %d", 40*gib)
	truth.set(gpu1, other.pid(), 40*gib)
	must.Do(t, h.suspend("other"))
	begun, let := f.held(silent.pid())
	defer let()
	back := make(chan error, 1)
	go func() { back <- h.resume("silent") }()
	await.Value(t, "it is being restored", begun)
	for _, id := range []string{"other", "beside"} {
		expect.NoError(t, h.resume(id), id)
	}
	let()
	expect.NoError(t, await.Value(t, "it is back", back))
}

// Memory that is reserved for one process is promised to no other until its return has failed.
func TestReservedRoomIsPromisedToNoOther(t *testing.T) {
	for _, comes := range []bool{true, false} {
		t.Run(fmt.Sprint("it comes ", comes), func(t *testing.T) {
			h, truth, f := movers(t)
			first := h.suspended(truth, "first", 45*gib, 40*gib)
			h.suspended(truth, "second", 25*gib, 20*gib)
			truth.set(gpu0, 1, 25*gib) // outside slices: 54 GiB are free, without the driver's own
			if !comes {
				f.fail(checkpoint.Restore, first.pid(), 999)
			}
			begun, let := f.held(first.pid())
			defer let()
			results := make(map[string]chan error)
			resume := func(id string) {
				results[id] = make(chan error, 1)
				go func(result chan<- error) { result <- h.resume(id) }(results[id])
			}
			resume("first")
			await.Value(t, "it is being restored", begun)
			resume("second")
			select {
			case err := <-results["second"]:
				t.Fatalf("the other slice did not wait: %v", err)
			case <-time.After(50 * time.Millisecond):
			}
			let()
			one, other := await.Value(t, "one has ended", results["first"]), await.Value(t, "the other has ended", results["second"])
			if comes {
				expect.NoError(t, one)
				refusedWith(t, other, api.CodeQuotaExceeded, "slice second", "14GiB are free")
			} else if one == nil || other != nil {
				t.Errorf("%v, %v", one, other)
			}
		})
	}
}

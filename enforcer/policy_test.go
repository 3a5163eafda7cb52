// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// does gives the host a policy of what to do about memory past the ledger.
func (h *host) does(action api.Action, scope api.Scope) *host {
	h.t.Helper()
	h.with(func(o *enforcer.Options) { o.Policy.Bypass, o.Policy.Scope = action, scope })
	return h
}

func newPolicyHost(t *testing.T, action api.Action, scope api.Scope) (*host, *fakeTruth) {
	t.Helper()
	h, truth := newTruthHost(t)
	return h.does(action, scope), truth
}

func (f *fakeTruth) comparisons(t *testing.T, n int) {
	t.Helper()
	from := f.looked()
	eventually(t, "driver and ledger are compared", func() bool { return f.looked() > from+n })
}

func (p *proc) dead() bool {
	var info syscall.WaitStatus
	pid, err := syscall.Wait4(p.pid(), &info, syscall.WNOHANG, nil)
	return pid == p.pid() || err == syscall.ECHILD
}

// pair registers slice s of a container with two processes, and returns them.
func (h *host) pair(quotas ...api.Quota) (first, second *proc) {
	h.t.Helper()
	first, more, _ := h.container(api.RegisterRequest{ID: "s", Quotas: quotas})
	return first, more()
}

func TestAProcessThatNeverAttachedIsNamed(t *testing.T) {
	h, truth := newTruthHost(t)
	p, _ := h.session("s", on(gpu0, 4*gib))
	truth.set(gpu0, p.pid(), 3*gib)
	eventually(t, "the bypass event", func() bool { return len(h.told(api.EventBypass)) > 0 })
	truth.comparisons(t, 8)
	events := h.told(api.EventBypass)
	must.Len(t, events, 1, "it is told once")
	e := events[0]
	if e.PID != p.pid() || e.Command != "client" || e.Device != gpu0 || e.Bytes != 3*gib || e.Cause != api.BypassUnattached || e.Action != api.Log || *e.Limit != 4*gib {
		t.Fatalf("%+v", e)
	}
	if s := h.see("s"); s.State != api.Active || s.Devices[0].Bypass != 3*gib || s.Processes[0].Bypass != api.BypassUnattached {
		t.Fatalf("%+v", s)
	}
	truth.set(gpu0, p.pid(), 0)
	eventually(t, "an event reports that it is cleared", func() bool { return len(h.told(api.EventCleared)) == 1 })
	must.Equal(t, h.see("s").Devices[0].Bypass, 0, "bypass")
}

// Also on a device without a quota of the slice.
func TestAProcessThatUsesADeviceWithoutAQuotaIsNamed(t *testing.T) {
	h, truth := newTruthHost(t)
	p, _ := h.session("s", on(gpu0, 4*gib))
	truth.set(gpu1, p.pid(), gib)
	eventually(t, "the bypass event", func() bool { return len(h.told(api.EventBypass)) == 1 })
	if e := h.told(api.EventBypass)[0]; e.Device != gpu1 || e.Limit != nil {
		t.Fatalf("%+v", e)
	}
}

func TestPolicyKillEndsOnlyTheProcess(t *testing.T) {
	h, truth := newPolicyHost(t, api.Kill, api.ScopeProcess)
	honest, hidden := h.pair(on(gpu0, 4*gib))
	honest.must("attach")
	honest.must("charge 0 %d", gib)
	truth.set(gpu0, honest.pid(), gib+300*mib)
	truth.set(gpu0, hidden.pid(), 2*gib)
	eventually(t, "the process is dead", hidden.dead)
	truth.set(gpu0, hidden.pid(), 0)
	eventually(t, "the death is told", func() bool { return len(h.told(api.EventKilled)) == 1 })
	if e := h.told(api.EventKilled)[0]; e.PID != hidden.pid() || e.Command != "client" || e.Bytes != 2*gib || e.Count != 1 {
		t.Fatalf("%+v", e)
	}
	truth.comparisons(t, 20)
	honest.must("charge 0 %d", gib)
	expect.Equal(t, len(h.told(api.EventKilled)), 1, "were killed")
}

func TestThePolicyKillsTheSlice(t *testing.T) {
	h, truth := newPolicyHost(t, api.Kill, api.ScopeSlice)
	honest, hidden := h.pair(on(gpu0, 4*gib))
	honest.must("attach")
	truth.set(gpu0, hidden.pid(), 2*gib)
	eventually(t, "both are dead", func() bool { return hidden.dead() && honest.dead() })
	truth.set(gpu0, hidden.pid(), 0)
	eventually(t, "the slice is gone", func() bool { _, err := h.Slice(context.Background(), "s"); return err != nil })
	if events := h.told(api.EventKilled); len(events) != 1 || events[0].PID != hidden.pid() || events[0].Count < 2 {
		t.Fatalf("%+v", events)
	}
}

func TestPolicyRefusesWhileTheViolationLasts(t *testing.T) {
	h, truth := newPolicyHost(t, api.Refuse, "")
	honest, hidden := h.pair(on(gpu0, 8*gib), on(gpu1, 8*gib))
	honest.must("attach")
	honest.must("charge 0 %d", 2*gib)
	truth.set(gpu0, honest.pid(), 2*gib)
	truth.set(gpu0, hidden.pid(), gib)
	frozen := func() bool { return h.see("s").State == api.Frozen }
	eventually(t, "the slice is frozen", frozen)
	honest.expect("refused", "charge 0 1") // although 5 GiB of the quota are left
	honest.expect("refused", "charge 1 1")
	s := h.see("s")
	if s.Devices[0].Limit != 8*gib || s.Devices[0].Bypass != gib || !strings.Contains(s.Reason, "(client) holds 1GiB on "+gpu0) {
		t.Fatalf("%+v", s)
	}
	truth.set(gpu0, honest.pid(), gib)
	honest.must("release 0 %d", gib)
	honest.expect("refused", "charge 0 1")

	h.restart()
	must.True(t, frozen(), "a restart gives it back")
	eventually(t, "it is found again", func() bool { return len(h.told(api.EventBypass)) == 1 })
	truth.comparisons(t, 8)
	must.True(t, frozen(), "it is not frozen any more")

	hidden.kill()
	truth.set(gpu0, hidden.pid(), 0)
	eventually(t, "the slice is active again", func() bool { return h.see("s").State == api.Active })
	eventually(t, "the hidden memory is released, too", func() bool { return honest.ask("charge 0 %d", 7*gib) != "refused" })
	honest.must("charge 1 %d", 8*gib)
	honest.expect("refused", "charge 0 1")
	eventually(t, "that is told", func() bool { return len(h.told(api.EventCleared)) == 1 })
	if s := h.see("s"); s.Reason != "" || len(h.told(api.EventKilled)) != 0 {
		t.Fatalf("%+v", s)
	}
}

// An enforcer that would freeze nothing unfreezes what its predecessor has frozen.
func TestChangedPolicyThawsFrozenSlices(t *testing.T) {
	h, truth := newPolicyHost(t, api.Refuse, "")
	honest, hidden := h.pair(on(gpu0, 8*gib))
	honest.must("attach")
	truth.set(gpu0, hidden.pid(), gib)
	eventually(t, "the slice is frozen", func() bool { return h.see("s").State == api.Frozen })
	h.with(func(o *enforcer.Options) { o.Policy.Bypass = api.Log })
	honest.must("charge 0 %d", gib)
	must.Equal(t, h.see("s").State, api.Active, "state")
}

func TestAnAttachedProcessIsNamedBeyondTheAllowanceAndKilledBeyondTheLimit(t *testing.T) {
	h, truth := newPolicyHost(t, api.Kill, "")
	p, _ := h.session("s", on(gpu0, 8*gib))
	p.must("attach")
	p.must("charge 0 %d", gib)
	truth.set(gpu0, p.pid(), 2*gib) // may be the driver's own
	truth.comparisons(t, 20)
	must.Len(t, h.told(api.EventBypass), 0, "what the driver takes for itself is named")
	truth.set(gpu0, p.pid(), 8*gib) // within the quota
	eventually(t, "the bypass event", func() bool { return len(h.told(api.EventBypass)) == 1 })
	truth.comparisons(t, 20)
	if e := h.told(api.EventBypass)[0]; e.Action != api.Log || e.Cause != api.BypassExcess || e.Bytes != 7*gib || p.dead() {
		t.Fatalf("%+v", e)
	}
	truth.set(gpu0, p.pid(), 8*gib+2*mib)
	eventually(t, "the process is dead", p.dead)
	eventually(t, "that is told", func() bool { return len(h.told(api.EventKilled)) == 1 })
	if events := h.told(api.EventBypass); len(events) != 2 || events[1].Action != api.Kill {
		t.Fatalf("%+v", events)
	}
}

// Once a sample no longer finds a violation, no action is taken for it, though it is not cleared yet.
func TestProcessThatReleasedItsMemoryIsNotKilled(t *testing.T) {
	h, truth := newPolicyHost(t, api.Kill, "")
	p, other := h.pair(on(gpu0, 8*gib))
	p.must("attach")
	p.must("charge 0 %d", gib)
	truth.set(gpu0, p.pid(), 8*gib)
	eventually(t, "the bypass event", func() bool { return len(h.told(api.EventBypass)) == 1 })
	truth.mu.Lock()
	truth.bytes[gpu0][p.pid()], truth.bytes[gpu0][other.pid()] = gib, 9*gib
	truth.mu.Unlock()
	eventually(t, "the other one is killed", other.dead)
	truth.set(gpu0, other.pid(), 0)
	eventually(t, "it is cleared", func() bool { return len(h.told(api.EventCleared)) == 2 })
	must.True(t, !p.dead(), "it is dead")
}

func TestRecordModeOnlyReportsViolations(t *testing.T) {
	h, truth := newPolicyHost(t, api.Kill, api.ScopeSlice)
	p := start(t, "/nonexistent", "")
	must.Get(h.Register(context.Background(), api.RegisterRequest{ID: "s", Mode: api.Record, Quotas: []api.Quota{on(gpu0, gib)}, Session: true, PID: p.pid(), UID: uint32(os.Geteuid())}))(t)
	truth.set(gpu0, p.pid(), 3*gib)
	eventually(t, "the bypass event", func() bool { return len(h.told(api.EventBypass)) == 1 })
	truth.comparisons(t, 10)
	if e := h.told(api.EventBypass)[0]; e.Action != api.Log || p.dead() {
		t.Fatalf("%+v", e)
	}
}

func TestAProcessOfNoSliceIsNoViolation(t *testing.T) {
	h, truth := newPolicyHost(t, api.Kill, api.ScopeSlice)
	p, _ := h.session("s", on(gpu0, 4*gib))
	p.must("attach")
	stranger := start(t, "/nonexistent", "")
	truth.set(gpu0, stranger.pid(), 70*gib)
	truth.comparisons(t, 20)
	if events := h.told(api.EventBypass); len(events) != 0 || stranger.dead() || p.dead() || overhead(h) != 0 {
		t.Fatalf("%+v, %+v", events, h.see("s"))
	}
}

func TestOverwrittenPageIsAViolationOfTheSlice(t *testing.T) {
	for action, dies := range map[api.Action]bool{api.Log: false, api.Refuse: false, api.Kill: true} {
		t.Run(string(action), func(t *testing.T) {
			h := newHost(t, nil).does(action, api.ScopeProcess) // needs no driver truth
			vandal, sibling := h.pair(on(gpu0, 4*gib))
			vandal.must("attach")
			sibling.must("attach")
			vandal.expect("ok", "poke %d %d", 40, 1)
			eventually(t, "the bypass event", func() bool { return len(h.told(api.EventBypass)) == 1 })
			if e := h.told(api.EventBypass)[0]; e.Cause != api.BypassOverwritten || e.Action != action || e.PID != 0 {
				t.Fatalf("%+v", e)
			}
			if !dies {
				await.Quiet(t, "it is not left alone", 100*time.Millisecond, func() bool { return vandal.dead() || sibling.dead() || !damaged(h, "s") })
				return
			}
			eventually(t, "both processes are dead", func() bool { return vandal.dead() && sibling.dead() })
			eventually(t, "the slice is gone", func() bool { _, err := h.Slice(context.Background(), "s"); return err != nil })
			if events := h.told(api.EventKilled); len(events) != 1 || events[0].Count != 2 {
				t.Fatalf("%+v", events)
			}
		})
	}
}

func TestADamagedSliceIsStillSampled(t *testing.T) {
	h, truth := newPolicyHost(t, api.Refuse, "")
	p, hidden := h.pair(on(gpu0, 4*gib))
	p.must("attach")
	p.expect("ok", "poke %d %d", 40, 1)
	eventually(t, "it is damaged", func() bool { return damaged(h, "s") })
	truth.set(gpu0, hidden.pid(), gib)
	truth.set(gpu0, p.pid(), 5*gib)
	truth.comparisons(t, 20)
	causes := make(map[string]int)
	for _, e := range h.told(api.EventBypass) {
		causes[e.Cause] = e.PID
	}
	if causes[api.BypassUnattached] != hidden.pid() || len(causes) != 2 {
		t.Fatalf("what it could have charged honestly is held against it, or not what it could not: %v", causes)
	}
	truth.set(gpu0, p.pid(), 5*gib+2*mib)
	eventually(t, "more than limit and allowance is named", func() bool {
		for _, e := range h.told(api.EventBypass) {
			if e.Cause == api.BypassExcess && e.PID == p.pid() {
				return true
			}
		}
		return false
	})
}

func TestAProcessThatChargesAllTheTimeIsFound(t *testing.T) {
	h, truth := newPolicyHost(t, api.Kill, "")
	p, _ := h.session("s", on(gpu0, 4*gib))
	p.must("attach")
	p.tell("hammer 0 %d", uint64(1)<<40)
	truth.set(gpu0, p.pid(), 6*gib)
	eventually(t, "the process is dead", p.dead)
	eventually(t, "the killed event", func() bool { return len(h.told(api.EventKilled)) > 0 })
	if events := h.told(api.EventKilled); len(events) != 1 || events[0].Cause != api.BypassExcess {
		t.Fatalf("%+v", events)
	}
}

func seconds(n int) time.Duration {
	if os.Getenv("GPUSLICE_LONG") != "" {
		n *= 8
	}
	return time.Duration(n) * time.Second
}

// Honest processes at random: they attach, create contexts of unknown size, charge before they allocate and release after they free, grow by the
// driver's overhead, call execve, and exit at any moment.
func TestHonestProcessesAreNoViolation(t *testing.T) {
	h, truth := newPolicyHost(t, api.Kill, api.ScopeSlice)
	first, _ := h.pair(on(gpu0, 40*gib))
	link, cgroup := h.options.RunDir+"/to-s", cgroupOf(t, first)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	end := time.Now().Add(seconds(3))
	var storm sync.WaitGroup
	var steps, deaths atomic.Int64
	for worker := range uint64(4) {
		storm.Go(func() {
			r := rand.New(rand.NewPCG(seed, worker))
			for time.Now().Before(end) || steps.Load() < 100 {
				honestLife(t, truth, r, link, cgroup, &steps)
				deaths.Add(1)
			}
		})
	}
	storm.Wait()
	truth.comparisons(t, 10)
	for _, kind := range []api.EventKind{api.EventBypass, api.EventKilled} {
		must.Len(t, h.told(kind), 0, "seed", seed)
	}
	must.True(t, !first.dead(), "the slice was killed")
	if d := h.see("s").Devices[0]; d.Used != 0 || d.Overhead != 0 {
		t.Fatalf("after %d steps and %d deaths: %+v", steps.Load(), deaths.Load(), d)
	}
	t.Logf("%d steps, %d deaths", steps.Load(), deaths.Load())
}

func honestLife(t *testing.T, truth *fakeTruth, r *rand.Rand, link, cgroup string, steps *atomic.Int64) {
	p := start(t, link, cgroup)
	held, own := uint64(0), uint64(0)
	show := func() { truth.set(gpu0, p.pid(), held+own) }
	begin := func() {
		p.must("attach")
		held, own = 0, 0
		if r.IntN(2) == 0 { // a context: its size is unknown until it exists
			own = uint64(1+r.IntN(600)) * mib
			show()
			expect.Equal(t, p.must("truth 0"), own, "driver truth is wrong")
			if p.ask("charge 0 %d", own) == "refused" {
				truth.set(gpu0, p.pid(), 0) // it does not fit, and is destroyed
				own = 0
			}
			held, own = own, 0
		}
	}
	begin()
	for range r.IntN(60) {
		steps.Add(1)
		switch bytes := uint64(r.IntN(4000)) * mib; r.IntN(8) {
		case 0, 1, 2:
			if strings.HasPrefix(p.ask("charge 0 %d", bytes), "ok ") {
				held += bytes
				show()
			}
		case 3, 4, 5:
			bytes = min(bytes, held)
			held -= bytes
			show()
			p.must("release 0 %d", bytes)
		case 6:
			own = uint64(r.IntN(1024)) * mib
			show()
		case 7:
			if r.IntN(4) > 0 {
				time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
				continue
			}
			truth.set(gpu0, p.pid(), 0) // the old image's memory is freed before the new image runs
			p.tell("exec")
			begin()
		}
	}
	_ = p.cmd.Process.Kill()
	if r.IntN(2) == 0 {
		time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond) // a zombie
	}
	truth.set(gpu0, p.pid(), 0)
	p.kill()
}

func cgroupOf(t *testing.T, p *proc) string {
	t.Helper()
	for _, arg := range p.cmd.Args {
		if strings.HasPrefix(arg, "/sys/fs/cgroup") {
			return arg
		}
	}
	t.Fatalf("process %d is in no cgroup of this test", p.pid())
	return ""
}

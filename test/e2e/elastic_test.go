// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// Short turns for tests, with remapping and without.
const (
	quickTurns       = "[elastic]\nmin_resident = \"200ms\"\nquantum = \"500ms\"\n"
	quickCheckpoints = quickTurns + "remap = false\n"
	stayOnDevice     = 600 * mib // limit for the context of a process that moved its memory itself
)

// eachMover runs a test with the driver's checkpoints, and with processes that remap their memory themselves.
func eachMover(t *testing.T, test func(t *testing.T, turns string)) {
	t.Run("checkpoint", func(t *testing.T) { test(t, quickCheckpoints) })
	t.Run("remap", func(t *testing.T) { test(t, quickTurns) })
}

func (h *host) elastic(quota string) *container {
	h.T.Helper()
	return h.runContainer(map[string]string{"gpuslice.vram": quota, "gpuslice.elastic": "true"}, "/bin/sleep", "600")
}

func (h *host) evictions(id string) uint64 {
	h.T.Helper()
	s := must.Get(h.Client.Slice(h.T.Context(), id))(h.T)
	return s.Elastic.Evictions
}

// Each program checks at each step that its memory is unchanged.
func TestThreeContainersThatDoNotFitTogetherWorkInTurns(t *testing.T) { eachMover(t, threeInTurns) }

func threeInTurns(t *testing.T, turns string) {
	left := uint64(0)
	if turns == quickTurns {
		left = 2 * stayOnDevice
	}
	forEachBackendWith(t, turns, func(t *testing.T, h *host, _ api.Enforcement) {
		var all []worker
		for range 3 {
			all = append(all, h.elastic("5G").works(3*gib))
		}
		deadline := time.Now().Add(5 * time.Second)
		for time.Now().Before(deadline) {
			time.Sleep(20 * time.Millisecond)
			devices, err := h.Client.Devices(t.Context())
			h.Must(err)
			if d := devices[0]; d.Quotas > 5*gib+left || d.Used != nil && *d.Used > 6*gib {
				t.Fatalf("%+v", d)
			}
		}
		for _, w := range all {
			w.goesOn()
			expect.True(t, h.evictions(w.id) != 0, w.id, "was never evicted")
		}
		if out := h.mustRun("ps"); !strings.Contains(out, "evicted") && !strings.Contains(out, "waiting") {
			t.Errorf("ps shows none that is off the card:\n%s", out)
		}
		if out := h.mustRun("inspect", all[0].id); !strings.Contains(out, "evicted ") || !strings.Contains(out, "priority 0") {
			t.Errorf("inspect does not show it:\n%s", out)
		}
		out := h.mustRun("events", "--since", "0")
		if !strings.Contains(out, "evicted: ") || !strings.Contains(out, "returned: ") || strings.Contains(out, "bypass") {
			t.Errorf("events:\n%s", out)
		}
	}, smallCard)
}

func TestAnElasticContainerMayBeKilledAtAnyTime(t *testing.T) { eachMover(t, killedAtAnyTime) }

func killedAtAnyTime(t *testing.T, turns string) {
	h := newHostBy(t, api.Intercept, turns, smallCard)
	a, b := h.elastic("5G").works(3*gib), h.elastic("5G").works(3*gib)
	for _, state := range []api.State{api.Evicted, api.Active, api.Returning, api.Evicting} {
		c := h.elastic("5G")
		c.works(gib)
		for deadline := time.Now().Add(2 * time.Second); h.state(c.id) != state && time.Now().Before(deadline); { // some are brief
		}
		must.Output(c.output(c.runtime("delete", "--force", c.id)))(t, state)
		h.Eventually("the slice is gone", h.IsGone(c.id))
	}
	a.goesOn()
	b.goesOn()
}

func TestAnEnforcerKilledWhileItEvictsLosesNoProcess(t *testing.T) { eachMover(t, enforcerKilled) }

func enforcerKilled(t *testing.T, turns string) {
	for _, point := range []string{"evict.shut", "move.stored", "move.checkpointed", "move.gone", "move.away", "move.returning", "move.restored", "move.back"} {
		t.Run(point, func(t *testing.T) {
			h := newHostBy(t, api.Intercept, turns, smallCard)
			a := h.elastic("5G").works(3 * gib)
			h.Stop(unix.SIGKILL)
			h.SetEnv(smallCard, killpoint.Env+"="+point)
			h.Start()
			b := h.elastic("5G")
			c := make(chan worker, 1)
			go func() { c <- b.begin(2 * gib) }()
			h.dies(smallCard)
			other := <-c
			a.goesOn()
			other.goesOn()
			a.goesOn()
		})
	}
}

// The container's hook retries until the memory is free.
func TestOrdinaryContainerEvictsAnIdleElasticOne(t *testing.T) {
	h := newHostBy(t, api.Intercept, quickTurns, smallCard)
	e := h.elastic("5G")
	e.hog(gib)                          // exits
	time.Sleep(1500 * time.Millisecond) // calls are sampled once a second
	c := h.runContainer(map[string]string{"gpuslice.vram": "6G"}, "/bin/sleep", "600")
	expect.Equal(t, h.state(e.id), api.Evicted, "the elastic one")
	c.works(4 * gib)
}

// The process moves memory that it mapped itself, as with PyTorch's expandable segments. Little stays on the device.
func TestMemoryThatAProgramMapsItselfIsMovedByItsProcess(t *testing.T) {
	h := newHostBy(t, api.Intercept, quickTurns, smallCard)
	w := h.elastic("5G").works(3*gib, "maps")
	idle := filepath.Join(w.Dir, "fake", w.file+".idle")
	for range 3 {
		h.Must(os.WriteFile(idle, nil, 0o644))
		time.Sleep(1500 * time.Millisecond)
		c := h.runContainer(map[string]string{"gpuslice.vram": "7600M"}, "/bin/sleep", "600")
		h.Eventually("little is left on the device, and that by the process itself", func() bool {
			s := must.Get(h.Client.Slice(t.Context(), w.id))(h.T)
			if s.State != api.Evicted || len(s.Processes) != 1 || len(s.Processes[0].Devices) != 1 {
				return false
			}
			p := s.Processes[0].Devices[0]
			return p.Suspended > 5*gib/2 && p.Driver != nil && *p.Driver > 0 && *p.Driver < stayOnDevice
		})
		expect.Contains(t, h.mustRun("inspect", w.id), "GiB in host memory")
		must.Output(c.output(c.runtime("delete", "--force", c.id)))(t)
		h.Must(os.Remove(idle))
		w.goesOn()
	}
}

// A process that can open no descriptor any more cannot ask for its memory. Its calls are counted at the gate, and bring it back.
func TestAProcessThatReachesNoSocketComesBack(t *testing.T) { eachMover(t, sealedInTurns) }

func sealedInTurns(t *testing.T, turns string) {
	h := newHostBy(t, api.Intercept, turns, smallCard)
	sealed, other := h.elastic("5G").works(3*gib, "sealed"), h.elastic("5G").works(3*gib)
	for range 2 {
		n := h.evictions(sealed.id)
		h.Eventually("it is evicted", func() bool { return h.evictions(sealed.id) > n })
		sealed.goesOn()
	}
	other.goesOn()
}

// A process in a sandbox that kills it for a socket is refused memory, and comes back when it was evicted.
func TestAProcessThatMayMakeNoSocketIsRefusedAndComesBack(t *testing.T) {
	h := newHostBy(t, api.Intercept, quickCheckpoints, smallCard)
	sandboxed, other := h.elastic("5G").works(3*gib, "sandboxed"), h.elastic("5G").works(3*gib)
	for range 2 {
		n := h.evictions(sandboxed.id)
		h.Eventually("it is evicted", func() bool { return h.evictions(sandboxed.id) > n })
		sandboxed.goesOn()
	}
	other.goesOn()
	h.Eventually("its refusals are told", func() bool {
		told := h.events(sandboxed.id, api.EventRefused)
		return len(told) > 0 && told[0].Requested == 1<<40
	})
}

// The members never exceed their pool, and no process is lost.
func TestTheMembersOfAnElasticPoolWorkInTurnsWithAnother(t *testing.T) {
	eachMover(t, func(t *testing.T, turns string) {
		h := newHostBy(t, api.Intercept, turns, smallCard)
		out := h.mustRun("pool", "create", "notebooks", "--vram", "5G", "--elastic")
		expect.Contains(t, out, "evicted")
		member := func() *container {
			c := h.runContainer(map[string]string{"gpuslice.pool": "notebooks"}, "/bin/sleep", "600")
			return c
		}
		a, b := member().works(gib), member().works(gib)
		other := h.elastic("5G").works(3 * gib)
		h.Stop(unix.SIGKILL)
		h.Start()
		for range 3 {
			a.goesOn()
			other.goesOn()
			b.goesOn()
		}
		h.Eventually("the pool's turn comes, with what both hold", func() bool {
			p := must.Get(h.Client.Pool(t.Context(), "notebooks"))(h.T)
			held := p.Devices[0]
			must.True(t, held.Used+held.Overhead <= 5*gib, "the pool has", held)
			return p.State == api.Active && held.Used >= 2*gib
		})
	})
}

func TestAContainerBeginsWhileTheEnforcerIsReplaced(t *testing.T) {
	h := newHostBy(t, api.Intercept, "")
	h.Stop(unix.SIGKILL)
	back := make(chan struct{})
	go func() {
		defer close(back)
		time.Sleep(time.Second)
		h.Start()
	}()
	c := h.runContainer(vram(), "/bin/sleep", "600")
	<-back
	expect.Equal(t, h.state(c.id), api.Active)
}

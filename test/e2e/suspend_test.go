// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// worker is a process in a container that uses its memory without pause (steady.c).
type worker struct {
	*container
	file string
}

// works starts a worker and waits for its first steps.
func (c *container) works(bytes uint64, more ...string) worker {
	c.T.Helper()
	w := c.begin(bytes, more...)
	w.goesOn()
	return w
}

// begin starts a worker without waiting.
func (c *container) begin(bytes uint64, more ...string) worker {
	c.T.Helper()
	c.compile("steady")
	w := worker{c, fmt.Sprintf("work-%d", time.Now().UnixNano())}
	args := append([]string{"exec", "--detach", c.id, "/fake/steady", strconv.FormatUint(bytes, 10), "/fake/" + w.file}, more...)
	if out, err := c.output(c.runtime(args...)); err != nil {
		c.T.Fatalf("%v\n%s", err, out)
	}
	return w
}

func (w worker) number() uint64 {
	text, _ := os.ReadFile(filepath.Join(w.Dir, "fake", w.file))
	n, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// goesOn waits for further steps, which verify the memory.
func (w worker) goesOn() {
	w.T.Helper()
	before := w.number()
	w.Eventually("the program works", func() bool { return w.number() > before+2 })
}

// stands waits until the worker has stopped.
func (w worker) stands() {
	w.T.Helper()
	w.Eventually("the step in which it is has ended, and it does nothing more", func() bool {
		before := w.number()
		time.Sleep(200 * time.Millisecond)
		return w.number() == before
	})
}

func (h *host) state(id string) api.State {
	h.T.Helper()
	s := must.Get(h.Client.Slice(h.T.Context(), id))(h.T)
	return s.State
}

const smallCard = "FAKECUDA_MEMORY=8G"

func TestTwoContainersThatDoNotFitTogetherTakeTurns(t *testing.T) {
	forEachBackendWith(t, "", func(t *testing.T, h *host, _ api.Enforcement) {
		five := map[string]string{"gpuslice.vram": "5G"}
		a, b := h.newContainer(five, "/bin/sleep", "600"), h.newContainer(five, "/bin/sleep", "600")
		a.run()
		works, too := a.works(2*gib), a.works(gib)
		h.mustRun("suspend", a.id)
		works.stands()
		too.stands()
		use := h.Use(a.id)
		if h.state(a.id) != api.Suspended || use.Used != 0 || use.Suspended < 3*gib || use.Limit != 5*gib {
			t.Fatalf("%s: %+v", h.state(a.id), use)
		}
		if out := h.mustRun("ps"); !strings.Contains(out, "suspended") || !strings.Contains(out, "SUSPENDED") {
			t.Errorf("ps does not show it:\n%s", out)
		}
		expect.Contains(t, h.mustRun("inspect", a.id), "in host memory")
		expect.Contains(t, h.mustRun("devices"), "SUSPENDED")
		expect.Contains(t, a.hog(gib).said, "CUDA_ERROR", "a process in a suspended slice allocates")

		b.run()
		others := b.works(4 * gib)
		if out, err := h.cli("resume", a.id); err == nil || !strings.Contains(out, "5GiB") || !strings.Contains(out, "has 5GiB") {
			t.Errorf("%v: %s", err, out)
		}
		works.stands()
		h.mustRun("suspend", b.id)
		h.mustRun("resume", a.id)
		works.goesOn()
		too.goesOn()
		others.stands()
		if out := h.mustRun("events", "--since", "0"); !strings.Contains(out, "suspended: ") || !strings.Contains(out, "resumed: ") {
			t.Errorf("events:\n%s", out)
		}
		expect.True(t, !strings.Contains(h.mustRun("events", "--since", "0"), "bypass"), "a violation was found")

		// A slice that is deleted while suspended leaves nothing.
		must.Output(b.output(b.runtime("delete", "--force", b.id)))(t)
		h.Eventually("the slice is gone", h.IsGone(b.id))
	}, smallCard)
}

// suspendFails checks that suspending the slice fails for this reason, and that both workers go on.
func (h *host) suspendFails(c *container, reason string, one, other worker) {
	h.T.Helper()
	if out, err := h.cli("suspend", c.id); err == nil || !strings.Contains(out, reason) {
		h.T.Fatalf("%v: %s", err, out)
	}
	one.goesOn()
	other.goesOn()
	must.Equal(h.T, h.state(c.id), api.Active)
}

func TestASliceWithManagedMemoryIsNotSuspended(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(vram(), "/bin/sleep", "600")
	h.suspendFails(c, "managed memory", c.works(gib), c.works(gib, "managed"))
}

func TestASliceWhoseProcessesShareMemoryIsNotSuspended(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(vram(), "/bin/sleep", "600")
	h.suspendFails(c, "memory that it shares with other processes", c.works(gib/2, "lends", "/fake/lent"), c.works(gib/2, "borrows", "/fake/lent"))
}

func TestALeasesClientWaitsWhileItIsSuspended(t *testing.T) {
	h := newLeaseHost(t)
	l := h.acquire(lease.Request{VRAM: 64 * mib})
	s := h.open(l)
	kept := must.Get(s.Alloc(t.Context(), 32*mib))(h.T)
	want, got := []byte("what was written is read"), make([]byte, 24)
	h.Must(kept.Write(t.Context(), 0, want))
	_, err := h.Client.Suspend(t.Context(), l.ID)
	h.Must(err)
	read := make(chan error, 1)
	go func() { read <- kept.Read(t.Context(), 0, got) }()
	select {
	case err := <-read:
		t.Fatalf("it read from a suspended lease: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if slice := h.slice(l.ID); slice.State != api.Suspended || slice.Devices[0].Used != 0 || slice.Devices[0].Suspended < 32*mib {
		t.Errorf("%+v", slice)
	}
	expect.Equal(t, must.Get(h.Renew(t.Context(), l.ID, time.Hour))(t).State, lease.Active, "a suspended lease is renewed")
	_, err = h.Client.Resume(t.Context(), l.ID)
	h.Must(err)
	if err := <-read; err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%q, %v", got, err)
	}
	h.Must(works(s, 16*mib))

	_, err = h.Client.Suspend(t.Context(), l.ID)
	h.Must(err)
	expect.Equal(t, must.Get(h.Drop(t.Context(), l.ID))(t).State, lease.Ended, "a suspended lease is dropped")
	h.nothingIsLeft()
}

// At whatever point the enforcer is killed, the next one has the slice either suspended or active.
func TestAnEnforcerKilledWhileItMovesASliceLosesNoProcess(t *testing.T) {
	for point, want := range map[string]api.State{
		"move.stored": api.Active, "move.locked": api.Active, "move.locked:2": api.Active, "move.measured": api.Active,
		"move.checkpointed": api.Active, "move.checkpointed:2": api.Active, "suspend.marked": api.Suspended, "suspend.raised": api.Suspended, "move.gone": api.Suspended, "move.away": api.Suspended,
		"move.returning": api.Active, "move.restored": api.Active, "move.restored:2": api.Active, "move.unlocked": api.Active,
		"move.unlocked:2": api.Active, "move.back": api.Active,
	} {
		t.Run(point, func(t *testing.T) {
			h := newHostBy(t, api.Intercept, "", smallCard, killpoint.Env+"="+point)
			h.mustRun("pool", "create", "llm", "--vram", "6G")
			c := h.runContainer(inPool(""), "/bin/sleep", "600")
			a, b := c.works(gib), c.works(gib)
			for _, verb := range []string{"suspend", "resume"} {
				if out, err := h.cli(verb, c.id); err != nil {
					t.Logf("%s: %v: %s", verb, err, out)
					break
				}
			}
			h.dies(smallCard)
			h.Eventually("the slice is "+string(want), func() bool { return h.state(c.id) == want })
			if want == api.Suspended {
				a.stands()
				b.stands()
				expect.Equal(t, h.poolUse("llm").Used, 0, "the pool")
				h.mustRun("resume", c.id)
			}
			a.goesOn()
			b.goesOn()
			if use := h.Use(c.id); use.Used < 2*gib || use.Suspended != 0 {
				t.Errorf("%+v", use)
			}
			expect.True(t, h.poolUse("llm").Used >= 2*gib, "the pool has less than 2 GiB")
			h.mustRun("suspend", c.id)
			h.mustRun("resume", c.id)
			a.goesOn()
		})
	}
}

// Engines pass the runtime's global flags with resume.
func TestResumeIsTheRuntimesOnlyWithItsGlobalFlags(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(vram(), "/bin/sleep", "600")
	expect.Refused(h.cli("resume", c.id))(t, "is not suspended")
	cmd := c.runtime("pause", c.id)
	if out, err := c.output(cmd); err != nil {
		t.Skipf("this host's runc does not pause: %s", out)
	}
	cmd = c.runtime("resume", c.id)
	cmd.Path = filepath.Join(h.Bin, "gpuslice")
	must.Output(c.output(cmd))(t)
}

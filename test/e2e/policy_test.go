// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// ownLoader copies a dynamic loader without ld.so.preload into every container, as an image could, and returns its path.
func (h *host) ownLoader() string {
	h.T.Helper()
	return h.loaderThatReads("/etc/ld.so.nowhere")
}

// loaderThatReads copies a dynamic loader with another preload file into every container, and returns its path.
func (h *host) loaderThatReads(other string) string {
	h.T.Helper()
	const preload = "/etc/ld.so.preload"
	other += strings.Repeat("\x00", len(preload)-len(other))
	hog := must.Get(elf.Open(filepath.Join(h.Bin, "demo", "cuda_hog")))(h.T)
	defer hog.Close()
	path := must.Get(hog.Section(".interp").Data())(h.T)
	text := must.Get(os.ReadFile(string(bytes.TrimRight(path, "\x00"))))(h.T)
	must.True(h.T, bytes.Contains(text, []byte(preload)), "the loader does not name", preload)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "fake", "loader"), bytes.ReplaceAll(text, []byte(preload), []byte(other)), 0o755))
	return "/fake/loader"
}

// hide starts a process in the container that allocates bytes past the interceptor and keeps them.
func (c *container) hide(bytes uint64) hog {
	c.T.Helper()
	g := c.start(c.ownLoader(), "/demo/cuda_hog", strconv.FormatUint(bytes, 10))
	must.True(c.T, strings.HasPrefix(g.said, "holds "), "it did not get past the interceptor:", g.said)
	return g
}

func (h *host) dead(g hog) func() bool {
	return func() bool { return unix.Kill(g.pid, 0) == unix.ESRCH }
}

func (h *host) hasState(id string, want api.State) func() bool {
	return func() bool {
		s, err := h.Client.Slice(h.T.Context(), id)
		return err == nil && s.State == want
	}
}

func TestHiddenMemoryIsNamedInEventsAndInspect(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(vram(), "/bin/sleep", "600")
	g := c.hide(8 * gib)
	h.Eventually("the bypass event", func() bool { return len(h.events(c.id, api.EventBypass)) == 1 })
	if e := h.events(c.id, api.EventBypass)[0]; e.PID != g.pid || e.Bytes < 8*gib || e.Action != api.Log || e.Cause != api.BypassUnattached {
		t.Errorf("%+v", e)
	}
	h.Eventually("inspect shows the hidden memory", func() bool {
		s := must.Get(h.Client.Slice(t.Context(), c.id))(h.T)
		return s.State == api.Active && len(s.Processes) == 1 && s.Processes[0].Bypass == api.BypassUnattached && s.Devices[0].Bypass >= 8*gib
	})
	c.mustRefuse(mib, "what is hidden does not count against the quota: a sibling")
}

func TestAProcessThatHidesMemoryIsKilledAndItsSiblingsAreNot(t *testing.T) {
	forEachBackendWith(t, "[policy]\nbypass = \"kill\"\n", func(t *testing.T, h *host, _ api.Enforcement) {
		c := h.runContainer(vram(), "/bin/sleep", "600")
		honest := c.hog(gib)
		g := c.hide(gib) // within the quota, so that the driver does not refuse it
		h.Eventually("the process is dead", h.dead(g))
		h.Eventually("the death is told", func() bool { return len(h.events(c.id, api.EventKilled)) == 1 })
		if e := h.events(c.id, api.EventKilled)[0]; e.PID != g.pid || e.Bytes < gib || e.Command == "" {
			t.Errorf("%+v", e)
		}
		h.Eventually("its memory is free", func() bool {
			use := h.Use(c.id)
			return use.Bypass == 0 && use.Used == gib && use.Overhead < gib
		})
		expect.True(t, !h.dead(honest)(), "its sibling was killed, too")
		c.mustHold(gib, quota, "another process")
	})
}

// The enforcer is killed at each step of freezing and thawing, and the next one reaches the same state.
func TestASliceIsFrozenAsLongAsMemoryIsHidden(t *testing.T) {
	for _, point := range []string{"", "policy.found", "policy.frozen", "policy.thawed"} {
		t.Run("killed at "+point, func(t *testing.T) {
			forEachBackendWith(t, "[policy]\nbypass = \"refuse\"\n", func(t *testing.T, h *host, _ api.Enforcement) {
				c := h.runContainer(vram(), "/bin/sleep", "600")
				g := c.hide(gib)
				if point == "policy.found" || point == "policy.frozen" {
					h.dies("FAKECUDA_LIMITS=1")
				}
				h.Eventually("the slice is frozen", h.hasState(c.id, api.Frozen))
				c.mustRefuse(mib, "with 1 GiB hidden of 4 a sibling")
				expect.Contains(t, h.mustRun("ps", "--no-trunc"), "frozen", "gpuslice ps")
				c.kill(g)
				if point == "policy.thawed" {
					h.dies("FAKECUDA_LIMITS=1")
				}
				h.Eventually("the slice is active again", h.hasState(c.id, api.Active))
				c.mustHold(3*gib, quota, "afterwards a process")
				expect.Equal(t, len(h.events(c.id, api.EventKilled)), 0, "were killed")
			}, killpoint.Env+"="+point)
		})
	}
}

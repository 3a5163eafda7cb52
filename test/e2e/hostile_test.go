// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// compile builds programs/NAME.c as /fake/NAME of every container.
func (h *host) compile(name string) {
	h.T.Helper()
	h.compileAs(name, filepath.Join("programs", name+".c"), "-ldl")
}

// compileLinked is compile for a program that the simulated driver is linked to.
func (h *host) compileLinked(name, source string) {
	h.T.Helper()
	driver := filepath.Join(h.Bin, "fakecuda")
	h.compileAs(name, source, "-I../interceptor/programs", "-I../../interceptor", filepath.Join(driver, "libcuda.so.1"),
		filepath.Join(driver, "libnvidia-ml.so.1"), "-ldl", "-lpthread")
}

func (h *host) compileAs(name, source string, flags ...string) {
	h.T.Helper()
	args := append([]string{"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(h.Dir, "fake", name), source}, flags...)
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		h.T.Fatalf("%v\n%s", err, out)
	}
}

// started starts a program in the background and returns its first line.
func (c *container) started(args ...string) string {
	c.T.Helper()
	said, err := os.CreateTemp(c.Dir, "said-")
	c.Must(err)
	defer said.Close()
	cmd := c.runtime(append([]string{"exec", "--detach", c.id}, args...)...)
	cmd.Stdout = said // stdout only: the interceptor writes to stderr at any time
	c.Must(cmd.Run())
	var text []byte
	c.Eventually(args[0]+" has said something", func() bool {
		text, err = os.ReadFile(said.Name())
		return err == nil && strings.HasSuffix(string(text), "\n")
	})
	return strings.TrimSpace(string(text))
}

// Every process of a slice can write its ledger. Doing so must damage its own slice only.
func TestLedgerOverwrittenInAContainerHarmsThatContainerOnly(t *testing.T) {
	h := newHost(t)
	h.compileLinked("vandal", "programs/vandal.c")
	good := h.runContainer(vram(), "/bin/sleep", "600")
	good.mustHold(gib, quota)
	for seed := range 3 {
		c := h.runContainer(vram(), "/bin/sleep", "600")
		expect.True(t, strings.HasSuffix(c.started("/fake/vandal", strconv.Itoa(17+seed)), "refused"), "the one that overwrote the page got memory")
		h.Eventually("the slice is named damaged", func() bool {
			s, err := h.Client.Slice(t.Context(), c.id)
			return err == nil && s.State == api.Damaged && s.Reason != ""
		})
		c.mustRefuse(mib, "a new process of the slice")
		if out := h.mustRun("ps", "--no-trunc"); !damagedIn(out, c.id) || damagedIn(out, good.id) {
			t.Errorf("gpuslice ps:\n%s", out)
		}
		if seed == 1 { // a restart must not repair it
			h.Stop(unix.SIGKILL)
			h.Start()
			h.Eventually("it is still damaged", func() bool {
				s, err := h.Client.Slice(t.Context(), c.id)
				return err == nil && s.State == api.Damaged
			})
			c.mustRefuse(mib, "after a restart a new process of the slice")
		}
		must.Output(c.output(c.runtime("delete", "--force", c.id)))(t, "delete")
		h.Eventually("the slice is gone", h.IsGone(c.id))
	}
	expect.Equal(t, h.Use(good.id).Used, gib, "the other slice")
	good.mustHold(gib, quota, "a process of the other slice")
}

func damagedIn(table, id string) bool {
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, id+" ") {
			return strings.Contains(line, string(api.Damaged))
		}
	}
	return false
}

// A slice that is released while its container runs gets no memory, with and without an enforcer.
func TestReleasedContainerIsRefusedForAsLongAsItRuns(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(vram(), "/bin/sleep", "600")
	c.mustHold(gib, quota)
	must.Get(h.Client.Release(t.Context(), c.id, 0, true))(t)
	refused := func(when string) {
		t.Helper()
		c.mustRefuse(mib, when, "a process that began later")
	}
	refused("after the release")
	h.Stop(unix.SIGKILL)
	refused("without an enforcer")
	h.Start()
	refused("after a restart of the enforcer")
	must.Output(c.output(c.runtime("delete", "--force", c.id)))(t, "delete")
	h.Eventually("nothing is left on the host", func() bool {
		entries, err := os.ReadDir(filepath.Join(h.Dir, "run", "slices"))
		return err == nil && len(entries) == 0
	})
}

func TestUnsupportedAnnotationRefusesTheContainer(t *testing.T) {
	h := newHost(t)
	for annotation, c := range map[string]struct{ value, says string }{
		"gpuslice.pool":   {"night", "there is no pool night"},
		"gpuslice.ttl":    {"876001h", "from 1s to 876000h"},
		"gpuslice.vram.7": {"1G", "there is no device 7"},
		"gpuslice.vram.GPU-00000000-0000-0000-0000-00000000dead": {"1G", "there is no device GPU-00000000-0000-0000-0000-00000000dead"},
	} {
		annotations := vram()
		annotations[annotation] = c.value
		box := h.newContainer(annotations, "/bin/true")
		out, err := box.output(box.runtime("run", "--bundle", box.bundle, box.id))
		if err == nil || !strings.Contains(out, c.says) || strings.Count(out, "gpuslice: ") != 1 {
			t.Errorf("%s=%s: %v, %q", annotation, c.value, err, out)
		}
	}
	must.Len(t, h.Slices(), 0, "slices are left")
}

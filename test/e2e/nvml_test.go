// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/must"
)

// nsPID returns a process's pid in its own PID namespace.
func (h *host) nsPID(pid int) string {
	h.T.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(h.T)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			pids := strings.Fields(rest)
			return pids[len(pids)-1]
		}
	}
	h.T.Fatalf("process %d has no NSpid:\n%s", pid, text)
	return ""
}

// nvmlShow returns NVML's memory line in the container, and the sorted pids of its processes. Each process must hold half a GiB or more.
func (c *container) nvmlShow(env ...string) (figures string, pids []string) {
	c.T.Helper()
	out, err := c.exec(append(append([]string{"env"}, env...), "/fake/nvml", "show")...)
	if err != nil {
		c.T.Fatalf("%v\n%s", err, out)
	}
	figures, list, _ := strings.Cut(strings.TrimSpace(out), ", processes")
	list, held, _ := strings.Cut(list, ", bytes")
	pids = strings.Fields(list)
	for _, bytes := range strings.Fields(held) {
		if n, err := strconv.ParseUint(bytes, 10, 64); err != nil || n < gib/2 {
			c.T.Errorf("%v: a process with %s bytes is listed: %s", env, bytes, out)
		}
	}
	slices.Sort(pids)
	return figures, pids
}

func TestNVMLInAContainerShowsItsQuotaAndItsProcesses(t *testing.T) {
	h := newHost(t)
	h.compileLinked("nvml", "../interceptor/programs/nvml.c")
	c, other := h.newContainer(vram(), "/bin/sleep", "600"), h.newContainer(vram(), "/bin/sleep", "600")
	c.run()
	other.run()
	first, second, stranger := c.hog(gib), c.hog(gib/2), other.hog(gib)
	if !first.holds(gib, quota) || !second.holds(gib/2, quota) || !stranger.holds(gib, quota) {
		t.Fatalf("said %q, %q and %q", first.said, second.said, stranger.said)
	}
	want := []string{h.nsPID(first.pid), h.nsPID(second.pid)}
	slices.Sort(want)
	// Lines of the fake NVML: the pid in the container's namespace (0: none), and the pid that NVML lists. The stranger is also listed with the
	// second's pid: it must not be taken for the second.
	pids := fmt.Sprintf("%s %d\n%s %d\n0 %d\n0 %s\n", h.nsPID(first.pid), first.pid, h.nsPID(second.pid), second.pid,
		stranger.pid, h.nsPID(second.pid))
	h.Must(os.WriteFile(filepath.Join(h.Dir, "fake", "pids"), []byte(pids), 0o644))

	for _, how := range []string{"", "FAKECUDA_NVML_LISTS=none", "FAKECUDA_NVML_PIDS=/fake/pids"} {
		env := []string{}
		if how != "" {
			env = append(env, how)
		}
		h.Eventually("NVML and the enforcer report the same use", func() bool {
			before := h.Use(c.id)
			figures, listed := c.nvmlShow(env...)
			must.True(t, slices.Equal(listed, want), how, "the container's processes are", want, "listed are", listed)
			used := before.Used + before.Overhead
			return before == h.Use(c.id) && figures == fmt.Sprintf(
				"total %d free %d used %d, v2 total %d reserved 0 free %d used %d", uint64(quota), quota-used, used,
				uint64(quota), quota-used, used)
		})
	}

	c.kill(first)
	for _, how := range []string{"FAKECUDA_NVML_LISTS=none", "FAKECUDA_NVML_PIDS=/fake/pids"} {
		h.Eventually("NVML no longer lists the killed process", func() bool {
			_, listed := c.nvmlShow(how)
			return slices.Equal(listed, []string{h.nsPID(second.pid)})
		})
	}
}

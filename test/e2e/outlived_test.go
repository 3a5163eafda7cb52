// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func (h *host) used() uint64 {
	h.T.Helper()
	cmd := exec.Command(filepath.Join(h.Dir, "fake", "leaver"))
	cmd.Env = h.Env()
	out := must.Get(cmd.Output())(h.T)
	bytes := must.Get(strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64))(h.T)
	return bytes
}

// lists reports whether the enforcer has seen the process in the driver's list.
func (h *host) lists(id string, pid int) func() bool {
	return func() bool {
		s, err := h.Client.Slice(h.T.Context(), id)
		return err == nil && slices.ContainsFunc(s.Processes, func(p api.Process) bool {
			return p.PID == pid && slices.ContainsFunc(p.Devices, func(d api.ProcessUse) bool { return d.Driver != nil && *d.Driver >= gib })
		})
	}
}

// The driver frees a dead process's memory once its forked children exit. Until then the memory counts.
func TestChildrenThatOutliveTheirParentsKeepNoMoreThanTheQuota(t *testing.T) {
	const unlisted = 64 * mib // memory of two or three contexts beyond the quota
	h := newHost(t)
	h.compile("leaver")
	c := h.runContainer(vram(), "/bin/sh", "-c", "while :; do sleep 0.1; done") // reaps orphans, too
	empty := h.used()
	left := uint64(0)
	for round := range 5 {
		g := c.start("/fake/leaver", strconv.Itoa(gib))
		switch {
		case g.said == "holds" && left < 3:
			left++
			h.Eventually("driver truth lists it", h.lists(c.id, g.pid)) // the simulated driver does not know the host pids of dead processes
			c.kill(g)
			h.Eventually("it is gone", h.dead(g))
		case g.said != "2" || left == 0:
			t.Fatalf("in round %d, after %d parents, it said %q", round, left, g.said)
		}
		h.Eventually("what they left counts, and nothing else", func() bool {
			use := h.Use(c.id)
			return use.Used == 0 && use.Overhead >= left*gib && use.Overhead+use.Used <= quota
		})
		if used := h.used() - empty; used < left*gib || used > quota+unlisted {
			t.Fatalf("after %d parents %d bytes of the card are in use", left, used)
		}
	}
	expect.True(t, left < 4, left, "parents had a GiB and a context each")
	if _, err := c.exec("/bin/sh", "-c", "kill -9 -1"); err != nil { // all but itself and pid 1
		t.Fatal(err)
	}
	h.Eventually("all of it is given back", func() bool { use := h.Use(c.id); return use.Used+use.Overhead == 0 })
	c.mustHold(3*gib, quota, "then one")
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestSliceIsReleasedWhenItsContainerIsDeleted(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		c := h.runContainer(vram(), "/bin/sleep", "600")
		c.mustHold(gib, quota)
		must.Output(c.output(c.runtime("delete", "--force", c.id)))(t, "delete")
		must.Len(t, h.Slices(), 0, "the container is deleted")
		entries := must.Get(os.ReadDir(filepath.Join(h.Dir, "run", "slices")))(t)
		must.Len(t, entries, 0, "directories are left")
	})
}

func TestSliceIsReleasedIfPoststopNeverRuns(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		c := h.runContainer(vram(), "/demo/cuda_hog", strconv.Itoa(gib))
		h.Eventually("1 GiB is held", h.Holds(c.id, gib))
		// The container is not deleted, as if engine and shim were dead.
		h.Must(unix.Kill(c.pid(), unix.SIGKILL))
		h.Eventually("the slice is gone", h.IsGone(c.id))
	})
}

func TestRestartedEnforcerKnowsAllHolders(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		c := h.runContainer(vram(), "/bin/sleep", "600")
		stays, dies := c.hog(gib), c.hog(gib)
		if !stays.holds(gib, quota) || !dies.holds(gib, quota) {
			t.Fatalf("said %q and %q", stays.said, dies.said)
		}
		overhead := h.Use(c.id).Overhead

		h.Stop(unix.SIGKILL)
		c.kill(dies)
		// A process that starts now cannot attach. It must get no memory rather than no quota.
		c.mustRefuse(mib, "without an enforcer a new process")
		h.Start()

		h.Eventually("the lane of the exited process is settled", h.Holds(c.id, gib))
		h.Eventually("its overhead, too", func() bool { return h.Use(c.id).Overhead == overhead/2 })
		c.mustRefuse(3*gib, "3 GiB beside 1 GiB and contexts")
		c.mustHold(gib, quota, "1 GiB more fits")
		c.kill(stays)
		h.Eventually("the death of one that attached before the restart is seen", h.Holds(c.id, gib))
		must.Output(c.output(c.runtime("delete", "--force", c.id)))(t, "delete")
		h.Eventually("the slice is gone", h.IsGone(c.id))
	})
}

func TestContainerThatEndedWithoutAnEnforcerIsForgottenByTheNext(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(vram(), "/bin/sleep", "600")
	h.Stop(unix.SIGKILL)
	// poststop cannot reach an enforcer, and must not fail the deletion.
	must.Output(c.output(c.runtime("delete", "--force", c.id)))(t, "delete")
	h.Start()
	h.Eventually("the slice is gone", h.IsGone(c.id))
}

func TestContainerCanBeStoppedWithAnInvalidConfiguration(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(vram(), "/bin/sleep", "600")
	file, err := os.OpenFile(h.Config(), os.O_WRONLY|os.O_APPEND, 0)
	h.Must(err)
	_, err = file.WriteString("\n[enforcer]\n")
	h.Must(errors.Join(err, file.Close()))
	expect.Refused(c.output(c.runtime("run", "--bundle", c.bundle, c.id+"-2")))(t, "config.toml", "a new container")
	must.Output(c.output(c.runtime("delete", "--force", c.id)))(t, "delete")
	h.Eventually("the slice is gone", h.IsGone(c.id))
}

func TestContainerIsRefusedWithoutAnEnforcer(t *testing.T) {
	h := newHost(t)
	h.Stop(unix.SIGKILL)
	c := h.newContainer(vram(), "/bin/true")
	out, err := c.output(c.runtime("run", "--bundle", c.bundle, c.id))
	expect.Refused(out, err)(t, "gpusliced")
}

func TestSessionDrawsOnOneQuotaOfTheHostsEnforcer(t *testing.T) {
	h := newHost(t)
	hog := filepath.Join(h.Bin, "demo", "cuda_hog")
	script := hog + ` 1073741824 >` + h.Dir + `/a & until [ -s ` + h.Dir + `/a ]; do sleep 0.01; done; ` + hog + ` 3221225472 >` + h.Dir + `/b; ` +
		filepath.Join(h.Bin, "gpuslice") + ` ps --json; kill -9 %1 2>/dev/null || kill -9 $!; exit 7`
	cmd := exec.Command(filepath.Join(h.Bin, "gpuslice"), "--socket", h.Socket(), "run", "--vram", "4G", "--name", "s1", "--", "sh", "-c", script)
	cmd.Env = append(h.Env(), "GPUSLICE_SOCKET="+h.Socket())
	out, err := cmd.Output()
	expect.Equal(t, cmd.ProcessState.ExitCode(), 7, "the command's exit code", err)
	expect.Equal(t, string(must.Get(os.ReadFile(h.Dir+"/a"))(t)), "holds 1073741824 of 4294967296\n", "the first process said")
	if b, _ := os.ReadFile(h.Dir + "/b"); string(b) != "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY\n" {
		t.Errorf("the second process said %q: 3 GiB do not fit beside the first", b)
	}
	if !strings.Contains(string(out), `"id": "s1"`) || !strings.Contains(string(out), `"used": 1073741824`) {
		t.Errorf("`gpuslice ps --json` said, while it ran:\n%s", out)
	}
	must.Len(t, h.Slices(), 0, "the session is over")
}

func TestCLIStandsInForTheRuntime(t *testing.T) {
	h := newHost(t)
	c := h.newContainer(vram(), "/bin/sleep", "600")
	// The arguments are those of containerd's shim for `nerdctl run --runtime gpuslice`.
	cli := func(args ...string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(h.Bin, "gpuslice"), append([]string{"--root", filepath.Join(h.Dir, "runc")}, args...)...)
		cmd.Env = h.Env()
		must.Output(c.output(cmd))(t, "gpuslice", args)
	}
	cli("create", "--bundle", c.bundle, "--pid-file", filepath.Join(h.Dir, "pid"), c.id)
	cli("start", c.id)
	c.mustRefuse(5*gib, "5 GiB of 4 must be refused")
	cli("kill", c.id, "KILL")
	cli("delete", "--force", c.id)
	h.Eventually("the slice is gone", h.IsGone(c.id))
}

// A refusal may be due to memory of a released container, so users must be able to find it.
func TestAReleasedSliceIsShownUntilItsProcessesHaveExited(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(map[string]string{"gpuslice.vram": "4G"}, "sleep", "1000")
	must.True(t, strings.HasPrefix(c.hog(gib).said, "holds "), "it got no memory")
	expect.Contains(t, must.Get(h.cli("release", "--force", c.id))(t), "keep what they hold until they exit")
	shown := func() string {
		t.Helper()
		return must.Get(h.cli("ps", "--no-trunc"))(h.T)
	}
	if out := shown(); !strings.Contains(out, c.id) || !strings.Contains(out, "released") || !strings.Contains(out, "1.51GiB") {
		t.Errorf("it holds a gibibyte and a context of 518 MiB, but ps shows\n%s", out)
	}
	if out, err := h.cli("inspect", "--json", c.id); err != nil || !strings.Contains(out, `"state": "released"`) || !strings.Contains(out, fmt.Sprintf(`"pid": %d,`, c.pid())) {
		t.Errorf("%v: %s", err, out)
	}
	// An admission refusal names it as ps does, and devices counts it as granted.
	total := h.device().Total
	d := h.newContainer(map[string]string{"gpuslice.vram": fmt.Sprintf("%db", total)}, "/bin/true")
	expect.Contains(t, d.refused(), c.id+" has 1.51GiB")
	expect.Refused(h.cli("release", "--force", c.id))(t, "was released before: its living processes, ")
	h.Stop(unix.SIGTERM)
	h.Start()
	expect.Contains(t, shown(), c.id, "after a restart")
	h.Must(c.runtime("delete", "--force", c.id).Run())
	h.Eventually("ps shows it no more", func() bool { return !strings.Contains(shown(), c.id) })
}

func (h *host) used() uint64 {
	h.T.Helper()
	cmd := exec.Command(filepath.Join(h.Dir, "fake", "leaver"))
	cmd.Env = h.Env()
	out := must.Get(cmd.Output())(h.T)
	return must.Get(strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64))(h.T)
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
	h.compileLinked("leaver", "programs/leaver.c")
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
			h.Eventually("the process has exited", h.dead(g))
		case g.said != "2" || left == 0:
			t.Fatalf("in round %d, after %d parents, it said %q", round, left, g.said)
		}
		h.Eventually("only the remaining memory counts", func() bool {
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

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
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

func TestRestartedEnforcerKnowsWhoHoldsWhat(t *testing.T) {
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

func TestContainerCanBeStoppedWithASpoiltConfiguration(t *testing.T) {
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
	script := hog + ` 1073741824 >` + h.Dir + `/a & sleep 0.5; ` + hog + ` 3221225472 >` + h.Dir + `/b; ` +
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

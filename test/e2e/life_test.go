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
)

func TestSliceIsReleasedWhenItsContainerIsDeleted(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		c := h.newContainer(vram(), "/bin/sleep", "600")
		c.run()
		if g := c.hog(gib); !g.holds(gib, quota) {
			t.Fatalf("said %q", g.said)
		}
		if out, err := c.output(c.runtime("delete", "--force", c.id)); err != nil {
			t.Fatalf("delete: %v\n%s", err, out)
		}
		if slices := h.Slices(); len(slices) != 0 {
			t.Errorf("the container is deleted, and %+v are left", slices)
		}
		entries, err := os.ReadDir(filepath.Join(h.Dir, "run", "slices"))
		if err != nil || len(entries) != 0 {
			t.Errorf("directories are left: %v, %v", entries, err)
		}
	})
}

func TestSliceIsReleasedIfPoststopNeverRuns(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		c := h.newContainer(vram(), "/demo/cuda_hog", strconv.Itoa(gib))
		c.run()
		h.Eventually("1 GiB is held", h.Holds(c.id, gib))
		// The container is not deleted, as if engine and shim were dead.
		h.Must(unix.Kill(c.pid(), unix.SIGKILL))
		h.Eventually("the slice is gone", h.IsGone(c.id))
	})
}

func TestContainerIDCanBeUsedAgain(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		for range 3 {
			c := h.newContainer(vram(), "/bin/sleep", "600")
			c.id = "gpuslice-e2e-again-" + strconv.Itoa(os.Getpid())
			c.run()
			if g := c.hog(3 * gib); !g.holds(3*gib, quota) {
				t.Fatalf("said %q", g.said)
			}
			if out, err := c.output(c.runtime("delete", "--force", c.id)); err != nil {
				t.Fatalf("delete: %v\n%s", err, out)
			}
		}
	})
}

func TestRestartedEnforcerKnowsWhoHoldsWhat(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		c := h.newContainer(vram(), "/bin/sleep", "600")
		c.run()
		stays, dies := c.hog(gib), c.hog(gib)
		if !stays.holds(gib, quota) || !dies.holds(gib, quota) {
			t.Fatalf("said %q and %q", stays.said, dies.said)
		}
		overhead := h.Use(c.id).Overhead

		h.Stop(unix.SIGKILL)
		c.kill(dies)
		// A process that starts now cannot attach. It must get no memory rather than no quota.
		if g := c.hog(mib); !g.refused() {
			t.Errorf("without an enforcer a new process said %q, want a refusal", g.said)
		}
		h.Start()

		h.Eventually("the one that died meanwhile is settled", h.Holds(c.id, gib))
		h.Eventually("its overhead, too", func() bool { return h.Use(c.id).Overhead == overhead/2 })
		if g := c.hog(3 * gib); !g.refused() {
			t.Errorf("3 GiB beside 1 GiB and contexts: said %q, want a refusal", g.said)
		}
		if g := c.hog(gib); !g.holds(gib, quota) {
			t.Errorf("1 GiB more fits: said %q", g.said)
		}
		c.kill(stays)
		h.Eventually("the death of one that attached before the restart is seen", h.Holds(c.id, gib))
		if out, err := c.output(c.runtime("delete", "--force", c.id)); err != nil {
			t.Fatalf("delete: %v\n%s", err, out)
		}
		h.Eventually("the slice is gone", h.IsGone(c.id))
	})
}

func TestContainerThatEndedWithoutAnEnforcerIsForgottenByTheNext(t *testing.T) {
	h := newHost(t)
	c := h.newContainer(vram(), "/bin/sleep", "600")
	c.run()
	h.Stop(unix.SIGKILL)
	// poststop cannot reach an enforcer, and must not fail the deletion.
	if out, err := c.output(c.runtime("delete", "--force", c.id)); err != nil {
		t.Fatalf("delete: %v\n%s", err, out)
	}
	h.Start()
	h.Eventually("the slice is gone", h.IsGone(c.id))
}

func TestContainerCanBeStoppedWithASpoiltConfiguration(t *testing.T) {
	h := newHost(t)
	c := h.newContainer(vram(), "/bin/sleep", "600")
	c.run()
	file, err := os.OpenFile(h.Config(), os.O_WRONLY|os.O_APPEND, 0)
	h.Must(err)
	_, err = file.WriteString("\n[enforcer]\n")
	h.Must(errors.Join(err, file.Close()))
	if out, err := c.output(c.runtime("run", "--bundle", c.bundle, c.id+"-2")); err == nil || !strings.Contains(out, "config.toml") {
		t.Errorf("a new container: %v, %q: want a refusal that names the file", err, out)
	}
	if out, err := c.output(c.runtime("delete", "--force", c.id)); err != nil {
		t.Errorf("delete: %v\n%s", err, out)
	}
	h.Eventually("the slice is gone", h.IsGone(c.id))
}

func TestContainerIsRefusedWithoutAnEnforcer(t *testing.T) {
	h := newHost(t)
	h.Stop(unix.SIGKILL)
	c := h.newContainer(vram(), "/bin/true")
	out, err := c.output(c.runtime("run", "--bundle", c.bundle, c.id))
	if err == nil || !strings.Contains(out, "gpusliced") {
		t.Errorf("want a refusal that names gpusliced, got %v, %q", err, out)
	}
}

func TestSessionDrawsOnOneQuotaOfTheHostsEnforcer(t *testing.T) {
	h := newHost(t)
	hog := filepath.Join(h.Bin, "demo", "cuda_hog")
	script := hog + ` 1073741824 >` + h.Dir + `/a & sleep 0.5; ` + hog + ` 3221225472 >` + h.Dir + `/b; ` +
		filepath.Join(h.Bin, "gpuslice") + ` ps --json; kill -9 %1 2>/dev/null || kill -9 $!; exit 7`
	cmd := exec.Command(filepath.Join(h.Bin, "gpuslice"), "--socket", h.Socket(), "run", "--vram", "4G", "--name", "s1", "--", "sh", "-c", script)
	cmd.Env = append(h.Env(), "GPUSLICE_SOCKET="+h.Socket())
	out, err := cmd.Output()
	if cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("the command's exit code is 7, got %v", err)
	}
	if a, _ := os.ReadFile(h.Dir + "/a"); string(a) != "holds 1073741824 of 4294967296\n" {
		t.Errorf("the first process said %q", a)
	}
	if b, _ := os.ReadFile(h.Dir + "/b"); string(b) != "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY\n" {
		t.Errorf("the second process said %q: 3 GiB do not fit beside the first", b)
	}
	if !strings.Contains(string(out), `"id": "s1"`) || !strings.Contains(string(out), `"used": 1073741824`) {
		t.Errorf("`gpuslice ps --json` said, while it ran:\n%s", out)
	}
	if slices := h.Slices(); len(slices) != 0 {
		t.Errorf("the session is over, and %+v are left", slices)
	}
}

func TestCLIStandsInForTheRuntime(t *testing.T) {
	h := newHost(t)
	c := h.newContainer(vram(), "/bin/sleep", "600")
	// The arguments are those of containerd's shim for `nerdctl run --runtime gpuslice`.
	cli := func(args ...string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(h.Bin, "gpuslice"), append([]string{"--root", filepath.Join(h.Dir, "runc")}, args...)...)
		cmd.Env = h.Env()
		if out, err := c.output(cmd); err != nil {
			t.Fatalf("gpuslice %q: %v\n%s", args, err, out)
		}
	}
	cli("create", "--bundle", c.bundle, "--pid-file", filepath.Join(h.Dir, "pid"), c.id)
	cli("start", c.id)
	if g := c.hog(5 * gib); !g.refused() {
		t.Errorf("said %q: 5 GiB of 4 must be refused", g.said)
	}
	cli("kill", c.id, "KILL")
	cli("delete", "--force", c.id)
	h.Eventually("the slice is gone", h.IsGone(c.id))
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const timed = "[expiry]\ngrace = \"1s\"\nmax_ttl = \"24h\"\n"

// stubborn ignores SIGTERM and keeps forking.
const stubborn = `trap "" TERM; while :; do sleep 0.02 & sleep 0.01; done`

func TestAContainerEndsWhenItsTimeIsOver(t *testing.T) {
	forEachBackendWith(t, timed, func(t *testing.T, h *host, _ api.Enforcement) {
		annotations := vram()
		annotations["gpuslice.ttl"] = "5s"
		c := h.runContainer(annotations, "/bin/sh", "-c", stubborn)
		c.mustHold(gib, quota)
		out, err := h.cli("ps")
		if err != nil || !strings.Contains(out, "EXPIRES") || !strings.Contains(out, "in ") {
			t.Errorf("%v: %s", err, out)
		}
		slice, err := h.Client.Slice(t.Context(), c.id)
		if err != nil || slice.TTL != 5*time.Second || slice.Expires == nil || slice.Remaining > slice.TTL {
			t.Errorf("%+v, %v", slice, err)
		}
		h.Eventually("the slice is gone", h.IsGone(c.id))
		h.Eventually("and its processes are", func() bool {
			out, err := c.runtime("state", c.id).Output()
			return err == nil && strings.Contains(string(out), "stopped")
		})
		if out, err := h.cli("events", c.id); err != nil || !strings.Contains(out, "expired: it gets no more memory") || !strings.Contains(out, "ended: it expired") {
			t.Errorf("%v: %s", err, out)
		}
		must.Output(c.output(c.runtime("delete", c.id)))(t, "delete")
	})
}

func TestARenewedContainerGoesOn(t *testing.T) {
	forEachBackendWith(t, timed, func(t *testing.T, h *host, _ api.Enforcement) {
		annotations := vram()
		annotations["gpuslice.ttl"] = "1h"
		c := h.runContainer(annotations, "/bin/sleep", "600")
		if out, err := h.cli("renew", c.id[:len(c.id)-1], "2h"); err != nil || !strings.Contains(out, "in 2h") && !strings.Contains(out, "in 1h59m") {
			t.Errorf("%v: %s", err, out)
		}
		expect.Contains(t, must.Get(h.cli("renew", "--json", c.id, "3h"))(t), `"ttl": 10800000000000`)
		expect.Refused(h.cli("renew", c.id, "48h"))(t, "max_ttl")
		must.Output(h.cli("set", c.id, "--ttl", "1s", "--vram", "2G"))(t)
		h.Eventually("the slice is gone", h.IsGone(c.id))
	})
}

func TestASessionEndsWhenItsTimeIsOver(t *testing.T) {
	for _, where := range [][]string{{"--socket", ""}, {"run", "--embedded"}} {
		t.Run(strings.TrimLeft(where[len(where)-1], "-"), func(t *testing.T) {
			h := newHostBy(t, api.Intercept, timed)
			args := []string{"--socket", h.Socket(), "run"}
			patience := 5 * time.Second // the host's configuration sets the grace
			if where[0] == "run" {
				args, patience = append([]string(nil), where...), testhost.Patience
			}
			args = append(args, "--name", "s", "--vram", "4G", "--ttl", "2s", "--", "sh", "-c",
				filepath.Join(h.Bin, "demo", "cuda_hog")+" "+strconv.Itoa(gib)+" & "+stubborn)
			cmd := exec.Command(filepath.Join(h.Bin, "gpuslice"), args...)
			cmd.Env = h.Env()
			// To find the remaining processes.
			cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
			var said testhost.Output
			cmd.Stdout, cmd.Stderr = &said, &said
			cmd.WaitDelay = time.Second
			h.Must(cmd.Start())
			timer := time.AfterFunc(testhost.Patience+patience, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
			err := cmd.Wait()
			timer.Stop()
			expect.Equal(t, cmd.ProcessState.ExitCode(), 128+9, "its command was killed, and it says", err, said.String())
			if !strings.Contains(said.String(), "for 2s") || !strings.Contains(said.String(), "slice s: it has expired\n") {
				t.Errorf("it said %q", said.String())
			}
			h.Eventually("nothing of it is left", func() bool { return errors.Is(unix.Kill(-cmd.Process.Pid, 0), unix.ESRCH) })
			h.Eventually("the slice is gone", h.IsGone("s"))
		})
	}
}

// The command receives SIGTERM once and keeps its exit code.
func TestASessionIsAskedToEndFirst(t *testing.T) {
	h := newHostBy(t, api.Intercept, timed)
	out, err := h.cli("run", "--name", "s", "--quiet", "--vram", "1G", "--ttl", "1s", "--", "sh", "-c",
		`n=0; trap 'n=$((n + 1)); echo asked $n' TERM; while [ $n = 0 ]; do sleep 0.05; done; sleep 0.2; exit $((40 + n))`)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 41 || !strings.Contains(out, "asked 1\n") {
		t.Errorf("%v: %q", err, out)
	}
}

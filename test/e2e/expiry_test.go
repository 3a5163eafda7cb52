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
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const timed = "[expiry]\ngrace = \"1s\"\nmax_ttl = \"24h\"\n"

// stubborn ignores SIGTERM and keeps forking. Once it ignores the signal, it makes the file $0.
const stubborn = `trap "" TERM; : >"$0"; while :; do sleep 0.02 & sleep 0.01; done`

func TestAContainerEndsWhenItsTimeIsOver(t *testing.T) {
	forEachBackendWith(t, timed, func(t *testing.T, h *host, _ api.Enforcement) {
		annotations := vram()
		annotations["gpuslice.ttl"] = "1h"
		c := h.runContainer(annotations, "/bin/sh", "-c", stubborn, "/tmp/ignores")
		c.mustHold(gib, quota)
		out, err := h.cli("ps")
		if err != nil || !strings.Contains(out, "EXPIRES") || !strings.Contains(out, "in ") {
			t.Errorf("%v: %s", err, out)
		}
		slice, err := h.Client.Slice(t.Context(), c.id)
		if err != nil || slice.TTL != time.Hour || slice.Expires == nil || slice.Remaining > slice.TTL {
			t.Errorf("%+v, %v", slice, err)
		}
		h.mustRun("renew", c.id, "1s")
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

func TestRenewedContainerKeepsRunning(t *testing.T) {
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
			ignores := filepath.Join(h.Dir, "ignores")
			args = append(args, "--name", "s", "--vram", "4G", "--ttl", "2s", "--", "sh", "-c",
				filepath.Join(h.Bin, "demo", "cuda_hog")+" "+strconv.Itoa(gib)+" & "+stubborn, ignores)
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
			want := unix.SIGKILL
			if _, missing := os.Stat(ignores); missing != nil { // its time was over before
				want = unix.SIGTERM
			}
			expect.Equal(t, cmd.ProcessState.ExitCode(), 128+int(want), "its command was killed, but it says", err, said.String())
			if !strings.Contains(said.String(), "for 2s") || !strings.Contains(said.String(), "slice s: it has expired\n") {
				t.Errorf("it said %q", said.String())
			}
			h.Eventually("no process of it is left", func() bool { return errors.Is(unix.Kill(-cmd.Process.Pid, 0), unix.ESRCH) })
			h.Eventually("the slice is gone", h.IsGone("s"))
		})
	}
}

// The command receives SIGTERM once and keeps its exit code.
func TestASessionIsAskedToEndFirst(t *testing.T) {
	h := newHostBy(t, api.Intercept, "[expiry]\ngrace = \"1h\"\n")
	out, err := h.cli("run", "--name", "s", "--quiet", "--vram", "1G", "--ttl", "1h", "--", "sh", "-c",
		`n=0; trap 'n=$((n + 1)); echo asked $n' TERM; "$0" --socket "$1" renew s 1s; while [ $n = 0 ]; do sleep 0.05; done; sleep 0.2; exit $((40 + n))`,
		filepath.Join(h.Bin, "gpuslice"), h.Socket())
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 41 || !strings.Contains(out, "asked 1\n") {
		t.Errorf("%v: %q", err, out)
	}
}

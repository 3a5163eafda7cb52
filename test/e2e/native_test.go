// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// forEachBackend runs a test with the interceptor and, if only cgroup v2 is mounted (test/cgroup2.sh), with the driver.
func forEachBackend(t *testing.T, test func(t *testing.T, h *host, by api.Enforcement)) {
	t.Helper()
	forEachBackendWith(t, "", test)
}

// forEachBackendWith also sets lines of the configuration and variables of the enforcer's environment.
func forEachBackendWith(t *testing.T, lines string, test func(t *testing.T, h *host, by api.Enforcement), env ...string) {
	t.Helper()
	backends := []api.Enforcement{api.Intercept}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err == nil {
		backends = append(backends, api.Native)
	}
	for _, b := range backends {
		t.Run(string(b), func(t *testing.T) { test(t, newHostBy(t, b, lines, env...), b) })
	}
}

func TestAProgramWithoutTheInterceptorIsRefusedByTheDriverOrFoundAfterwards(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, by api.Enforcement) {
		loader := h.ownLoader()
		c := h.runContainer(vram(), "/bin/sleep", "600")
		hogWithoutInterceptor := func(bytes uint64) string {
			g := c.start(loader, "/demo/cuda_hog", strconv.FormatUint(bytes, 10))
			if g.refused() { // its context counts until it has exited
				c.Eventually("it has exited", c.dead(g))
			}
			return g.said
		}
		expect.Equal(t, c.Use(c.id).Enforcement, by)
		beyond := hogWithoutInterceptor(5 * gib)
		if by == api.Intercept {
			expect.True(t, strings.HasPrefix(beyond, fmt.Sprintf("holds %d of ", 5*gib)), "said", beyond, "nobody stops it")
			h.Eventually("driver truth has found it", func() bool { return c.Use(c.id).Overhead > 5*gib })
		} else {
			expect.True(t, strings.HasSuffix(beyond, "CUDA_ERROR_OUT_OF_MEMORY"), "said", beyond, "5 GiB of 4 do not fit")
			expect.Equal(t, hogWithoutInterceptor(3*gib), fmt.Sprintf("holds %d of %d", 3*gib, quota), "3 GiB of 4 fit, and the card is shown as large as the quota")
			expect.Contains(t, hogWithoutInterceptor(gib), "CUDA_ERROR_OUT_OF_MEMORY", "1 GiB does not fit beside 3 GiB and contexts")
			h.Eventually("its memory counts as overhead", func() bool { return c.Use(c.id).Overhead > 3*gib })
		}
		c.mustRefuse(gib, "an honest process: there is no room")
	})
}

func TestTheDoctorShowsTheEnforcement(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, by api.Enforcement) {
		out, _ := h.cli("doctor")
		want := map[api.Enforcement]string{
			api.Intercept: "0: intercept, because the configuration says so",
			api.Native:    "0: native, because the driver enforces limits of cgroups",
		}[by]
		expect.Contains(t, out, want, "gpuslice doctor")
	})
}

// The simulated driver has no limits here.
func TestNativeEnforcementNeverFallsBack(t *testing.T) {
	h := newHost(t)
	config := filepath.Join(h.Dir, "native.toml")
	text := fmt.Sprintf("[enforcer]\nsocket = %q\nrun_dir = %q\nstate_dir = %q\nenforcement = \"native\"\n",
		filepath.Join(h.Dir, "n.sock"), filepath.Join(h.Dir, "n-run"), filepath.Join(h.Dir, "n-state"))
	h.Must(os.WriteFile(config, []byte(text), 0o644))
	cmd := exec.Command(filepath.Join(h.Bin, "gpusliced"), "--config", config)
	cmd.Env = h.Env()
	var said bytes.Buffer
	cmd.Stderr = &said
	err := cmd.Run()
	last := testhost.LastLine(said.String())
	if err == nil || !strings.HasPrefix(last, `gpusliced: enforcement = "native" is not possible on device 0 (GPU-`) {
		t.Errorf("%v, %q", err, said.String())
	}
}

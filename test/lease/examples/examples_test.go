// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// session starts a broker in a slice on the simulated driver.
func session(t *testing.T) (address, tokenFile string) {
	t.Helper()
	needs.Root(t) // a broker is not dumpable: an enforcer of the same user cannot read its mappings
	bin := must.Get(filepath.Abs("../../../bin"))(t)
	for _, needed := range []string{"gpuslice", "gpuslice-broker", "libgpuslice.so", "fakecuda/libcuda.so.1"} {
		if _, err := os.Stat(filepath.Join(bin, needed)); err != nil {
			t.Skipf("requires bin/%s (make test-programs)", needed)
		}
	}
	dir := must.Get(os.MkdirTemp("/tmp", "lease-"))(t) // short: socket names are limited
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	at := filepath.Join(dir, "s")
	var stderr strings.Builder
	broker := exec.Command(filepath.Join(bin, "gpuslice"), "run", "--vram", "1G", "--",
		filepath.Join(bin, "gpuslice-broker"), "--directory", at, "--vram", "64M")
	broker.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(bin, "fakecuda"), "FAKECUDA_STATE="+filepath.Join(dir, "machine"))
	broker.Stderr = &stderr
	stdout := must.Get(broker.StdoutPipe())(t)
	must.Do(t, broker.Start())
	t.Cleanup(func() {
		_ = broker.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, stdout)
		expect.NoError(t, broker.Wait(), "the broker", stderr.String())
	})
	// The broker prints its address and token file once it serves.
	for lines, said := bufio.NewScanner(stdout), 0; said < 2 && lines.Scan(); {
		said++
	}
	return "unix:" + filepath.Join(at, "session.sock"), filepath.Join(at, "token")
}

func TestExamplesGetTheirResultsAndLeaveNothing(t *testing.T) {
	address, token := session(t)
	for _, e := range examples {
		t.Run(e.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			expect.NoError(t, inSession(ctx, e, address, token))
		})
	}
}

func TestRecipeReturnsTheDocumentedResult(t *testing.T) {
	address, token := session(t)
	s := must.Get(lease.Open(t.Context(), address, token))(t)
	defer s.Close()
	for _, run := range []func(context.Context, *lease.Session) (string, error){recipe, submit} {
		expect.Equal(t, must.Get(run(t.Context(), s))(t), "10 12 210")
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package lease_test runs a program without a driver in leases, on the simulated driver.
package lease_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

func host(t *testing.T) (*testhost.Host, lease.Service) {
	t.Helper()
	h := testhost.New(t, testhost.Options{Runtimes: []string{"/bin/true"}})
	for _, program := range []string{"gpuslice-leased", "gpuslice-broker", "lease/examples"} {
		if _, err := os.Stat(filepath.Join(h.Bin, program)); err != nil {
			t.Skipf("needs bin/%s: make test-programs", program)
		}
	}
	// A broker is unprivileged: it needs access to the host's directories and to the simulated card.
	h.Must(os.Chmod(h.Dir, 0o755))
	h.Must(os.Chmod(filepath.Join(h.Dir, "fake"), 0o777))
	for _, file := range must.Get(filepath.Glob(filepath.Join(h.Dir, "fake", "*")))(t) {
		h.Must(os.Chmod(file, 0o666))
	}
	socket := filepath.Join(h.Dir, "leases.sock")
	text := must.Get(os.ReadFile(h.Config()))(t)
	config, cgroup := filepath.Join(h.Dir, "leased.toml"), filepath.Base(h.Dir)+"-leases"
	h.Must(os.WriteFile(config, fmt.Appendf(text, "\n[leases]\nsocket = %q\ndir = %q\ncgroup = %q\n",
		socket, filepath.Join(h.Dir, "leases"), cgroup), 0o644))
	service := exec.Command(filepath.Join(h.Bin, "gpuslice-leased"), "--config", config)
	var said testhost.Output
	service.Env, service.Stdout, service.Stderr = h.Env(), &said, &said
	h.Must(service.Start())
	t.Cleanup(func() {
		_ = service.Process.Signal(unix.SIGTERM)
		if err := service.Wait(); err != nil || t.Failed() {
			t.Errorf("the lease service: %v\n%s", err, said.String())
		}
		for _, dir := range h.Cgroups(cgroup) {
			h.Must(os.Remove(dir)) // fails if a lease is left
		}
	})
	s := lease.Service{Socket: socket}
	h.Eventually("the lease service answers", func() bool {
		_, err := s.List(context.Background())
		return err == nil
	})
	return h, s
}

// acquireLease describes the granted and free bytes of all devices.
func acquireLease(ctx context.Context, t *testing.T, h *testhost.Host) string {
	t.Helper()
	var text []string
	for _, d := range must.Get(h.Client.Devices(ctx))(t) {
		must.True(t, d.Free != nil, "there is no driver truth")
		text = append(text, fmt.Sprintf("%d bytes are granted to %d slices and %d are free", d.Quotas, d.Slices, *d.Free))
	}
	return strings.Join(text, "; ")
}

func TestTheRecipeInALeaseLeavesNothing(t *testing.T) {
	h, service := host(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	before := acquireLease(ctx, t, h)
	program := exec.CommandContext(ctx, filepath.Join(h.Bin, "lease/examples"), "--socket", service.Socket)
	program.Env = []string{} // without a path to a driver
	out := must.Output(program.CombinedOutput())(t)
	t.Logf("%s", out)
	for _, line := range []string{"recipe: 10 12 210, ", "submit: 10 12 210, ", "inference: 100 requests ", "solver: a straight line ", "modules: three modules "} {
		expect.Contains(t, "\n"+string(out), "\n"+line)
	}
	must.Len(t, must.Get(service.List(ctx))(t), 0, "leases are left")
	must.Len(t, h.Slices(), 0, "slices are left")
	expect.Equal(t, acquireLease(ctx, t, h), before)
}

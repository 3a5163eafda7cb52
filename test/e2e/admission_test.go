// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func (h *host) device() api.Device {
	h.T.Helper()
	devices := must.Get(h.Client.Devices(h.T.Context()))(h.T)
	if len(devices) != 1 || devices[0].Free == nil {
		h.T.Fatalf("the devices are %+v", devices)
	}
	return devices[0]
}

// refused starts the container, which must fail, and returns the runtime's output.
func (c *container) refused() string {
	c.T.Helper()
	out, err := c.output(c.runtime("run", "--detach", "--bundle", c.bundle, c.id))
	must.True(c.T, err != nil, "it was created:", out)
	return out
}

func TestRefusedContainerLearnsTheHolders(t *testing.T) {
	forEachBackendWith(t, "[admission]\nreserve = \"1G\"\nmax_vram = \"75%\"\n[tenants.physics]\nmax_vram = \"2G\"\n", func(t *testing.T, h *host, _ api.Enforcement) {
		d := h.device()
		if d.Reserve != gib || *d.Free != d.Total-gib {
			t.Fatalf("%+v", d)
		}
		half := map[string]string{"gpuslice.vram": "50%"}
		first := h.runContainer(half, "/bin/sleep", "600")

		second := h.newContainer(half, "/bin/sleep", "600")
		out := second.refused()
		left := api.FormatSize(d.Total/2 - gib)
		for _, says := range []string{
			"gpuslice: ", second.id + " asks for " + api.FormatSize(d.Total/2) + " on device 0 (" + d.UUID + "), where " + left + " are left of the " + api.FormatSize(d.Total-gib),
			"(" + first.id + " has " + api.FormatSize(d.Total/2) + "): ask for less, or end one of them",
		} {
			expect.Contains(t, out, says, "runc shows")
		}
		if out := h.newContainer(map[string]string{"gpuslice.vram": "80%"}, "/bin/true").refused(); !strings.Contains(out, "a slice may have "+api.FormatSize(d.Total/4*3)+" of it at most (max_vram)") {
			t.Error(out)
		}
		if out := h.newContainer(map[string]string{"gpuslice.vram.0": "3G", "gpuslice.tenant": "physics"}, "/bin/true").refused(); !strings.Contains(out, "tenant physics has 2GiB left of 2GiB") {
			t.Error(out)
		}
		must.Len(t, h.Slices(), 1, "slices are left")

		h.Must(first.runtime("delete", "--force", first.id).Run())
		second.run()
		if d := h.device(); d.Quotas != d.Total/2 || d.Slices != 1 {
			t.Errorf("%+v", d)
		}
	})
}

// asker requests a slice again and again.
type asker struct {
	id  string
	pid int
	has bool
}

func (h *host) askers(count int) []*asker {
	h.T.Helper()
	var all []*asker
	for i := range count {
		cmd := exec.Command("/bin/sleep", "600")
		must.Start(h.T, cmd)
		all = append(all, &asker{id: fmt.Sprintf("s%d", i), pid: cmd.Process.Pid})
	}
	return all
}

// ask requests bytes of every device. A failed connection is no error: the test kills the enforcer.
func (a *asker) ask(h *host, bytes uint64) {
	_, err := h.Client.Register(h.T.Context(), api.RegisterRequest{
		ID: a.id, Session: true, PID: a.pid, Quotas: []api.Quota{{Device: api.AllDevices, Bytes: bytes}},
	})
	switch {
	case err == nil, errors.Is(err, api.ErrExists): // the enforcer died between granting and answering
		a.has = true
	case errors.Is(err, api.ErrBadRequest):
		h.T.Errorf("%s: %v", a.id, err)
	}
}

func together(all []*asker, do func(*asker)) {
	var done sync.WaitGroup
	for _, a := range all {
		done.Go(func() { do(a) })
	}
	done.Wait()
}

// wantGranted checks that all granted slices exist and fit the device.
func (h *host) wantGranted(all []*asker, bytes uint64) {
	h.T.Helper()
	there := make(map[string]bool)
	for _, s := range h.Slices() {
		there[s.ID] = true
	}
	for _, a := range all {
		if a.has && !there[a.id] {
			h.T.Fatalf("%s was promised a slice, but it is not there", a.id)
		}
	}
	d := h.device()
	if d.Quotas > d.Total || d.Quotas != uint64(len(there))*bytes || *d.Free != d.Total-d.Quotas {
		h.T.Fatalf("%d slices have %d bytes each: %+v", len(there), bytes, d)
	}
}

func TestQuotasAddUpThroughAnyNumberOfDeathsOfTheEnforcer(t *testing.T) {
	h := newHost(t)
	all := h.askers(16)
	bytes := h.device().Total / 5
	for range 8 {
		killed := make(chan struct{})
		time.AfterFunc(time.Duration(rand.IntN(30))*time.Millisecond, func() {
			h.Stop(unix.SIGKILL)
			close(killed)
		})
		together(all, func(a *asker) {
			for {
				select {
				case <-killed:
					return
				default:
				}
				a.ask(h, bytes)
				if a.has && rand.IntN(2) == 0 {
					a.has = false // if the enforcer is killed now, the slice may remain
					_, _ = h.Client.Release(h.T.Context(), a.id, 0, true)
				}
			}
		})
		h.Start()
		h.wantGranted(all, bytes)
	}
	for _, a := range all {
		if _, err := h.Client.Release(t.Context(), a.id, 0, true); err != nil && !errors.Is(err, api.ErrNotFound) {
			t.Error(err)
		}
	}
	if d := h.device(); d.Quotas != 0 || *d.Free != d.Total {
		t.Errorf("nobody has anything, but %+v", d)
	}
}

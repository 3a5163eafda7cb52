// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func device0(t *testing.T, h *host) api.Device {
	t.Helper()
	devices := must.Get(h.Devices(context.Background()))(t)
	return devices[0]
}

func TestDeviceShowsUseOutsideSlices(t *testing.T) {
	h, truth := newTruthHost(t)
	me := os.Getpid()
	truth.set(gpu0, me, 3*gib)
	truth.set(gpu0, 1, driver.Unknown)
	d := device0(t, h) // nothing is sampled without slices
	if d.Used == nil || *d.Used != 4*gib || d.OutsideCount != 2 || d.OutsideUsed != 3*gib || len(d.Outside) != 2 {
		t.Fatalf("without slices: %+v", d)
	}
	if p := d.Outside[0]; p.PID != me || p.Command == "" || p.Bytes == nil || *p.Bytes != 3*gib {
		t.Errorf("%+v", p)
	}
	if p := d.Outside[1]; p.PID != 1 || p.Bytes != nil {
		t.Errorf("of what the driver does not say: %+v", p)
	}
	truth.set(gpu0, 1, 0)
	p, _ := h.session("s", on(gpu0, 8*gib))
	truth.set(gpu0, p.pid(), 2*gib)
	eventually(t, "the sampler to tell the slice's process from the other", func() bool {
		d := device0(t, h)
		return d.Used != nil && *d.Used == 6*gib && d.OutsideCount == 1 && d.OutsideUsed == 3*gib
	})
}

func TestDevicesReportTheSampledFigures(t *testing.T) {
	h, truth := newTruthHost(t)
	h.session("s", on(gpu0, 8*gib))
	eventually(t, "a sample", func() bool { return truth.listed(gpu0) > 0 && device0(t, h).Used != nil })
	before, begin := truth.listed(gpu0), time.Now()
	for range 1000 {
		device0(t, h)
	}
	// The sampler itself lists processes twice in an interval; when it is late, the query does in its place.
	if n, own := truth.listed(gpu0)-before, 3*int(time.Since(begin)/h.options.Interval+2); n > own {
		t.Errorf("the driver listed processes %d times, %d are the bound", n, own)
	}
}

func TestHungDeviceHidesItsUseAndDelaysFewRequests(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	h := newHost(t, &fakeTruth{hang: hang})
	told := make(chan []api.Device, 1)
	go func() {
		all, _ := h.Devices(context.Background())
		told <- all
	}()
	if all := await.Value(t, "the answer arrives while one device hangs", told); len(all) != 2 || all[0].Used != nil || all[0].Total == 0 {
		t.Errorf("%+v", all)
	}
	// Nothing else queries a device without slices.
	eventually(t, "the query is repeated", func() bool { return check(h.health(), "truth").Failures > 2 })
}

func TestUtilizationIsSampledOnlyWhileRequested(t *testing.T) {
	h, truth := newTruthHost(t)
	p := attached(t, h, "s1", 4*gib)
	p.must("charge 0 %d", gib)
	shown := func() api.Process {
		s := h.see("s1")
		if len(s.Processes) != 1 || len(s.Processes[0].Devices) != 1 {
			t.Fatalf("%+v", s)
		}
		return s.Processes[0]
	}
	asked := func() int {
		truth.mu.Lock()
		defer truth.mu.Unlock()
		return truth.busyAsked
	}
	expect.Equal(t, asked(), 0, "a question to the driver while nobody looks")
	if got := shown(); got.Command != "client" || got.Devices[0].Busy != nil {
		t.Errorf("%+v", got)
	}
	eventually(t, "the driver is asked", func() bool { return asked() > 0 })
	expect.True(t, shown().Devices[0].Busy == nil, "utilization is shown, but the driver does not report it")
	truth.mu.Lock()
	truth.busy = map[int]uint32{p.pid(): 42}
	truth.mu.Unlock()
	eventually(t, "utilization is shown", func() bool { b := shown().Devices[0].Busy; return b != nil && *b == 42 })
	truth.mu.Lock()
	truth.busy = map[int]uint32{}
	truth.mu.Unlock()
	eventually(t, "a process that is not listed is idle", func() bool { b := shown().Devices[0].Busy; return b != nil && *b == 0 })
}

func TestInspectDoesNotWaitForTheDriver(t *testing.T) {
	// Less than the enforcer's timeout for the driver.
	await.Once(t, "a look at a slice", 3*time.Second, func() time.Duration {
		h, truth := newTruthHost(t)
		p := attached(t, h, "s1", 4*gib)
		p.must("charge 0 %d", gib)
		hang := make(chan struct{})
		defer close(hang)
		truth.mu.Lock()
		truth.hang = hang
		truth.mu.Unlock()
		eventually(t, "the driver hangs", func() bool { return truth.looked() > 0 })
		begin := time.Now()
		h.see("s1")
		return time.Since(begin)
	})
}

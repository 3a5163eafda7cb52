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
	"github.com/gpuslice/gpuslice/test/must"
)

func device0(t *testing.T, h *host) api.Device {
	t.Helper()
	devices := must.Get(h.Devices(context.Background()))(t)
	return devices[0]
}

func TestADeviceShowsWhatIsInUseAndByWhomOutsideSlices(t *testing.T) {
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

func TestWhoAsksForDevicesHasTheSampledFigures(t *testing.T) {
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

func TestADeviceThatHangsHidesWhatIsUsedAndDelaysFew(t *testing.T) {
	h, truth := newTruthHost(t)
	hang := make(chan struct{})
	truth.mu.Lock()
	truth.hang = hang
	truth.mu.Unlock()
	defer close(hang)
	told := make(chan []api.Device, 1)
	go func() {
		all, _ := h.Devices(context.Background())
		told <- all
	}()
	if all := await.Value(t, "the answer arrives while one device hangs", told); len(all) != 2 || all[0].Used != nil || all[0].Total == 0 {
		t.Errorf("%+v", all)
	}
}

// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"maps"
	"path/filepath"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuslice/gpuslice/test/must"
)

func TestHowBusyProcessesAreIsKnownOrNot(t *testing.T) {
	sample := func(pid, at, sm uint32) nvml.ProcessUtilizationSample {
		return nvml.ProcessUtilizationSample{Pid: pid, TimeStamp: uint64(at), SmUtil: sm}
	}
	for _, c := range []struct {
		samples []nvml.ProcessUtilizationSample
		ret     nvml.Return
		want    map[int]uint32
		fails   bool
	}{
		{samples: []nvml.ProcessUtilizationSample{sample(7, 2, 40), sample(7, 1, 90), sample(8, 1, 3), sample(9, 0, 50), sample(10, 1, 4000)}, want: map[int]uint32{7: 40, 8: 3}},
		{ret: nvml.ERROR_NOT_FOUND, want: map[int]uint32{}},
		{ret: nvml.ERROR_NOT_SUPPORTED},
		{ret: nvml.ERROR_INVALID_ARGUMENT},
		{ret: nvml.ERROR_GPU_IS_LOST, fails: true},
	} {
		n := newNVML(&fakeLibrary{devices: []*fakeDevice{{uuid: uuid0, busy: c.samples, busyRet: c.ret}}}, everything)
		if got, err := n.Busy(uuid0, time.Now()); !maps.Equal(got, c.want) || (got == nil) != (c.want == nil) || (err != nil) != c.fails {
			t.Errorf("%+v: %v, %v", c, got, err)
		}
	}
	old := newNVML(&fakeLibrary{devices: []*fakeDevice{{uuid: uuid0}}}, func(symbol string) bool { return symbol != "nvmlDeviceGetProcessUtilization" })
	if got, err := old.Busy(uuid0, time.Now()); got != nil || err != nil {
		t.Errorf("an old library: %v, %v", got, err)
	}
}

func TestTheSimulatedDriverSaysHowBusyAProcessIs(t *testing.T) {
	libraries, hog := simulated(t)
	state := filepath.Join(t.TempDir(), "machine")
	if !under(t, libraries, "FAKECUDA_STATE="+state, "FAKECUDA_DEVICES=2") {
		return
	}
	n := must.Get(Open())(t)
	defer n.Close()
	devices := must.Get(n.Devices())(t)
	pid := runHog(t, hog)
	for i, want := range []map[int]uint32{{pid: 1}, {}} {
		if got, err := n.Busy(devices[i].UUID, time.Now().Add(-time.Second)); err != nil || !maps.Equal(got, want) || got == nil {
			t.Errorf("device %d: %v, %v", i, got, err)
		}
	}
}

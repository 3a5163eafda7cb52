// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
)

func TestHowBusyAProcessKeepsADeviceIsAskedWhileSomebodyLooks(t *testing.T) {
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
	if got := shown(); got.Devices[0].Busy != nil {
		t.Errorf("the driver does not say it, and %d%% is shown", *got.Devices[0].Busy)
	}
	truth.mu.Lock()
	truth.busy = map[int]uint32{p.pid(): 42}
	truth.mu.Unlock()
	eventually(t, "what the driver says is shown", func() bool { b := shown().Devices[0].Busy; return b != nil && *b == 42 })
	truth.mu.Lock()
	truth.busy = map[int]uint32{}
	truth.mu.Unlock()
	eventually(t, "a process that is not listed is idle", func() bool { b := shown().Devices[0].Busy; return b != nil && *b == 0 })
}

func TestWhoLooksAtASliceDoesNotWaitForTheDriver(t *testing.T) {
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

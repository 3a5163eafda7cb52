// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// mute is a driver that answers at first, then nothing, not even its version.
type mute struct {
	fakeTruth
	silent atomic.Bool
	end    chan struct{}
}

func (m *mute) DriverVersion() string {
	if m.silent.Load() {
		<-m.end
	}
	return "580"
}

// Hooks of engines, probes and the metrics query the enforcer: a driver that hangs must not make it look dead.
func TestWhoAsksTheEnforcerWhoItIsDoesNotWaitForTheDriver(t *testing.T) {
	truth := &mute{end: make(chan struct{})}
	h := newHost(t, nil)
	h.stop()
	h.options.Truth = truth
	h.start()
	h.session("s", on(gpu0, gib))
	truth.mu.Lock()
	truth.hang = truth.end
	truth.mu.Unlock()
	truth.silent.Store(true)
	defer close(truth.end)
	truth.comparisons(t, 1) // the query hangs

	told := make(chan api.Info, 1)
	go func() {
		info, err := h.Info(context.Background())
		expect.NoError(t, err)
		told <- info
	}()
	select {
	case info := <-told:
		if info.Truth != "nvml" || info.Driver != "580" {
			t.Errorf("%+v", info)
		}
	case <-time.After(await.Patience):
		t.Error("the question waits for the driver")
	}
}

func TestWithoutDriverTruthTheEnforcerSaysSoAtItsStart(t *testing.T) {
	h := newHost(t, nil)
	h.stop()
	var log testhost.Output
	h.options.Log = slog.New(slog.NewTextHandler(&log, nil))
	h.start()
	if said := log.String(); strings.Count(said, "no driver truth") != 1 || !strings.Contains(said, h.options.NoTruth) {
		t.Errorf("it says\n%s", said)
	}
	if info, err := h.Info(context.Background()); err != nil || info.Truth != h.options.NoTruth {
		t.Errorf("%+v, %v", info, err)
	}
}

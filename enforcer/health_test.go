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
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

func (h *host) health() api.Health {
	h.t.Helper()
	asked := make(chan api.Health, 1)
	go func() {
		health, err := h.Health(context.Background())
		expect.NoError(h.t, err)
		asked <- health
	}()
	select {
	case health := <-asked:
		return health
	case <-time.After(await.Patience):
		h.t.Fatal("nobody says whether the enforcer is well")
		return api.Health{}
	}
}

func check(h api.Health, name string) api.Check {
	for _, c := range h.Checks {
		if c.Name == name {
			return c
		}
	}
	return api.Check{}
}

func TestAnEnforcerThatWorksIsLiveAndReady(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	h.session("s1", on("*", gib))
	h.session("s2", on("*", gib))
	eventually(t, "it has looked at its slices", func() bool { return h.Lag() > 0 })
	health := h.health()
	for _, c := range health.Checks {
		expect.True(t, c.OK && c.Message == "" && c.Age <= 5*time.Second, "got", c)
	}
	if !health.Live || !health.Ready || len(health.Checks) != 6 { // the loop, changes, the store, the disk, two devices
		t.Errorf("%+v", health)
	}
}

// Stops the loop as waiting forever for a slice's lock would.
func TestALoopThatHangsIsNotLive(t *testing.T) {
	h := newHost(t, nil)
	h.session("s1", on("*", gib))
	release := h.HoldSlice("s1")
	defer release()
	var health api.Health
	eventually(t, "the enforcer is not live", func() bool {
		h.Backdate(time.Minute)
		health = h.health()
		return !health.Live
	})
	if c := check(health, "loop"); health.Live || health.Ready || c.OK || c.For != api.ForLive || c.Message == "" || c.Age < time.Minute {
		t.Errorf("%+v", health)
	}
	release()
	eventually(t, "it is live again", func() bool { return h.health().Live })
}

func TestAChangeThatNeverEndsIsNotLive(t *testing.T) {
	h := newHost(t, nil)
	h.session("s1", on("*", gib))
	release := h.HoldTurns("s1")
	defer release()
	var health api.Health
	eventually(t, "only the change hangs", func() bool {
		h.Backdate(time.Minute)
		time.Sleep(100 * time.Millisecond)
		health = h.health()
		return check(health, "loop").OK && !health.Live
	})
	expect.True(t, !check(health, "changes").OK && check(health, "store").OK, "got", health)
	release()
	eventually(t, "it is live again", func() bool { return h.health().Live })
}

// Turns that are taken one after another are progress, though no turn is ever seen free.
func TestManyChangesAreProgress(t *testing.T) {
	h := newHost(t, nil)
	h.session("s1", on("*", gib))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			release := h.HoldTurns("s1")
			time.Sleep(time.Millisecond)
			release()
		}
	}()
	h.Backdate(time.Minute)
	eventually(t, "it is live", func() bool { return h.health().Live })
	stop()
	<-done
}

// A driver that hangs would hang after a restart as well, and only driver truth depends on it.
func TestHungDriverIsReportedButTheEnforcerStaysLive(t *testing.T) {
	truth := &fakeTruth{hang: make(chan struct{})}
	h := newHost(t, truth)
	h.session("s1", on("*", gib))
	eventually(t, "the driver is asked", func() bool { return truth.looked() > 0 })
	var health api.Health
	eventually(t, "the driver is missed", func() bool {
		h.Backdate(time.Minute)
		health = h.health()
		return !check(health, "truth").OK
	})
	c := check(health, "truth")
	expect.True(t, !c.OK && c.For == "" && c.Device == gpu0 && c.Message != "" && c.Age >= time.Minute, "got", c)
	eventually(t, "the enforcer is live while the driver hangs: the loop has looked, and a change that was under way has ended", func() bool {
		health = h.health()
		return health.Live && health.Ready && !check(health, "truth").OK
	})
	if _, reply := h.session("s2", on("*", gib)); reply.Slice.ID != "s2" {
		t.Errorf("%+v", reply)
	}
	close(truth.hang)
	eventually(t, "the driver is heard", func() bool { return check(h.health(), "truth").OK })
}

func TestUnusedDriverIsSampledForHealth(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	h.Backdate(time.Minute)
	eventually(t, "the devices are sampled", func() bool { return check(h.health(), "truth").Age < 5*time.Second })
}

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
func TestInfoDoesNotWaitForTheDriver(t *testing.T) {
	truth := &mute{end: make(chan struct{})}
	h := newHost(t, nil)
	h.with(func(o *enforcer.Options) { o.Truth = truth })
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
		expect.True(t, info.Truth == "nvml" && info.Driver == "580", "got", info)
	case <-time.After(await.Patience):
		t.Error("the question waits for the driver")
	}
}

func TestStartWithoutNVMLIsLogged(t *testing.T) {
	h := newHost(t, nil)
	h.stop()
	var log testhost.Output
	h.options.Log = slog.New(slog.NewTextHandler(&log, nil))
	h.start()
	if said := log.String(); strings.Count(said, "no driver truth") != 1 || !strings.Contains(said, h.options.NoTruth) {
		t.Errorf("it says\n%s", said)
	}
	expect.Equal(t, must.Get(h.Info(context.Background()))(t).Truth, h.options.NoTruth)
}

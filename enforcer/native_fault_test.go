// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/store"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// onlooker is a driver with limits that checks at each call whether the store has the limit.
type onlooker struct {
	*fakeBackend
	t *testing.T
	h *host
}

func (w *onlooker) Limit(cgroup, device string, bytes uint64) error {
	if strings.Contains(cgroup, "probe") {
		return w.fakeBackend.Limit(cgroup, device, bytes)
	}
	dir := w.t.TempDir() // a copy: while it runs, the enforcer alone opens the records
	copied := store.RecordsDir(dir, "copy")
	must.Do(w.t, os.MkdirAll(copied, 0o700))
	for _, r := range must.Get(filepath.Glob(filepath.Join(w.h.records(), "slice-*")))(w.t) { // others are being written, or renamed
		if text, err := os.ReadFile(r); !errors.Is(err, os.ErrNotExist) {
			must.Do(w.t, errors.Join(err, os.WriteFile(filepath.Join(copied, filepath.Base(r)), text, 0o600)))
		}
	}
	s := must.Get(store.Open(store.Options{RunDir: dir, StateDir: dir, Boot: "copy", Log: slog.New(slog.DiscardHandler)}))(w.t)
	defer s.Close()
	if aside, _ := filepath.Glob(filepath.Join(dir, "*.damaged-*")); len(aside) > 0 {
		w.t.Fatal(aside)
	}
	for _, r := range append(s.Slices(), s.Released()...) {
		if r.Native && strings.HasSuffix(cgroup, r.CgroupRel) {
			return w.fakeBackend.Limit(cgroup, device, bytes)
		}
	}
	w.t.Errorf("the driver's limit for %s is %d bytes, which the store does not have", cgroup, bytes)
	return w.fakeBackend.Limit(cgroup, device, bytes)
}

// An enforcer that sets limits in the driver restores slices of one that did not, at each step of their lives.
func TestTheStoreKnowsOfLimitsBeforeTheDriverDoes(t *testing.T) {
	if !inV2(t) {
		return
	}
	f, c, truth := &fakeBackend{}, &clock{at: time.Hour}, &fakeTruth{}
	h := newHost(t, truth)
	h.options.Clock, h.options.Grace, h.options.Policy = c.now, grace, enforcer.Policy{Bypass: api.Refuse}
	h.options.Backend = &onlooker{f, t, h}
	as := func(enforcement api.Enforcement) {
		t.Helper()
		h.with(func(o *enforcer.Options) { o.Enforcement = enforcement })
	}
	as(api.Intercept)
	cgroups := make(map[string]string)
	for _, id := range []string{"active", "frozen", "expired", "released"} {
		cgroups[id] = newCgroup(t)
		ttl := time.Duration(0)
		if id == "expired" {
			ttl = time.Hour
		}
		p := h.lease(id, cgroups[id], ttl)
		switch id {
		case "frozen":
			truth.set(gpu0, p.pid(), 3*gib)
			eventually(t, "the slice is frozen", func() bool { return h.see(id).State == api.Frozen })
		case "expired": // it ignores SIGTERM
			must.Do(t, p.cmd.Process.Signal(syscall.SIGSTOP))
		}
	}
	must.Get(h.Release(context.Background(), "released", 0, true))(t)
	c.pass(time.Hour)
	h.expired("expired")
	as(api.Native)
	for id, want := range map[string]uint64{"active": gib, "frozen": 0, "expired": 0, "released": 0} {
		f.holds(t, id, cgroups[id], want)
	}
	as(api.Intercept)
	for id, cgroup := range cgroups {
		f.are(t, id, cgroup, driver.NoLimit, driver.NoLimit)
	}
}

// onSimulatedDriver runs the calling test as inV2 does, on the simulated driver with limits. In that run it returns the devices, and the
// limit of a cgroup on one of them.
func onSimulatedDriver(t *testing.T, env ...string) (devices []driver.Device, limit func(cgroup string, device int) uint64) {
	t.Helper()
	libraries := must.Get(filepath.Abs("../bin/fakecuda"))(t)
	if _, err := os.Stat(filepath.Join(libraries, "libnvidia-ml.so.1")); err != nil {
		t.Skipf("requires the simulated driver (make test-programs): %v", err)
	}
	env = append(env, "LD_LIBRARY_PATH="+libraries, "FAKECUDA_STATE="+filepath.Join(t.TempDir(), "machine"), "FAKECUDA_LIMITS=1", "FAKECUDA_MEMORY=8G")
	if !inV2(t, env...) {
		return nil, nil
	}
	nvml, err := driver.Open()
	must.Do(t, err)
	t.Cleanup(func() { nvml.Close() })
	if devices, err = nvml.Devices(); err != nil {
		t.Fatal(err)
	}
	return devices, func(cgroup string, device int) uint64 {
		t.Helper()
		bytes, err := nvml.Limited(cgroup, devices[device].UUID)
		if err != nil && !errors.Is(err, driver.ErrNoCgroup) {
			t.Fatal(err)
		}
		return bytes
	}
}

func nativeDaemon(t *testing.T) *daemon {
	t.Helper()
	d := newDaemon(t)
	config := "[enforcer]\ngroup = \"\"\nenforcement = \"native\"\n"
	must.Do(t, os.WriteFile(filepath.Join(d.dir, "config.toml"), []byte(config), 0o600))
	return d
}

// Uses the real daemon on the simulated driver.
func TestEnforcerKilledWhileSettingNativeLimitsConverges(t *testing.T) {
	devices, limitOn := onSimulatedDriver(t)
	if devices == nil {
		return
	}
	limit := func(cgroup string) uint64 { return limitOn(cgroup, 0) }
	for _, point := range []string{"register.stored", "register.limited", "register.done", "restore.limited", "release.closed", "release.unlimited"} {
		d := nativeDaemon(t)
		request := func(c *container, id string) api.RegisterRequest {
			return api.RegisterRequest{ID: id, PID: c.init.pid(), Quotas: []api.Quota{{Device: api.AllDevices, Bytes: 3 * gib}}}
		}
		d.start("")
		keep, other := newContainer(t, d, "k"), newContainer(t, d, "o")
		if _, err := d.Register(context.Background(), request(keep, "keep")); err != nil {
			t.Fatalf("%v\n%s", err, d.log())
		}
		d.kill()
		if !d.start(point) {
			d.start("")
		}
		_, registered := d.Register(context.Background(), request(other, "other"))
		if registered == nil && limit(other.cgroup) != 3*gib {
			t.Errorf("%s: the slice is given, but the driver's limit is %d", point, limit(other.cgroup))
		}
		if strings.HasPrefix(point, "register.") {
			d.died(point)
			d.start("")
		}
		if _, stored := d.ids()["other"]; stored != (limit(other.cgroup) == 3*gib) {
			t.Errorf("%s: the slice is there: %v, but the driver's limit is %d", point, stored, limit(other.cgroup))
		}
		_, _ = d.Release(context.Background(), "other", 0, true)
		if point == "release.closed" {
			d.died(point)
			d.start("")
		}
		eventually(t, "nothing more is given", func() bool { return limit(other.cgroup) == 0 })
		other.init.kill()
		if point == "release.unlimited" {
			d.died(point)
			d.start("")
		}
		eventually(t, point+": the limit is taken away", func() bool { return limit(other.cgroup) == driver.NoLimit })
		expect.Equal(t, limit(keep.cgroup), 3*gib, point, "the limit of the other slice")
		keep.init.kill()
		eventually(t, "the last slice is gone", func() bool { return len(d.ids()) == 0 && limit(keep.cgroup) == driver.NoLimit })
		eventually(t, "nothing is left", func() bool {
			dirs, err := os.ReadDir(filepath.Join(d.dir, "run", "slices"))
			return err == nil && len(dirs) == 0
		})
		d.kill()
	}
}

func TestEnforcerKilledWhileGrantingADeviceHasGrantedIt(t *testing.T) {
	devices, limit := onSimulatedDriver(t, "FAKECUDA_DEVICES=2")
	if devices == nil {
		return
	}
	for _, point := range []string{"set.stored", "device.added", "set.done"} {
		d := nativeDaemon(t)
		d.start(point)
		c := newContainer(t, d, "c")
		request := c.request("c")
		request.Quotas = []api.Quota{on("0", 3*gib)}
		if err := d.registerAs(c, request); err != nil {
			t.Fatalf("%v\n%s", err, d.log())
		}
		attach(c.init)
		if _, err := d.Change(context.Background(), "c", api.ChangeRequest{Quotas: []api.Quota{on("1", 2*gib)}}); err == nil {
			t.Fatal("the enforcer answered: want it killed")
		}
		d.died(point)
		d.start("")
		if s := d.ids()["c"]; s.State != api.Active || len(s.Devices) != 2 || s.Devices[1].Limit != 2*gib || len(s.Quotas) != 2 {
			t.Errorf("%s: %+v\n%s", point, s, d.log())
		}
		if a, b := limit(c.cgroup, 0), limit(c.cgroup, 1); a != 3*gib || b != 2*gib {
			t.Errorf("%s: the driver holds it to %d and %d", point, a, b)
		}
		expect.Equal(t, must.Get(d.Devices(context.Background()))(t)[1].Quotas, 2*gib, point)
		c.init.must("charge 1 %d", 2*gib)
		c.init.expect("refused", "charge 1 1")
		c.init.kill()
		eventually(t, "the slice is gone", func() bool { return len(d.ids()) == 0 })
		d.kill()
	}
}

// The simulated driver loses its limits, as a real one does at a reset.
func TestALimitThatTheSimulatedDriverLostIsSetAgain(t *testing.T) {
	devices, limit := onSimulatedDriver(t)
	if devices == nil {
		return
	}
	d := nativeDaemon(t)
	d.start("")
	c := newContainer(t, d, "c")
	request := c.request("c")
	request.Quotas = []api.Quota{on("0", 3*gib)}
	if err := d.registerAs(c, request); err != nil {
		t.Fatalf("%v\n%s", err, d.log())
	}
	nvml, err := driver.Open()
	must.Do(t, err)
	defer nvml.Close()
	must.Do(t, nvml.Unlimit(c.cgroup, devices[0].UUID))
	eventually(t, "the driver has the limit again", func() bool { return limit(c.cgroup, 0) == 3*gib })
	c.init.kill()
	eventually(t, "the slice is gone", func() bool { return len(d.ids()) == 0 })
	d.kill()
}

// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
)

// inV2 runs the calling test again, alone, where cgroups of version 2 are mounted and no others. It is true in that run.
func inV2(t *testing.T, env ...string) bool {
	t.Helper()
	const inside = "GPUSLICE_TEST_V2"
	if os.Getenv(inside) != "" {
		return true
	}
	_ = os.Remove(newCgroup(t)) // or skip
	cmd := exec.Command("unshare", "--mount", "sh", "-c",
		`[ -e /sys/fs/cgroup/cgroup.procs ] || { umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup; } && exec "$0" "$@"`,
		os.Args[0], "-test.run", "^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")
	cmd.Env = append(append(os.Environ(), inside+"=1"), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// fakeBackend is a driver with limits.
type fakeBackend struct {
	mu     sync.Mutex
	limits map[[2]string]uint64 // by cgroup and device
	err    error                // of Limit
	forget bool                 // Limit does nothing
	hang   chan struct{}
}

func (f *fakeBackend) Limit(cgroup, device string, bytes uint64) error {
	f.mu.Lock()
	hang := f.hang
	f.mu.Unlock()
	if hang != nil {
		<-hang
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := os.Stat(cgroup); err != nil {
		return driver.ErrNoCgroup
	}
	if f.err != nil && !strings.Contains(cgroup, "probe") {
		return f.err
	}
	if f.limits == nil {
		f.limits = make(map[[2]string]uint64)
	}
	if !f.forget {
		f.limits[[2]string{cgroup, device}] = bytes
	}
	return nil
}

func (f *fakeBackend) Limited(cgroup, device string) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if bytes, ok := f.limits[[2]string{cgroup, device}]; ok {
		return bytes, nil
	}
	return driver.NoLimit, nil
}

func (f *fakeBackend) Unlimit(cgroup, device string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.limits, [2]string{cgroup, device})
	return nil
}

func (f *fakeBackend) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// are checks the limits of a cgroup on both devices; driver.NoLimit is none.
func (f *fakeBackend) are(t *testing.T, when, cgroup string, want ...uint64) {
	t.Helper()
	for i, device := range []string{gpu0, gpu1} {
		if got, _ := f.Limited(cgroup, device); got != want[i] {
			t.Errorf("%s: the driver holds the cgroup to %d on device %d, want %d", when, got, i, want[i])
		}
	}
}

// newNativeHost is a host whose driver has limits.
func newNativeHost(t *testing.T, b enforcer.Backend) *host {
	h := newHost(t, &fakeTruth{})
	h.stop()
	h.options.Backend = b
	h.start()
	return h
}

// box is a container of one process.
type box struct {
	cgroup, link string
	init         *proc
}

func (h *host) newBox(id string, quotas ...api.Quota) (*box, api.RegisterReply, error) {
	h.t.Helper()
	b := &box{cgroup: newCgroup(h.t), link: filepath.Join(h.options.RunDir, "to-"+id)}
	b.init = start(h.t, b.link, b.cgroup)
	reply, err := h.Register(context.Background(), api.RegisterRequest{ID: id, Container: id, PID: b.init.pid(), Quotas: quotas})
	if err == nil {
		if err := os.Symlink(filepath.Join(reply.Dir, "bind"), b.link); err != nil {
			h.t.Fatal(err)
		}
	}
	return b, reply, err
}

func TestTheDriverHoldsAContainersCgroupToItsQuotas(t *testing.T) {
	if !inV2(t) {
		return
	}
	f := &fakeBackend{}
	h := newNativeHost(t, f)
	b, reply, err := h.newBox("c", on(gpu0, 4*gib), api.Quota{Device: api.AllDevices, Percent: 100})
	if err != nil {
		t.Fatal(err)
	}
	f.are(t, "registered", b.cgroup, 4*gib, 80*gib)
	for _, d := range reply.Slice.Devices {
		if d.Enforcement != api.Native {
			t.Errorf("%+v", d)
		}
	}
	devices, err := h.Devices(context.Background())
	if err != nil || len(devices) != 2 || devices[0].Enforcement != api.Native || devices[0].EnforcementReason == "" {
		t.Errorf("%+v, %v", devices, err)
	}
	if info, _ := h.Info(context.Background()); info.Enforcement != api.Auto {
		t.Errorf("%+v", info)
	}

	if _, err := h.Change(context.Background(), "c", api.ChangeRequest{Quotas: []api.Quota{on(gpu0, 6*gib)}}); err != nil {
		t.Fatal(err)
	}
	f.are(t, "with another quota", b.cgroup, 6*gib, 80*gib)

	// It is told again what it may have forgotten.
	h.stop()
	_ = f.Unlimit(b.cgroup, gpu0)
	h.start()
	f.are(t, "after a restart", b.cgroup, 6*gib, 80*gib)

	if _, err := h.Release(context.Background(), "c", 0, true); err != nil {
		t.Fatal(err)
	}
	f.are(t, "released, with a process", b.cgroup, 0, 0)
	h.restart()
	f.are(t, "the same after a restart", b.cgroup, 0, 0)
	b.init.kill()
	eventually(t, "the limits are taken away", func() bool {
		got, _ := f.Limited(b.cgroup, gpu0)
		other, _ := f.Limited(b.cgroup, gpu1)
		return got == driver.NoLimit && other == driver.NoLimit
	})
}

func TestAnEnforcerThatEnforcesByTheInterceptorTakesTheDriversLimitsAway(t *testing.T) {
	if !inV2(t) {
		return
	}
	f := &fakeBackend{}
	h := newNativeHost(t, f)
	b, _, err := h.newBox("c", on(gpu0, 4*gib))
	if err != nil {
		t.Fatal(err)
	}
	f.are(t, "native", b.cgroup, 4*gib, driver.NoLimit)
	h.stop()
	h.options.Enforcement = api.Intercept
	h.start()
	f.are(t, "intercept", b.cgroup, driver.NoLimit, driver.NoLimit)
	if s := h.see("c"); s.Devices[0].Enforcement != api.Intercept || s.Devices[0].Limit != 4*gib {
		t.Errorf("%+v", s)
	}
	h.stop()
	h.options.Enforcement = api.Native
	h.start()
	f.are(t, "native again", b.cgroup, 4*gib, driver.NoLimit)
}

func TestWhoHasNoCgroupOrIsRefusedNothingHasNoDriversLimit(t *testing.T) {
	if !inV2(t) {
		return
	}
	f := &fakeBackend{}
	h := newNativeHost(t, f)
	if _, reply := h.session("s", on(gpu0, gib)); reply.Slice.Devices[0].Enforcement != api.Intercept {
		t.Errorf("a session: %+v", reply.Slice.Devices)
	}
	p := start(t, "", newCgroup(t))
	reply, err := h.Register(context.Background(), api.RegisterRequest{ID: "r", PID: p.pid(), Mode: api.Record, Quotas: []api.Quota{on(gpu0, gib)}})
	if err != nil || reply.Slice.Devices[0].Enforcement != api.Intercept {
		t.Errorf("record mode: %+v, %v", reply.Slice.Devices, err)
	}
	if len(f.limits) > 0 {
		t.Errorf("the driver holds %v", f.limits)
	}
}

func TestWhatTheDriverRefusesIsNotGiven(t *testing.T) {
	if !inV2(t) {
		return
	}
	f := &fakeBackend{err: errors.New("Insufficient Permissions")}
	h := newNativeHost(t, f)
	_, _, err := h.newBox("c", on(gpu0, 4*gib))
	if err == nil || !strings.Contains(err.Error(), "Insufficient Permissions") || !strings.Contains(err.Error(), gpu0) {
		t.Fatalf("registered: %v", err)
	}
	if all, err := h.Slices(context.Background()); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	if dirs, err := os.ReadDir(filepath.Join(h.options.RunDir, "slices")); err != nil || len(dirs) != 0 {
		t.Errorf("left: %v, %v", dirs, err)
	}
	f.fail(nil)
	b, _, err := h.newBox("c2", on(gpu0, 4*gib))
	if err != nil {
		t.Fatal(err)
	}
	// A slice that is in use goes on with its ledger, and it is told.
	f.fail(errors.New("Unknown Error"))
	s, err := h.Change(context.Background(), "c2", api.ChangeRequest{Quotas: []api.Quota{on(gpu0, 2*gib)}})
	if err != nil || s.Devices[0].Limit != 2*gib {
		t.Errorf("%+v, %v", s, err)
	}
	f.are(t, "not changed", b.cgroup, 4*gib, driver.NoLimit)
	events, err := h.Events(context.Background(), 0, false)
	if err != nil || !slices.ContainsFunc(events, func(e api.Event) bool {
		return e.Kind == api.EventUnlimited && e.Slice == "c2" && e.Device == gpu0 && strings.Contains(e.Cause, "Unknown Error")
	}) {
		t.Errorf("%+v, %v", events, err)
	}
}

// What the kernel's controller is not in, the driver cannot limit: the interceptor does, unless that is not wanted.
func TestACgroupThatTheDriverCannotLimitIsTheInterceptors(t *testing.T) {
	if !inV2(t) {
		return
	}
	f := &fakeBackend{err: driver.ErrNoController}
	h := newNativeHost(t, f)
	_, reply, err := h.newBox("c", on(gpu0, 4*gib))
	if err != nil || reply.Slice.Devices[0].Enforcement != api.Intercept {
		t.Fatalf("%+v, %v", reply.Slice.Devices, err)
	}
	h.stop()
	h.options.Enforcement = api.Native
	h.start() // the one that there is stays
	if _, _, err := h.newBox("d", on(gpu0, 4*gib)); err == nil || !strings.Contains(err.Error(), driver.ErrNoController.Error()) {
		t.Errorf("%v", err)
	}
}

func TestADriverThatHangsKeepsNobodyWaiting(t *testing.T) {
	if !inV2(t) {
		return
	}
	f := &fakeBackend{}
	h := newNativeHost(t, f)
	b, _, err := h.newBox("c", on(gpu0, 4*gib))
	if err != nil {
		t.Fatal(err)
	}
	hang := make(chan struct{})
	f.mu.Lock()
	f.hang = hang
	f.mu.Unlock()
	if _, err := h.Change(context.Background(), "c", api.ChangeRequest{Quotas: []api.Quota{on(gpu0, 2*gib)}}); err != nil {
		t.Error(err)
	}
	if _, _, err := h.newBox("d", on(gpu0, 4*gib)); err == nil {
		t.Error("a slice was given that the driver does not hold to its quota")
	}
	f.mu.Lock()
	f.hang = nil
	f.mu.Unlock()
	close(hang)
	eventually(t, "what was asked for last is so", func() bool {
		got, _ := f.Limited(b.cgroup, gpu0)
		return got == 2*gib
	})
	h.restart()
	f.are(t, "after a restart", b.cgroup, 2*gib, driver.NoLimit)
}

func TestNativeIsInForceWhereItIsProvenToWorkOnly(t *testing.T) {
	if !inV2(t) {
		return
	}
	for why, b := range map[string]enforcer.Backend{
		"there is no NVML":           nil,
		"R615":                       oldDriver{},
		"is 18446744073709551615":    &fakeBackend{forget: true},
		"configuration says so":      &fakeBackend{},
		"the driver does not answer": &fakeBackend{hang: make(chan struct{})},
	} {
		h := newHost(t, &fakeTruth{})
		h.stop()
		h.options.Backend = b
		if strings.HasPrefix(why, "configuration") {
			h.options.Enforcement = api.Intercept
		}
		h.start()
		devices, err := h.Devices(context.Background())
		if err != nil || devices[0].Enforcement != api.Intercept || !strings.Contains(devices[0].EnforcementReason, why) {
			t.Errorf("%s: %+v, %v", why, devices, err)
		}
		h.stop()
		h.options.Enforcement = api.Native
		if strings.HasPrefix(why, "configuration") {
			continue
		}
		if e, err := enforcer.New(h.options); err == nil || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: it starts: %v", why, err)
			if e != nil {
				e.Close()
			}
		}
		left, err := filepath.Glob("/sys/fs/cgroup/gpuslice-probe-*")
		if err != nil || len(left) > 0 {
			t.Errorf("%s: left: %v, %v", why, left, err)
		}
	}
}

// oldDriver has no limits.
type oldDriver struct{}

var errOld = fmt.Errorf("%w: it is older than R615", driver.ErrNoLimits)

func (oldDriver) Limit(string, string, uint64) error     { return errOld }
func (oldDriver) Limited(string, string) (uint64, error) { return 0, errOld }
func (oldDriver) Unlimit(string, string) error           { return errOld }

func TestOnAHostWithBothVersionsOfCgroupsTheInterceptorEnforces(t *testing.T) {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err == nil {
		return // it has version 2 alone, and the tests above are of that
	}
	f := &fakeBackend{}
	h := newNativeHost(t, f)
	devices, err := h.Devices(context.Background())
	want := "version 1"
	if os.Geteuid() != 0 {
		want = "sessions"
	}
	if err != nil || devices[0].Enforcement != api.Intercept || !strings.Contains(devices[0].EnforcementReason, want) {
		t.Errorf("%+v, %v", devices, err)
	}
}

// The real daemon, on the simulated driver.
func TestAnEnforcerKilledWhileItTellsTheDriverConverges(t *testing.T) {
	libraries, err := filepath.Abs("../bin/fakecuda")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(libraries, "libnvidia-ml.so.1")); err != nil {
		t.Skipf("requires the simulated driver (make build): %v", err)
	}
	state := filepath.Join(t.TempDir(), "machine")
	if !inV2(t, "LD_LIBRARY_PATH="+libraries, "FAKECUDA_STATE="+state, "FAKECUDA_LIMITS=1", "FAKECUDA_MEMORY=8G") {
		return
	}
	nvml, err := driver.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer nvml.Close()
	devices, err := nvml.Devices()
	if err != nil || len(devices) != 1 {
		t.Fatalf("%+v, %v", devices, err)
	}
	limit := func(cgroup string) uint64 {
		t.Helper()
		bytes, err := nvml.Limited(cgroup, devices[0].UUID)
		if err != nil && !errors.Is(err, driver.ErrNoCgroup) {
			t.Fatal(err)
		}
		return bytes
	}
	for _, point := range []string{"register.stored", "register.limited", "register.done", "restore.limited", "release.closed", "release.unlimited"} {
		d := newDaemon(t)
		config := "[enforcer]\ngroup = \"\"\nenforcement = \"native\"\n"
		if err := os.WriteFile(filepath.Join(d.dir, "config.toml"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
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
			t.Errorf("%s: the slice is given, and the driver's limit is %d", point, limit(other.cgroup))
		}
		if strings.HasPrefix(point, "register.") {
			d.died(point)
			d.start("")
		}
		if _, stored := d.ids()["other"]; stored != (limit(other.cgroup) == 3*gib) {
			t.Errorf("%s: the slice is there: %v, and the driver's limit is %d", point, stored, limit(other.cgroup))
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
		if limit(keep.cgroup) != 3*gib {
			t.Errorf("%s: the limit of the other slice is %d", point, limit(keep.cgroup))
		}
		keep.init.kill()
		eventually(t, "the last slice is gone", func() bool { return len(d.ids()) == 0 && limit(keep.cgroup) == driver.NoLimit })
		eventually(t, "nothing is left", func() bool {
			dirs, err := os.ReadDir(filepath.Join(d.dir, "run", "slices"))
			return err == nil && len(dirs) == 0
		})
		d.kill()
	}
}

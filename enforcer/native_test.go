// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/native"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// inV2 runs the calling test again, alone, where only cgroups of version 2 are mounted. It is true in that run.
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
	must.Output(cmd.CombinedOutput())(t)
	return false
}

type fakeBackend struct {
	mu     sync.Mutex
	limits map[[2]string]uint64 // by cgroup and device
	err    error                // of Limit
	forget bool                 // Limit does nothing
	weak   string               // a device that it has no limits for
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
	if device == f.weak {
		return errors.New("no limits there")
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

func newNativeHost(t *testing.T, b native.Backend) *host {
	h := newHost(t, &fakeTruth{})
	h.with(func(o *enforcer.Options) { o.Backend = b })
	return h
}

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
		lead(h.t, b.link, reply)
	}
	return b, reply, err
}

// newNativeBox is such a host with a container of 4 GiB on the first device, as inV2 runs the calling test; nil in other runs.
func newNativeBox(t *testing.T, b native.Backend) (*host, *box) {
	t.Helper()
	if !inV2(t) {
		return nil, nil
	}
	h := newNativeHost(t, b)
	c, _, err := h.newBox("c", on(gpu0, 4*gib))
	must.Do(t, err)
	return h, c
}

func TestTheDriverHoldsAContainersCgroupToItsQuotas(t *testing.T) {
	if !inV2(t) {
		return
	}
	f := &fakeBackend{}
	h := newNativeHost(t, f)
	b, reply, err := h.newBox("c", on(gpu0, 4*gib), api.Quota{Device: api.AllDevices, Percent: 100})
	must.Do(t, err)
	f.are(t, "registered", b.cgroup, 4*gib, 80*gib)
	for _, d := range reply.Slice.Devices {
		expect.Equal(t, d.Enforcement, api.Native, d)
	}
	devices, err := h.Devices(context.Background())
	if err != nil || len(devices) != 2 || devices[0].Enforcement != api.Native || devices[0].EnforcementReason == "" {
		t.Errorf("%+v, %v", devices, err)
	}
	expect.Equal(t, must.Get(h.Info(context.Background()))(t).Enforcement, api.Auto, "enforcement")

	must.Get(h.Change(context.Background(), "c", api.ChangeRequest{Quotas: []api.Quota{on(gpu0, 6*gib)}}))(t)
	f.are(t, "with another quota", b.cgroup, 6*gib, 80*gib)

	// The limit is set again at a restart, in case the driver lost it.
	h.stop()
	_ = f.Unlimit(b.cgroup, gpu0)
	h.start()
	f.are(t, "after a restart", b.cgroup, 6*gib, 80*gib)

	must.Get(h.Release(context.Background(), "c", 0, true))(t)
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

func TestTheDriverHoldsAMemberToItsOwnQuotaOrToThePools(t *testing.T) {
	if !inV2(t) {
		return
	}
	f := &fakeBackend{}
	h := newNativeHost(t, f)
	pool := func(bytes uint64) api.PoolRequest { return api.PoolRequest{Quotas: []api.Quota{on(gpu0, bytes)}} }
	must.Get(h.CreatePool(context.Background(), "p", pool(10*gib)))(t)
	member := func(id string, quotas ...api.Quota) string {
		cgroup := newCgroup(t)
		p := start(t, "", cgroup)
		must.Get(h.Register(context.Background(), api.RegisterRequest{ID: id, PID: p.pid(), Pools: api.PoolNames{"p"}, Quotas: quotas}))(t)
		return cgroup
	}
	elastic, own := member("e"), member("o", on(gpu0, 2*gib))
	f.are(t, "without a quota of its own", elastic, 10*gib, driver.NoLimit)
	f.are(t, "with one", own, 2*gib, driver.NoLimit)
	must.Get(h.Release(context.Background(), "o", 0, true))(t)
	must.Get(h.SetPool(context.Background(), "p", pool(12*gib)))(t)
	f.are(t, "of a larger pool", elastic, 12*gib, driver.NoLimit)
	f.are(t, "released", own, 0, driver.NoLimit)
	h.restart()
	f.are(t, "after a restart", elastic, 12*gib, driver.NoLimit)
	f.are(t, "released, after a restart", own, 0, driver.NoLimit)
}

func TestAnEnforcerThatEnforcesByTheInterceptorTakesTheDriversLimitsAway(t *testing.T) {
	f := &fakeBackend{}
	h, b := newNativeBox(t, f)
	if h == nil {
		return
	}
	f.are(t, "native", b.cgroup, 4*gib, driver.NoLimit)
	h.with(func(o *enforcer.Options) { o.Enforcement = api.Intercept })
	f.are(t, "intercept", b.cgroup, driver.NoLimit, driver.NoLimit)
	if s := h.see("c"); s.Devices[0].Enforcement != api.Intercept || s.Devices[0].Limit != 4*gib {
		t.Errorf("%+v", s)
	}
	h.with(func(o *enforcer.Options) { o.Enforcement = api.Native })
	f.are(t, "native again", b.cgroup, 4*gib, driver.NoLimit)
}

// Also a limit that the driver got only after the release.
func TestTheDriversLimitOfAReleasedContainerIsTakenAwayToo(t *testing.T) {
	if !inV2(t) {
		return
	}
	f := &fakeBackend{}
	h := newNativeHost(t, f)
	as := func(enforcement api.Enforcement) {
		h.with(func(o *enforcer.Options) { o.Enforcement = enforcement })
	}
	as(api.Intercept)
	b, _, err := h.newBox("c", on(gpu0, 4*gib))
	must.Do(t, err)
	must.Get(h.Release(context.Background(), "c", 0, true))(t)
	as(api.Native)
	f.are(t, "native", b.cgroup, 0, driver.NoLimit)
	as(api.Intercept)
	f.are(t, "intercept", b.cgroup, driver.NoLimit, driver.NoLimit)
}

func TestSessionsAndRecordModeHaveNoNativeLimit(t *testing.T) {
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
	must.Len(t, f.limits, 0, "the driver's limits")
}

func TestGrantFailsIfTheDriverRefusesTheLimit(t *testing.T) {
	if !inV2(t) {
		return
	}
	f := &fakeBackend{err: errors.New("Insufficient Permissions")}
	h := newNativeHost(t, f)
	_, _, err := h.newBox("c", on(gpu0, 4*gib))
	if err == nil || !strings.Contains(err.Error(), "Insufficient Permissions") || !strings.Contains(err.Error(), gpu0) {
		t.Fatalf("registered: %v", err)
	}
	must.Len(t, must.Get(h.Slices(context.Background()))(t), 0)
	must.Len(t, must.Get(os.ReadDir(filepath.Join(h.options.RunDir, "slices")))(t), 0, "left")
	f.fail(nil)
	b, _, err := h.newBox("c2", on(gpu0, 4*gib))
	must.Do(t, err)
	// The slice is in use, so it keeps its ledger, and an event reports the failure.
	f.fail(errors.New("Unknown Error"))
	s := must.Get(h.Change(context.Background(), "c2", api.ChangeRequest{Quotas: []api.Quota{on(gpu0, 2*gib)}}))(t)
	expect.Equal(t, s.Devices[0].Limit, 2*gib, "limit")
	f.are(t, "not changed", b.cgroup, 4*gib, driver.NoLimit)
	events, err := h.Events(context.Background(), "", 0, false)
	if err != nil || !slices.ContainsFunc(events, func(e api.Event) bool {
		return e.Kind == api.EventUnlimited && e.Slice == "c2" && e.Device == gpu0 && strings.Contains(e.Cause, "Unknown Error")
	}) {
		t.Errorf("%+v, %v", events, err)
	}
}

// The driver cannot limit a cgroup without the kernel's controller. The interceptor does, unless the operator forbids it.
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
	h.start()
	if _, _, err := h.newBox("d", on(gpu0, 4*gib)); err == nil || !strings.Contains(err.Error(), driver.ErrNoController.Error()) {
		t.Errorf("%v", err)
	}
}

func (f *fakeBackend) holds(t *testing.T, when, cgroup string, want uint64) {
	t.Helper()
	eventually(t, when, func() bool {
		got, _ := f.Limited(cgroup, gpu0)
		return got == want
	})
}

func expiringLease(t *testing.T, f *fakeBackend) (h *host, c *clock, cgroup string) {
	t.Helper()
	c = &clock{at: time.Hour}
	h = newNativeHost(t, f)
	h.with(func(o *enforcer.Options) { o.Clock, o.Grace = c.now, grace })
	cgroup = newCgroup(t)
	p := h.lease("s", cgroup, time.Hour)
	must.Do(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	return h, c, cgroup
}

func TestAnExpiredSliceGetsNothingFromTheDriver(t *testing.T) {
	if !inV2(t) {
		return
	}
	f := &fakeBackend{}
	h, c, cgroup := expiringLease(t, f)
	f.are(t, "registered", cgroup, gib, driver.NoLimit)
	c.pass(time.Hour)
	f.holds(t, "it gets nothing more", cgroup, 0)
	h.restart()
	f.are(t, "after a restart", cgroup, 0, driver.NoLimit)
	c.pass(grace)
	f.holds(t, "its limit is taken away", cgroup, driver.NoLimit)
}

func TestAFrozenSliceGetsNothingFromTheDriverUntilItIsThawed(t *testing.T) {
	if !inV2(t) {
		return
	}
	f, truth := &fakeBackend{}, &fakeTruth{}
	h := newHost(t, truth)
	h.with(func(o *enforcer.Options) { o.Backend, o.Policy = f, enforcer.Policy{Bypass: api.Refuse} })
	b, _, err := h.newBox("c", on(gpu0, 4*gib))
	must.Do(t, err)
	truth.set(gpu0, b.init.pid(), 3*gib)
	f.holds(t, "it is frozen", b.cgroup, 0)
	truth.set(gpu0, b.init.pid(), 0)
	f.holds(t, "it is thawed", b.cgroup, 4*gib)
}

func TestHungDriverDelaysNoRequest(t *testing.T) {
	f := &fakeBackend{}
	h, b := newNativeBox(t, f)
	if h == nil {
		return
	}
	hang := make(chan struct{})
	f.mu.Lock()
	f.hang = hang
	f.mu.Unlock()
	expect.NoError(t, must.Err(h.Change(context.Background(), "c", api.ChangeRequest{Quotas: []api.Quota{on(gpu0, 2*gib)}})))
	if _, _, err := h.newBox("d", on(gpu0, 4*gib)); err == nil {
		t.Error("a slice was given that the driver does not hold to its quota")
	}
	f.mu.Lock()
	f.hang = nil
	f.mu.Unlock()
	close(hang)
	eventually(t, "the last request takes effect", func() bool {
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
	for why, b := range map[string]native.Backend{
		"there is no NVML":           nil,
		"R615":                       oldDriver{},
		"to 18446744073709551615":    &fakeBackend{forget: true},
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
		sum := sha256.Sum256([]byte(h.options.StateDir)) // other enforcers of the host have other names
		left, err := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/gpuslice-probe-%x", sum[:6]))
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
		return // only version 2, which the tests above cover
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

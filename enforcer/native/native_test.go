// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

const (
	mib        = 1 << 20
	gpu0, gpu1 = "GPU-0", "GPU-1"
)

// fake is a driver with limits.
type fake struct {
	mu     sync.Mutex
	limits map[[2]string]uint64 // by cgroup and device
	errs   map[string]error     // returned by Limit, by device
	hangs  map[string]chan struct{}
	set    int // calls of Limit, including failed ones
}

func (f *fake) Limit(cgroup, device string, bytes uint64) error {
	f.mu.Lock()
	hang := f.hangs[device]
	f.mu.Unlock()
	if hang != nil {
		<-hang
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set++
	if err := f.errs[device]; err != nil {
		return err
	}
	if f.limits == nil {
		f.limits = make(map[[2]string]uint64)
	}
	f.limits[[2]string{cgroup, device}] = bytes
	return nil
}

func (f *fake) Limited(cgroup, device string) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if bytes, ok := f.limits[[2]string{cgroup, device}]; ok {
		return bytes, nil
	}
	return driver.NoLimit, nil
}

func (f *fake) Unlimit(cgroup, device string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.limits, [2]string{cgroup, device})
	return nil
}

// fail makes Limit fail on a device; nil makes it succeed.
func (f *fake) fail(device string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = map[string]error{device: err}
}

// hang makes Limit hang on a device until release is called.
func (f *fake) hang(device string) (release func()) {
	hang := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hangs = map[string]chan struct{}{device: hang}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.hangs = nil
		close(hang)
	}
}

func (f *fake) attempts() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.set
}

// bench is a Keeper of two devices, with directories as cgroups.
type bench struct {
	*Keeper
	*fake
	t     *testing.T
	mount string

	mu   sync.Mutex
	told []string
}

func newBench(t *testing.T, want api.Enforcement) *bench {
	t.Helper()
	b := &bench{fake: &fake{}, t: t, mount: t.TempDir()}
	var err error
	b.Keeper, err = Open([]Device{{UUID: gpu0, Total: 80 * mib}, {UUID: gpu1, Total: 80 * mib}}, Options{
		Backend: b.fake, Want: want, Mount: b.mount, Trial: "trial", Interval: 10 * time.Millisecond, Recheck: 50 * time.Millisecond,
		Log: slog.New(slog.DiscardHandler),
		Tell: func(_ cgroup.Path, device string, err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.told = append(b.told, device+": "+err.Error())
		},
	})
	must.Do(t, err)
	t.Cleanup(b.Close)
	return b
}

func (b *bench) cgroup(name string) cgroup.Path {
	b.t.Helper()
	p := cgroup.Path{Mount: b.mount, Rel: "/" + name, V2: true}
	if err := os.Mkdir(p.Dir(), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		b.t.Fatal(err)
	}
	info := must.Get(os.Stat(p.Dir()))(b.t)
	p.Inode = info.Sys().(*syscall.Stat_t).Ino
	return p
}

func (b *bench) reach(c ...cgroup.Path) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	return b.Reach(ctx, c...)
}

// reached fails the test unless the limits are set.
func (b *bench) reached(c ...cgroup.Path) {
	b.t.Helper()
	if device, err := b.reach(c...); err != nil {
		b.t.Fatalf("%s: %v", device, err)
	}
}

// are checks the driver's limits of a cgroup; driver.NoLimit means none.
func (b *bench) are(when string, c cgroup.Path, want0, want1 uint64) {
	b.t.Helper()
	got0, _ := b.Limited(c.Dir(), gpu0)
	if got1, _ := b.Limited(c.Dir(), gpu1); got0 != want0 || got1 != want1 {
		b.t.Errorf("%s: the driver's limits are %d and %d, want %d and %d", when, got0, got1, want0, want1)
	}
}

func (b *bench) eventually(what string, so func() bool) {
	b.t.Helper()
	await.That(b.t, what, so)
}

func (b *bench) events() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.told...)
}

func TestLimitsAreSetInTheDriver(t *testing.T) {
	b := newBench(t, api.Auto)
	c := b.cgroup("c")
	b.reached(c) // no limit is wanted
	expect.Equal(t, b.By(c, gpu0), api.Intercept, "what enforces without a limit")
	b.Want(c, map[string]uint64{gpu0: 4 * mib})
	b.reached(c)
	b.are("one device", c, 4*mib, driver.NoLimit)
	expect.True(t, b.By(c, gpu0) == api.Native && b.By(c, gpu1) == api.Intercept && b.By(c, "GPU-2") == api.Intercept, "the enforcement of each device")
	b.Want(c, map[string]uint64{gpu0: 6 * mib, gpu1: 0})
	b.reached(c)
	b.are("changed", c, 6*mib, 0)
	b.Want(c, map[string]uint64{gpu1: 2 * mib})
	b.reached(c)
	b.are("removed from the first device", c, driver.NoLimit, 2*mib)
	set := b.attempts()
	b.Want(c, map[string]uint64{gpu1: 2 * mib})
	b.reached(c)
	expect.Equal(t, b.attempts(), set, "sets of a limit that the driver has")
	b.Drop(context.Background(), c)
	b.are("dropped", c, driver.NoLimit, driver.NoLimit)
	if len(b.fake.limits) != 0 || len(b.events()) != 0 {
		t.Errorf("left: %v, told: %v", b.fake.limits, b.events())
	}
}

func TestLimitsOfAnEarlierEnforcerAreAdoptedOrRemoved(t *testing.T) {
	b := newBench(t, api.Auto)
	c := b.cgroup("c")
	for _, device := range []string{gpu0, gpu1} {
		must.Do(t, b.Limit(c.Dir(), device, mib))
	}
	b.Inherit(c)
	time.Sleep(100 * time.Millisecond) // some rounds of the loop
	b.are("before the first Want", c, mib, mib)
	b.Want(c, map[string]uint64{gpu1: 3 * mib})
	b.reached(c)
	b.are("wanted on one", c, driver.NoLimit, 3*mib)
}

func TestFailedLimitIsLoggedOnceAndRetried(t *testing.T) {
	b := newBench(t, api.Auto)
	c := b.cgroup("c")
	b.fail(gpu1, errors.New("Unknown Error"))
	b.Want(c, map[string]uint64{gpu0: mib, gpu1: mib})
	if device, err := b.reach(c); device != gpu1 || err == nil {
		t.Fatalf("%s: %v", device, err)
	}
	expect.True(t, b.By(c, gpu0) == api.Native && b.By(c, gpu1) == api.Intercept, "the enforcement of each device")
	set := b.attempts()
	b.eventually("the failed attempt is repeated", func() bool { return b.attempts() >= set+3 })
	if told := b.events(); len(told) != 1 || told[0] != gpu1+": Unknown Error" {
		t.Errorf("told %q", told)
	}
	b.fail(gpu1, nil)
	b.eventually("the limit is native", func() bool { return b.By(c, gpu1) == api.Native })
	b.are("tried again", c, mib, mib)
	b.fail(gpu1, errors.New("Unknown Error"))
	b.Want(c, map[string]uint64{gpu0: mib, gpu1: 2 * mib})
	b.eventually("the next failure is reported", func() bool { return len(b.events()) == 2 })
}

func TestALimitThatTheDriverLostIsSetAnew(t *testing.T) {
	b := newBench(t, api.Auto)
	c := b.cgroup("c")
	b.Want(c, map[string]uint64{gpu0: mib, gpu1: driver.NoLimit - 1})
	b.reached(c)
	must.Do(t, b.Unlimit(c.Dir(), gpu0))
	b.eventually("the driver has the limit again", func() bool { got, _ := b.Limited(c.Dir(), gpu0); return got == mib })
	b.eventually("that is known", func() bool { return b.By(c, gpu0) == api.Native })
	if told := b.events(); len(told) != 1 || !strings.Contains(told[0], "the driver lost the limit") {
		t.Errorf("told %q", told)
	}
}

// A hung device delays no other device. The last wanted limit is in force once the driver answers.
func TestADeviceThatHangsDelaysNoOther(t *testing.T) { synctest.Test(t, aDeviceThatHangsDelaysNoOther) }

func aDeviceThatHangsDelaysNoOther(t *testing.T) {
	b := newBench(t, api.Auto)
	c, other := b.cgroup("c"), b.cgroup("other")
	release := b.hang(gpu0)
	b.Want(c, map[string]uint64{gpu0: mib, gpu1: mib})
	synctest.Wait() // until it hangs
	begin := time.Now()
	b.Want(other, map[string]uint64{gpu1: mib})
	b.reached(other)
	if took := time.Since(begin); took != 0 { // by the test's clock, which stands still until all goroutines wait
		t.Errorf("another device's limit took %v", took)
	}
	if device, err := b.reach(c, other); device != gpu0 || !errors.Is(err, driver.ErrHangs) {
		t.Errorf("%s: %v", device, err)
	}
	b.Want(c, map[string]uint64{gpu0: 2 * mib, gpu1: mib})
	b.Want(other, map[string]uint64{gpu0: 3 * mib, gpu1: mib})
	release()
	b.eventually("both are as wanted", func() bool {
		_, err := b.reach(c, other)
		return err == nil
	})
	b.are("what was wanted last", c, 2*mib, mib)
	b.are("the other one", other, 3*mib, mib)
}

func TestACgroupWithoutTheControllerIsNotLimitedUnlessThatIsRequired(t *testing.T) {
	for _, want := range []api.Enforcement{api.Auto, api.Native} {
		b := newBench(t, want)
		c := b.cgroup("c")
		must.Do(t, os.WriteFile(filepath.Join(b.mount, "cgroup.subtree_control"), []byte("dmem"), 0o644))
		b.fail(gpu0, driver.ErrNoController)
		b.Want(c, map[string]uint64{gpu0: mib})
		if _, err := b.reach(c); (err == nil) != (want == api.Auto) {
			t.Errorf("%s: %v", want, err)
		}
		if b.By(c, gpu0) != api.Intercept || len(b.events()) != 1 {
			t.Errorf("%s: %s enforces, told %q", want, b.By(c, gpu0), b.events())
		}
		b.Drop(context.Background(), c)
		if want == api.Auto && len(b.fake.limits) != 0 {
			t.Errorf("left: %v", b.fake.limits)
		}
	}
}

func TestLimitOfARemovedCgroupIsDropped(t *testing.T) {
	b := newBench(t, api.Auto)
	c := b.cgroup("c")
	b.fail(gpu0, errors.New("Unknown Error"))
	b.Want(c, map[string]uint64{gpu0: mib, gpu1: mib})
	_, _ = b.reach(c)
	must.Do(t, os.Remove(c.Dir()))
	b.eventually("the limit is dropped", func() bool {
		b.Keeper.mu.Lock()
		defer b.Keeper.mu.Unlock()
		return len(b.Keeper.limits) == 0
	})
	b.Want(c, map[string]uint64{gpu0: mib})
	b.reached(c)
}

func TestManyWantAtTheSameTime(t *testing.T) {
	b := newBench(t, api.Auto)
	var all sync.WaitGroup
	for i := range 8 {
		c := b.cgroup(string(rune('a' + i)))
		all.Go(func() {
			for n := range uint64(50) {
				b.Want(c, map[string]uint64{gpu0: n, gpu1: n + 1})
				if n%10 == 9 {
					expect.NoError(t, must.Err(b.reach(c)))
					b.are("reached", c, n, n+1)
				}
			}
		})
	}
	all.Wait()
}

func TestEachCgroupAboveHandsTheControllerDown(t *testing.T) {
	mount := t.TempDir()
	for dir, has := range map[string]string{"": "cpu dmem\n", "engine": "memory\n", "engine/c": "", "engine/c/below": ""} {
		must.Do(t, os.MkdirAll(filepath.Join(mount, dir), 0o755))
		must.Do(t, os.WriteFile(filepath.Join(mount, dir, "cgroup.subtree_control"), []byte(has), 0o644))
	}
	must.Do(t, handDown(mount, filepath.Join(mount, "engine/c/below")))
	for dir, want := range map[string]string{"": "cpu dmem\n", "engine": "+dmem", "engine/c": "+dmem", "engine/c/below": ""} {
		expect.Equal(t, string(must.Get(os.ReadFile(filepath.Join(mount, dir, "cgroup.subtree_control")))(t)), want, dir, "was told")
	}
}

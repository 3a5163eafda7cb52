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
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

func TestChargesAreBoundedByTheQuotaAndReleasedAtExit(t *testing.T) {
	h := newHost(t, nil)
	p, reply := h.session("s", on(api.AllDevices, 4*gib))
	must.Equal(t, p.must("attach"), 1, "lane")
	p.must("device %s %d", hex0, 80*gib)
	p.must("charge 0 %d", 3*gib)
	p.expect("refused", "charge 0 %d", 2*gib)
	p.must("charge 0 %d", gib)
	d := h.see("s").Devices[0]
	must.True(t, d.Used == 4*gib && d.Limit == 4*gib && d.Device == gpu0 && d.Allocations == 2 && d.Refusals == 1, "got", d)
	p.kill()
	h.wantGone("s")
	eventually(t, "so is its directory", func() bool {
		_, err := os.Stat(reply.Dir)
		return os.IsNotExist(err)
	})
}

func TestQuotaIsSharedByAllProcessesOfAContainer(t *testing.T) {
	h := newHost(t, nil)
	init, more, _ := h.container(api.RegisterRequest{ID: "c", Quotas: []api.Quota{on(gpu0, 4*gib)}})
	other := more()
	for _, p := range []*proc{init, other} {
		p.uses()
		p.must("charge 0 %d", 2*gib)
	}
	init.expect("refused", "charge 0 1")
	init.expect("status 5", "device %s %d", hex1, 80*gib)
	before := h.see("c").Devices[0]
	other.kill()
	eventually(t, "the dead one's bytes are back", func() bool { return h.see("c").Devices[0].Used == 2*gib })
	d := h.see("c").Devices[0]
	if d.Allocations != 2 || d.Refusals != 1 || d.Recovered != 2*gib || before.Allocations != 2 {
		t.Fatalf("an exit lowered the counters to %+v, from %+v", d, before)
	}
	init.must("charge 0 %d", 2*gib)

	stranger := start(t, filepath.Join(h.options.RunDir, "to-c"), "")
	stranger.expect("status 1", "attach")

	init.kill()
	h.wantGone("c")
}

func TestCountersOnlyGoUp(t *testing.T) {
	h := newHost(t, nil)
	init, more, _ := h.container(api.RegisterRequest{ID: "c", Quotas: []api.Quota{on(gpu0, 4*mib)}})
	init.must("attach") // keeps the page mapped while the others come and go
	init.must("device %s %d", hex0, 80*gib)
	for n := uint64(1); n <= 5; n++ {
		p := more()
		p.must("attach")
		p.must("charge 0 %d", 3*mib)
		p.expect("refused", "charge 0 %d", 2*mib)
		check := func(when string) {
			t.Helper()
			if d := h.see("c").Devices[0]; d.Allocations != n || d.Refusals != n {
				t.Fatalf("%s process %d: %+v", when, n, d)
			}
		}
		check("beside")
		p.kill()
		eventually(t, "its bytes are back", func() bool { return h.see("c").Devices[0].Used == 0 })
		check("after")
		if n == 3 {
			h.restart()
			check("after a restart after")
		}
	}
}

func TestASliceSurvivesItsInitWhileItsCgroupIsPopulated(t *testing.T) {
	h := newHost(t, nil)
	init, more, _ := h.container(api.RegisterRequest{ID: "c", Quotas: []api.Quota{on(gpu0, gib)}})
	other := more()
	other.uses()
	init.kill()
	expect.ErrorIs(t, must.Err(h.Release(context.Background(), "c", 0, false)), api.ErrRunning, "release of a slice with a process alive")
	h.restart()
	other.must("charge 0 %d", gib)
	other.expect("refused", "charge 0 1")
	must.Equal(t, h.see("c").Devices[0].Used, gib, "used")
	other.kill()
	h.wantGone("c")
}

func TestRestartFindsSlicesAndSettlesExitedProcesses(t *testing.T) {
	h := newHost(t, nil)
	a, more, reply := h.container(api.RegisterRequest{ID: "c", Quotas: []api.Quota{on(api.AllDevices, 4*gib)}})
	b := more()
	for _, p := range []*proc{a, b} {
		p.uses()
		p.must("charge 0 %d", gib)
	}
	h.stop()
	a.must("charge 0 %d", gib) // needs no enforcer
	b.kill()
	h.start()
	s := h.see("c")
	if s.Devices[0].Used != 2*gib || s.ProcessCount != 1 || s.Generation != reply.Slice.Generation || s.State != api.Active {
		t.Fatalf("%+v", s)
	}
	c := more()
	c.must("attach")
	c.must("charge 0 %d", 2*gib)
	a.expect("refused", "charge 0 1")
}

func TestASessionOfDeadProcessesIsDroppedByARestart(t *testing.T) {
	h := newHost(t, nil)
	p, reply := h.session("s", on(gpu0, gib))
	h.stop()
	p.kill()
	h.start()
	if all, _ := h.Slices(context.Background()); len(all) != 0 {
		t.Fatalf("%+v", all)
	}
	if _, err := os.Stat(reply.Dir); !os.IsNotExist(err) {
		t.Fatalf("its directory is still there: %v", err)
	}
}

// A session takes its processes out of their slice, so they must belong to the user that starts it.
func TestSessionBeginsOnlyWithTheCallersProcess(t *testing.T) {
	defer enforcer.PretendOwned()()
	h := newHost(t, nil)
	h.stop()
	child, stranger := start(t, "", ""), os.Getppid()
	type caller struct {
		session.Asker
		known bool
	}
	var asks caller
	h.options.Caller = func(context.Context) (session.Asker, bool) { return asks.Asker, asks.known }
	h.start()
	me := uint32(os.Geteuid())
	before := asker(os.Getpid(), me) // had this pid before this process
	before.Start--
	for name, c := range map[string]struct {
		asks caller
		pid  int
		uid  uint32
		says string
	}{
		"itself":           {caller{asker(os.Getpid(), me), true}, os.Getpid(), me, ""},
		"a child":          {caller{asker(os.Getpid(), me), true}, child.pid(), me, ""},
		"a parent":         {caller{asker(os.Getpid(), me), true}, stranger, me, "nor a descendant"},
		"another's":        {caller{asker(child.pid(), me), true}, os.Getpid(), me, "nor a descendant"},
		"unknown process":  {caller{}, os.Getpid(), me, "does not report"},
		"another's uid":    {caller{asker(os.Getpid(), 4711), true}, child.pid(), 4712, "of uid 4712"},
		"one with the pid": {caller{before, true}, child.pid(), me, "the calling process: process"},
		"one unseen":       {caller{session.Asker{UID: me}, true}, child.pid(), me, "not in the enforcer's pid namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			asks = c.asks
			_, err := h.Register(context.Background(), api.RegisterRequest{ID: "s", Session: true, PID: c.pid, UID: c.uid, Quotas: []api.Quota{on(gpu0, gib)}})
			if c.says == "" {
				if err == nil {
					_, err = h.Release(context.Background(), "s", 0, true)
				}
				must.Do(t, err)
				return
			}
			expect.ErrorSays(t, err, api.ErrBadRequest, c.says)
		})
	}
	if left, _ := os.ReadDir(filepath.Join(h.options.RunDir, "slices")); len(left) != 0 {
		t.Fatalf("something is left: %v", left)
	}
}

// The process may exit, and its pid be reused, while the enforcer reads /proc.
func TestASessionDoesNotBeginWithAProcessThatExitsMeanwhile(t *testing.T) {
	defer enforcer.PretendOwned()()
	h := newHost(t, nil)
	h.stop()
	child := start(t, "", "")
	asked := 0
	h.options.Caller = func(context.Context) (session.Asker, bool) {
		if asked++; asked == 3 { // the enforcer has opened the process
			_ = child.cmd.Process.Kill()
			expect.NoError(t, unix.Waitid(unix.P_PID, child.pid(), nil, unix.WEXITED|unix.WNOWAIT, nil))
		}
		return asker(os.Getpid(), uint32(os.Geteuid())), true
	}
	h.start()
	_, err := h.Register(context.Background(), api.RegisterRequest{ID: "s", Session: true, PID: child.pid(), UID: uint32(os.Geteuid()), Quotas: []api.Quota{on(gpu0, gib)}})
	if !errors.Is(err, api.ErrBadRequest) || !strings.HasSuffix(err.Error(), "slice s: "+process.ErrDead.Error()) {
		t.Errorf("the caller was looked up %d times: %v", asked, err)
	}
}

func TestHostUsersCannotConnectToAContainersSocket(t *testing.T) {
	dir := newCgroup(t)
	h := newHost(t, nil)
	init := start(t, "", dir)
	reply := must.Get(h.Register(context.Background(), api.RegisterRequest{ID: "c", PID: init.pid(), Quotas: []api.Quota{on(gpu0, gib)}}))(t)
	if err := os.Chmod(filepath.Dir(h.options.RunDir), 0o755); err != nil { // the test's own directory is private
		t.Fatal(err)
	}
	for _, path := range []string{reply.Dir, filepath.Join(reply.Dir, "bind", api.AttachSocketName)} {
		cmd := exec.Command("stat", path+"/.")
		if path != reply.Dir {
			cmd = exec.Command("stat", path)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		expect.Refused(cmd.CombinedOutput())(t, "ermission denied", path)
	}
}

func TestRecordModeRefusesNothing(t *testing.T) {
	whole := api.Quota{Device: api.AllDevices, Percent: 100}
	for what, row := range map[string]struct {
		quotas, shown []api.Quota
	}{
		"with a quota on one device": {[]api.Quota{on(gpu0, gib)}, []api.Quota{on(gpu0, gib), whole}},
		"without a quota":            {nil, []api.Quota{whole}},
	} {
		t.Run(what, func(t *testing.T) {
			h := newHost(t, nil)
			p, _ := h.sessionOf(api.RegisterRequest{ID: "s", Mode: api.Record, Quotas: row.quotas})
			p.uses()
			p.must("device %s %d", hex1, 80*gib)
			p.must("charge 0 %d", 70*gib)
			p.must("charge 1 %d", 80*gib)
			s := h.see("s")
			if d := s.Devices; len(d) != 2 || d[0].Used != 70*gib || d[0].Limit != 0 || d[1].Used != 80*gib || d[1].Limit != 0 {
				t.Errorf("%+v", d)
			}
			expect.EqualSlices(t, s.Quotas, row.shown)
		})
	}
}

func TestAWrongRequestIsRefusedWithItsReason(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	for name, c := range map[string]struct {
		quota api.Quota
		pid   int
		code  api.Code
		says  string
	}{
		"unknown index":  {on("7", gib), os.Getpid(), api.CodeNoDevice, "no device 7"},
		"unknown uuid":   {on("GPU-ffffffff-0000-0000-0000-0000000000a0", gib), os.Getpid(), api.CodeNoDevice, "nvidia-smi"},
		"no uuid at all": {on("gpu zero", gib), os.Getpid(), api.CodeBadRequest, "UUID"},
		"nothing":        {on(gpu0, 0), os.Getpid(), api.CodeBadRequest, "exactly one"},
		"dead process":   {on(gpu0, gib), 1 << 22, api.CodeBadRequest, "has exited"},
		"share of none":  {api.Quota{Device: "7", Percent: 50}, os.Getpid(), api.CodeNoDevice, "NVML shows 2 devices"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.Register(context.Background(), api.RegisterRequest{ID: "s", Session: true, PID: c.pid, Quotas: []api.Quota{c.quota}})
			var refusal *api.Error
			must.True(t, errors.As(err, &refusal) && refusal.Code == c.code && strings.Contains(err.Error(), c.says), "got", err)
		})
	}
	_, err := h.Register(context.Background(), api.RegisterRequest{ID: "s", Session: true, PID: os.Getpid(), Quotas: []api.Quota{on("0", gib), on(gpu0, gib)}})
	must.True(t, errors.Is(err, api.ErrBadRequest), "an index and the UUID of one device:", err)
	if left, _ := os.ReadDir(filepath.Join(h.options.RunDir, "slices")); len(left) != 0 {
		t.Fatalf("something is left behind: %v", left)
	}
}

func TestAContainerWithoutACgroupOfItsOwnIsRefused(t *testing.T) {
	needs.Root(t)
	h := newHost(t, nil)
	_, err := h.Register(context.Background(), api.RegisterRequest{ID: "c", PID: os.Getpid(), Quotas: []api.Quota{on(gpu0, gib)}})
	expect.ErrorIs(t, err, api.ErrBadRequest)
}

func TestPercentIsOfTheDevice(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	_, reply := h.session("s", api.Quota{Device: api.AllDevices, Percent: 50}, on(gpu1, gib))
	if d := reply.Slice.Devices; len(d) != 2 || d[0].Limit != 40*gib || d[1].Limit != gib {
		t.Fatalf("%+v", d)
	}
}

// Without NVML a device's size is unknown until a process reports the device that it uses.
func TestWithoutNVMLPercentIsOfTheReportedDeviceSize(t *testing.T) {
	h := newHost(t, nil)
	p, reply := h.session("s", api.Quota{Device: api.AllDevices, Percent: 50}, api.Quota{Device: gpu1, Percent: 1})
	must.Len(t, reply.Slice.Devices, 0)
	p.must("attach")
	p.expect("status 4", "device %s 0", hex0) // half of nothing
	p.must("device %s %d", hex0, 80*gib)
	p.must("device %s %d", hex1, 10*gib)
	p.must("charge 0 %d", 40*gib)
	p.expect("refused", "charge 0 1")
	p.must("device %s %d", hex0, 800*gib)
	p.expect("refused", "charge 0 1")
	if d := h.see("s").Devices; len(d) != 2 || d[0].Limit != 40*gib || d[1].Limit != 10*gib/100 {
		t.Fatalf("%+v", d)
	}
}

func TestARunDirectoryThatOthersCanWriteIsRefused(t *testing.T) {
	h := newHost(t, nil)
	h.stop()
	must.Do(t, os.Chmod(filepath.Join(h.options.RunDir, "slices"), 0o777))
	expect.ErrorContains(t, must.Err(enforcer.New(h.options)), "chmod")
}

// Directories have random names and their parent cannot be listed, so only a slice's owner finds its directory.
func TestSliceDirectoriesCannotBeListed(t *testing.T) {
	h := newHost(t, nil)
	slices := filepath.Join(h.options.RunDir, "slices")
	h.stop()
	if err := os.Chmod(slices, 0o755); err != nil { // as an earlier version made it
		t.Fatal(err)
	}
	h.start()
	expect.Equal(t, must.Get(os.Stat(slices))(t).Mode().Perm(), 0o711)
	var names []string
	for range 2 {
		_, reply := h.session("s", on(gpu0, gib))
		name, _, _ := strings.Cut(filepath.Base(reply.Dir), "-")
		names = append(names, name)
		must.Get(h.Release(context.Background(), "s", 0, true))(t)
	}
	expect.True(t, names[0] != names[1], "both slices s have a directory", names[0])
}

func TestTwoHundredProcessesAreAccountedExactly(t *testing.T) {
	h := newHost(t, nil)
	init, more, _ := h.container(api.RegisterRequest{ID: "c", Quotas: []api.Quota{on(gpu0, 100*mib)}})
	init.uses()
	const generations, each = 5, 40
	for range generations {
		all := make([]*proc, each)
		for i := range all {
			all[i] = more()
			all[i].tell("attach")
		}
		for _, p := range all {
			must.Get(p.out.ReadString('\n'))(t)
			p.must("charge 0 %d", mib)
		}
		for _, p := range all {
			_ = p.cmd.Process.Signal(syscall.SIGKILL)
		}
		eventually(t, "all came back", func() bool {
			s := h.see("c")
			return s.Devices[0].Used == 0 && s.ProcessCount == 1
		})
		for _, p := range all {
			p.kill()
		}
	}
	d := h.see("c").Devices[0]
	must.True(t, d.Recovered == generations*each*mib && d.Peak == each*mib, "got", d)
}

func TestHonestProcessesAreNeverCalledDamaged(t *testing.T) {
	h := newHost(t, nil)
	h.with(func(o *enforcer.Options) { o.Interval = time.Millisecond }) // checks often
	init, more, _ := h.container(api.RegisterRequest{ID: "c", Quotas: []api.Quota{on(gpu0, 1000*mib)}})
	init.uses()
	init.must("charge 0 %d", mib)
	for range 10 {
		all := make([]*proc, 4)
		for i := range all {
			all[i] = more()
			all[i].must("attach")
			all[i].tell("hammer 0 %d", 100_000*(i+1))
		}
		for i, p := range all {
			if i%2 == 0 {
				p.kill() // in the middle of it
			} else if _, err := p.out.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range all {
			p.kill()
		}
		eventually(t, "all came back", func() bool { return h.see("c").Devices[0].Used == mib })
	}
	must.Equal(t, h.see("c").State, api.Active)
}

func TestAFullSliceRefusesTheNextProcessUntilOneEnds(t *testing.T) {
	h := newHost(t, nil)
	first, more, _ := h.container(api.RegisterRequest{ID: "c", Quotas: []api.Quota{on(gpu0, gib)}})
	h.LeavePlaces("c", 2)
	first.must("attach")
	second, third := more(), more()
	second.must("attach")
	must.Equal(t, third.ask("attach"), fmt.Sprintf("status %d", ledger.StatusFull), "the process after the last slot was answered")
	second.kill()
	eventually(t, "a slot is free again", func() bool { return strings.HasPrefix(third.ask("attach"), "ok") })
}

func TestNamesAndPoolLabelsAreShownAlsoAfterARestart(t *testing.T) {
	h := newHost(t, nil)
	names := api.Names{Name: "main", Pod: "train-0", Namespace: "team", Image: "cuda:13"}
	must.Get(h.CreatePool(context.Background(), "claim", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 4*gib)}, Label: "team/train"}))(t)
	dir := newCgroup(t)
	init := start(t, filepath.Join(h.options.RunDir, "bind"), dir)
	must.Get(h.Register(context.Background(), api.RegisterRequest{ID: "c", Container: "c", PID: init.pid(), Pools: api.PoolNames{"claim"}, Names: names}))(t)
	for _, when := range []string{"at first", "after a restart"} {
		if s := h.see("c"); s.Names != names || !slices.Equal(s.PoolLabels, []string{"team/train"}) {
			t.Errorf("%s: %+v", when, s)
		}
		h.restart()
	}
	init.kill()
	eventually(t, "its end is reported with its names", func() bool {
		events, _ := h.Events(context.Background(), "", 0, false)
		return slices.ContainsFunc(events, func(e api.Event) bool { return e.Kind == api.EventReleased && e.Names == names })
	})
}

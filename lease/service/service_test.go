// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/lease/broker"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// program is this test as a program that each user may start: as a broker it stands in for gpuslice-broker.
var program string

func TestMain(m *testing.M) {
	switch {
	case slices.Contains(os.Args, "--service"):
		standIn(os.Getenv("STAND_IN"))
	case slices.Contains(os.Args, "--keep"):
		keeper()
	}
	dir, err := os.MkdirTemp("/tmp", "gs-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		program = filepath.Join(dir, "broker")
		err = exec.Command("cp", os.Args[0], program).Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func keeper() {
	told, _ := io.ReadAll(os.NewFile(broker.ConfigFD, "config"))
	if string(told) != broker.Stay {
		os.Exit(broker.ExitUsage)
	}
	for {
		_ = unix.Pause()
	}
}

// standIn is a broker without a GPU. It answers who connects to its session with its configuration.
func standIn(how string) {
	config, err := broker.ReadConfig(os.NewFile(broker.ConfigFD, "config"))
	if err != nil {
		os.Exit(broker.ExitUsage)
	}
	ready := os.NewFile(broker.ReadyFD, "ready")
	say := func(r broker.Ready) {
		_ = json.NewEncoder(ready).Encode(r)
		ready.Close()
	}
	if config.Number > 0 { // some do well at first
		how = strings.TrimPrefix(how, "later ")
	}
	switch how {
	case "dies":
		os.Exit(broker.ExitFailed)
	case "mute":
		select {}
	case "refuses":
		say(broker.Ready{Error: "there is no GPU"})
		os.Exit(broker.ExitFailed)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		_ = exec.Command("/bin/sh", "-c", "trap '' TERM; while :; do sleep 100; done").Start()
	}
	l, err := net.FileListener(os.NewFile(broker.SessionFD, "session"))
	if err != nil {
		os.Exit(broker.ExitUsage)
	}
	say(broker.Ready{})
	if how == "lingers" {
		os.Exit(broker.ExitLinger)
	}
	if code, ok := map[string]int{"faults": broker.ExitContext, "loads": broker.ExitLoadTimeout}[how]; ok { // when somebody connects
		_, _ = l.Accept()
		os.Exit(code)
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			os.Exit(broker.ExitUsage)
		}
		_ = json.NewEncoder(conn).Encode(config)
		conn.Close()
	}
}

// fakeEnforcer has slices and no card.
type fakeEnforcer struct {
	mu       sync.Mutex
	slices   map[string]api.Slice
	requests []api.RegisterRequest
	refuse   error // all but devices
	killing  bool  // the process that a slice should begin with, before it is looked at
	last     uint64
}

func (f *fakeEnforcer) Devices(context.Context) ([]api.Device, error) {
	free := []uint64{10 << 30, 70 << 30}
	return []api.Device{
		{UUID: "GPU-a", Index: 0, Name: "A", Total: 80 << 30, Free: &free[0], Context: 500 << 20},
		{UUID: "GPU-b", Index: 1, Name: "B", Total: 80 << 30, Free: &free[1]},
	}, nil
}

func (f *fakeEnforcer) Register(_ context.Context, r api.RegisterRequest) (api.RegisterReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return api.RegisterReply{}, f.refuse
	}
	if f.killing {
		h, err := process.Open(r.PID)
		if err != nil {
			return api.RegisterReply{}, err
		}
		defer h.Close()
		_ = unix.Kill(r.PID, unix.SIGKILL)
		for h.Alive() {
			time.Sleep(time.Millisecond)
		}
		return api.RegisterReply{}, api.Errorf(api.CodeBadRequest, "process %d is dead", r.PID)
	}
	f.last++
	f.requests = append(f.requests, r)
	s := api.Slice{ID: r.ID, Generation: f.last, State: api.Active, PID: r.PID}
	expires(&s, r.TTL)
	f.slices[r.ID] = s
	return api.RegisterReply{Slice: now(s), Dir: "/slice", Library: "/lib.so"}, nil
}

func expires(s *api.Slice, ttl time.Duration) {
	s.Expires = nil
	if ttl > 0 {
		at := time.Now().Add(ttl)
		s.Expires = &at
	}
}

// now is a slice as it is shown.
func now(s api.Slice) api.Slice {
	if s.Expires != nil {
		s.Remaining = max(time.Until(*s.Expires), 0)
	}
	return s
}

func (f *fakeEnforcer) Release(_ context.Context, id string, generation uint64, _ bool) (api.Slice, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.slices[id]
	if !ok || s.Generation != generation {
		return s, api.ErrNotFound
	}
	delete(f.slices, id)
	return s, nil
}

func (f *fakeEnforcer) Renew(_ context.Context, id string, r api.RenewRequest) (api.Slice, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.slices[id]
	if !ok {
		return s, api.ErrNotFound
	}
	expires(&s, *r.TTL)
	f.slices[id] = s
	return now(s), nil
}

func (f *fakeEnforcer) Slice(_ context.Context, id string) (api.Slice, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return api.Slice{}, f.refuse
	}
	if s, ok := f.slices[id]; ok {
		return now(s), nil
	}
	return api.Slice{}, api.ErrNotFound
}

func (f *fakeEnforcer) Slices(context.Context) ([]api.Slice, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return nil, f.refuse
	}
	var all []api.Slice
	for _, s := range f.slices {
		all = append(all, now(s))
	}
	return all, nil
}

func (f *fakeEnforcer) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// bench is a service of a test's own.
type bench struct {
	*Service
	t        *testing.T
	options  Options
	enforcer *fakeEnforcer
	stop     func()
}

func newBench(t *testing.T, how string) *bench {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("root is needed: each broker has a user id of its own")
	}
	t.Setenv("STAND_IN", how)
	dir, err := os.MkdirTemp("/tmp", "gs-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	enforcer := &fakeEnforcer{slices: make(map[string]api.Slice)}
	b := &bench{t: t, enforcer: enforcer, options: Options{
		Enforcer: enforcer, Dir: filepath.Join(dir, "leases"), Broker: program, Cgroup: "gpuslice-test-" + filepath.Base(dir),
		Bounds: Bounds{Memory: 1 << 30, PIDs: 64, CPUs: 2}, FirstUID: 2_000_000_000, LastUID: 2_000_000_999, MaxLeases: 8, MaxClients: 16,
		CodeBytes: 32 << 20, LoadTimeout: time.Second, Log: slog.New(slog.NewTextHandler(logTo{t}, nil)),
	}}
	b.start()
	t.Cleanup(func() {
		for _, l := range b.all() {
			b.end(l, leasepb.Lease_ENDED, reasonDropped)
		}
		b.stop()
		b.nothingIsLeft()
		for _, h := range b.cgroups.roots {
			if err := os.Remove(h.dir); err != nil {
				t.Error(err)
			}
		}
	})
	return b
}

type logTo struct{ t *testing.T }

func (l logTo) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func (b *bench) start() {
	b.t.Helper()
	s, err := New(b.options)
	if err != nil {
		b.t.Fatal(err)
	}
	b.Service = s
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	})
}

const alice, bob = 5001, 5002

func as(uid uint32) Peer { return Peer{UID: uid, Groups: []uint32{uid}} }

func (b *bench) acquire(r *leasepb.AcquireRequest) *leasepb.Lease {
	b.t.Helper()
	l, err := b.Acquire(context.Background(), as(alice), r)
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it is still not so that %s", what)
		}
	}
}

// nothingIsLeft of any lease: no directory, cgroup, process, nor slice.
func (b *bench) nothingIsLeft() {
	b.t.Helper()
	if entries, err := os.ReadDir(b.Dir); err != nil || len(entries) != 0 {
		b.t.Errorf("directories: %v, %v", entries, err)
	}
	if ids := b.cgroups.list(); len(ids) != 0 {
		b.t.Errorf("cgroups: %v", ids)
	}
	if pids := processesOf(b.t, b.FirstUID, b.LastUID, b.Cgroup); len(pids) != 0 {
		b.t.Errorf("processes: %v", pids)
	}
	b.enforcer.mu.Lock()
	defer b.enforcer.mu.Unlock()
	if len(b.enforcer.slices) != 0 {
		b.t.Errorf("slices: %v", b.enforcer.slices)
	}
}

// processesOf are those of brokers in that cgroup.
func processesOf(t *testing.T, first, last uint32, cgroup string) (pids []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid < first || st.Uid > last {
			continue
		}
		in, err := os.ReadFile("/proc/" + e.Name() + "/cgroup")
		status, err2 := os.ReadFile("/proc/" + e.Name() + "/status")
		if err == nil && err2 == nil && strings.Contains(string(in), cgroup) && !strings.Contains(string(status), "\nState:\tZ") {
			pids = append(pids, e.Name())
		}
	}
	return pids
}

func codeOf(err error) leasepb.Code {
	f, ok := err.(*failure)
	if !ok {
		return leasepb.Code_CODE_UNSPECIFIED
	}
	return f.GetCode()
}

func TestALeaseIsABrokerInASliceUntilItIsDropped(t *testing.T) {
	b := newBench(t, "")
	l := b.acquire(&leasepb.AcquireRequest{Vram: 64 << 20, Ttl: durationpb.New(2 * time.Minute)})
	if l.GetState() != leasepb.Lease_ACTIVE || l.GetDevice() != "GPU-b" || l.GetOverhead() != 632<<20 || l.GetUid() != alice || l.GetExpires() == nil {
		t.Errorf("%v", l)
	}
	r := b.enforcer.requests[0]
	if r.ID != l.GetId() || r.For.UID != alice || r.UID < b.FirstUID || r.UID > b.LastUID || r.GID != r.UID || r.TTL != 2*time.Minute ||
		!slices.Equal(r.Quotas, []api.Quota{{Device: "GPU-b", Bytes: 696 << 20}}) || !slices.Equal(r.Visible, []string{"GPU-b"}) || r.Session {
		t.Errorf("%+v", r)
	}
	// The broker has that uid alone, and is in a cgroup of its own with its bounds.
	pid := b.recordOf(l.GetId()).PID
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || !strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t%[1]d\t%[1]d\t%[1]d\nGid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", r.UID)) ||
		!strings.Contains(string(status), "\nGroups:\t \n") {
		t.Errorf("%s, %v", status, err)
	}
	in, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !strings.Contains(string(in), b.Cgroup+"/"+l.GetId()) {
		t.Errorf("%s, %v", in, err)
	}
	// Its sockets and its token are the user's alone.
	dir := b.dirOf(l.GetId())
	for name, mode := range map[string]os.FileMode{tokenName: 0o600, sessionName: 0o600, sharedName: 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != alice || st.Gid != alice || info.Mode().Perm() != mode {
			t.Errorf("%s: %d:%d %v", name, st.Uid, st.Gid, info.Mode())
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o711 || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(dir, recordName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	// It was told what it is for.
	config := b.configOf(l.GetId())
	token, err := os.ReadFile(filepath.Join(dir, tokenName))
	if err != nil || len(config.Token) != 64 || strings.TrimSpace(string(token)) != config.Token {
		t.Errorf("%q and %q, %v", token, config.Token, err)
	}
	if config.VRAM != 64<<20 || config.Clients != 16 || config.Linger != 0 || config.LoadTimeout != time.Second ||
		!slices.Equal(config.Environment, []string{"LD_PRELOAD=/lib.so", "GPUSLICE_DIR=/slice/bind", "CUDA_VISIBLE_DEVICES=GPU-b"}) {
		t.Errorf("%+v", config)
	}
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err != nil || strings.Contains(string(text), config.Token) {
		t.Errorf("%q, %v", text, err)
	}

	ended, err := b.Drop(context.Background(), as(alice), &leasepb.DropRequest{Id: l.GetId()})
	if err != nil || ended.GetState() != leasepb.Lease_ENDED || ended.GetReason() != reasonDropped || ended.GetAddress() != "" {
		t.Errorf("%v, %v", ended, err)
	}
	b.nothingIsLeft()
	if again, err := b.Show(context.Background(), as(alice), l.GetId()); err != nil || again.GetReason() != reasonDropped {
		t.Errorf("%v, %v", again, err)
	}
	if _, err := b.Drop(context.Background(), as(alice), &leasepb.DropRequest{Id: l.GetId()}); codeOf(err) != leasepb.Code_LEASE_EXPIRED || !strings.Contains(err.Error(), reasonDropped) {
		t.Errorf("dropped twice: %v", err)
	}
}

// configOf asks the stand-in.
func (b *bench) configOf(id string) broker.Config {
	b.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(b.dirOf(id), sessionName))
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close()
	config, err := broker.ReadConfig(conn)
	if err != nil {
		b.t.Fatal(err)
	}
	return config
}

func TestADropTakesATenthOfASecond(t *testing.T) {
	for _, how := range []string{"", "stubborn"} {
		b := newBench(t, how)
		l := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20})
		begin := time.Now()
		if _, err := b.Drop(context.Background(), as(alice), &leasepb.DropRequest{Id: l.GetId()}); err != nil {
			t.Fatal(err)
		}
		took := time.Since(begin)
		t.Logf("%q: %v", how, took)
		if took > time.Second { // tenfold
			t.Errorf("%q: it took %v", how, took)
		}
		b.nothingIsLeft()
	}
}

func TestWhatCannotBeAcquiredLeavesNothing(t *testing.T) {
	for how, want := range map[string]string{
		"dies":    "its broker ended before it served",
		"refuses": "there is no GPU",
	} {
		b := newBench(t, how)
		_, err := b.Acquire(context.Background(), as(alice), &leasepb.AcquireRequest{Vram: 1 << 20})
		if codeOf(err) != leasepb.Code_REFUSED || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", how, err)
		}
		b.nothingIsLeft()
	}
	// Who asks gives up.
	b := newBench(t, "mute")
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	go func() {
		_, err := b.Acquire(ctx, as(alice), &leasepb.AcquireRequest{Vram: 1 << 20})
		failed <- err
	}()
	eventually(t, "its slice is there", func() bool { all, _ := b.enforcer.Slices(ctx); return len(all) == 1 })
	if list := b.List(ctx, as(0)); len(list) != 0 {
		t.Errorf("what does not serve yet is listed: %v", list)
	}
	cancel()
	if err := <-failed; codeOf(err) != leasepb.Code_REFUSED {
		t.Error(err)
	}
	b.nothingIsLeft()
	// There is no broker.
	b.Broker = "/no/such/program"
	if _, err := b.Acquire(context.Background(), as(alice), &leasepb.AcquireRequest{Vram: 1 << 20}); codeOf(err) != leasepb.Code_REFUSED {
		t.Error(err)
	}
	b.nothingIsLeft()
}

func TestWhatTheEnforcerRefusesIsSaidWithItsFigures(t *testing.T) {
	b := newBench(t, "")
	for _, c := range []struct {
		err  error
		code leasepb.Code
	}{
		{&api.Error{Code: api.CodeQuotaExceeded, Message: "run-1 has 9GiB", Requested: 3, Limit: 2, Current: 0}, leasepb.Code_REFUSED},
		{api.Errorf(api.CodeForbidden, "uid 5001 may have no session"), leasepb.Code_REFUSED},
		{api.Errorf(api.CodeBadRequest, "a ttl of 3h is not accepted"), leasepb.Code_INVALID_REQUEST},
		{fmt.Errorf("%w: systemctl start gpusliced", api.ErrUnreachable), leasepb.Code_REFUSED},
	} {
		b.enforcer.set(func() { b.enforcer.refuse = c.err })
		_, err := b.Acquire(context.Background(), as(alice), &leasepb.AcquireRequest{Vram: 1 << 20})
		if codeOf(err) != c.code || err.Error() != c.err.Error() {
			t.Errorf("%v: %v", c.err, err)
		}
		if f, ok := err.(*failure); ok && c.code == leasepb.Code_REFUSED && strings.Contains(err.Error(), "run-1") &&
			(f.GetRequested() != 3 || f.GetLimit() != 2 || f.Current == nil) {
			t.Errorf("%v", f)
		}
		b.nothingIsLeft()
	}
	b.enforcer.set(func() { b.enforcer.refuse = nil })
}

func TestAKeeperThatIsKilledAtOnceIsNotTheUsersFault(t *testing.T) {
	b := newBench(t, "")
	b.enforcer.set(func() { b.enforcer.killing = true })
	_, err := b.Acquire(context.Background(), as(alice), &leasepb.AcquireRequest{Vram: 1 << 20})
	if code := codeOf(err); code == leasepb.Code_INVALID_REQUEST || !strings.Contains(err.Error(), "ask again") {
		t.Errorf("%v: %v", code, err)
	}
	b.nothingIsLeft()
}

func TestABadRequestIsOneSentence(t *testing.T) {
	b := newBench(t, "")
	for name, c := range map[string]struct {
		request *leasepb.AcquireRequest
		want    string
	}{
		"no size":          {&leasepb.AcquireRequest{}, "vram is 0 bytes: 1 to"},
		"a huge size":      {&leasepb.AcquireRequest{Vram: 1<<64 - 1}, "are accepted"},
		"with overhead":    {&leasepb.AcquireRequest{Vram: 1<<63 - 1}, "are accepted"},
		"a short ttl":      {&leasepb.AcquireRequest{Vram: 1, Ttl: durationpb.New(time.Millisecond)}, "1s to 876000h are"},
		"no ttl":           {&leasepb.AcquireRequest{Vram: 1, Ttl: durationpb.New(0)}, "1s to 876000h are"},
		"a negative one":   {&leasepb.AcquireRequest{Vram: 1, Ttl: durationpb.New(-time.Hour)}, "1s to 876000h are"},
		"one that is none": {&leasepb.AcquireRequest{Vram: 1, Ttl: &durationpb.Duration{Seconds: 1, Nanos: -1}}, "1s to 876000h are"},
		"a long one":       {&leasepb.AcquireRequest{Vram: 1, Ttl: &durationpb.Duration{Seconds: 1 << 40}}, "1s to 876000h are"},
		"a device":         {&leasepb.AcquireRequest{Vram: 1, Device: "7"}, `no device "7"`},
		"a tenant":         {&leasepb.AcquireRequest{Vram: 1, Tenant: "a b"}, "a b"},
		"a linger":         {&leasepb.AcquireRequest{Vram: 1, Linger: durationpb.New(-1)}, "0 to 876000h are accepted"},
		"clients":          {&leasepb.AcquireRequest{Vram: 1, Clients: 17}, "up to 16 are accepted"},
	} {
		_, err := b.Acquire(context.Background(), as(0), c.request)
		if codeOf(err) != leasepb.Code_INVALID_REQUEST || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(b.enforcer.requests) != 0 {
		t.Error("the enforcer was asked")
	}
}

func TestAUserSeesAndEndsHisOwnLeasesAlone(t *testing.T) {
	b := newBench(t, "")
	ctx := context.Background()
	id := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20, Device: "0"}).GetId()
	for name, err := range map[string]error{
		"show":  second(b.Show(ctx, as(bob), id)),
		"drop":  second(b.Drop(ctx, as(bob), &leasepb.DropRequest{Id: id})),
		"renew": second(b.Renew(ctx, as(bob), &leasepb.RenewRequest{Id: id, Ttl: durationpb.New(time.Hour)})),
		"none":  second(b.Show(ctx, as(bob), "lease-none")),
	} {
		if codeOf(err) != leasepb.Code_NOT_FOUND || strings.ReplaceAll(err.Error(), id, "lease-none") != `you have no lease "lease-none"` {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(b.List(ctx, as(bob))) != 0 || len(b.List(ctx, as(alice))) != 1 || len(b.List(ctx, as(0))) != 1 {
		t.Error("not alice's and root's alone")
	}
	if l, err := b.Renew(ctx, as(alice), &leasepb.RenewRequest{Id: id, Ttl: durationpb.New(time.Hour)}); err != nil || time.Until(l.GetExpires().AsTime()) < 59*time.Minute {
		t.Errorf("%v, %v", l, err)
	}
	if _, err := b.Renew(ctx, as(alice), &leasepb.RenewRequest{Id: id}); codeOf(err) != leasepb.Code_INVALID_REQUEST {
		t.Error(err)
	}
	if _, err := b.Drop(ctx, as(0), &leasepb.DropRequest{Id: id}); err != nil {
		t.Error(err)
	}
	if _, err := b.Show(ctx, as(bob), id); codeOf(err) != leasepb.Code_NOT_FOUND {
		t.Errorf("bob sees one that has ended: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestWhyALeaseHasEnded(t *testing.T) {
	kill := func(b *bench, l *leasepb.Lease) { b.kill(b.recordOf(l.GetId()).PID) }
	expire := func(b *bench, id string) {
		b.enforcer.set(func() {
			s := b.enforcer.slices[id]
			s.State = api.Expired
			b.enforcer.slices[id] = s
		})
	}
	for name, c := range map[string]struct {
		how    string
		do     func(*bench, *leasepb.Lease)
		state  leasepb.Lease_State
		reason string
	}{
		"nobody is connected":     {"lingers", func(*bench, *leasepb.Lease) {}, leasepb.Lease_ENDED, reasonLinger},
		"the enforcer ends it":    {"", func(b *bench, l *leasepb.Lease) { expire(b, l.GetId()); kill(b, l) }, leasepb.Lease_ENDED, reasonExpired},
		"its broker is stubborn":  {"stubborn", func(b *bench, l *leasepb.Lease) { expire(b, l.GetId()) }, leasepb.Lease_ENDED, reasonExpired},
		"an operator releases it": {"", func(b *bench, l *leasepb.Lease) { b.enforcer.set(func() { delete(b.enforcer.slices, l.GetId()) }) }, leasepb.Lease_ENDED, "its slice was released"},
		"the enforcer is gone": {"", func(b *bench, l *leasepb.Lease) {
			b.enforcer.set(func() { b.enforcer.refuse = api.ErrUnreachable })
		}, leasepb.Lease_ENDED, reasonExpired},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.how)
			l := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20, Ttl: durationpb.New(time.Second)})
			if name != "the enforcer is gone" {
				if _, err := b.Renew(context.Background(), as(alice), &leasepb.RenewRequest{Id: l.GetId(), Ttl: durationpb.New(time.Hour)}); err != nil && c.how != "lingers" {
					t.Fatal(err)
				}
			}
			c.do(b, l)
			var ended *leasepb.Lease
			eventually(t, "it has ended", func() bool {
				var err error
				ended, err = b.Show(context.Background(), as(alice), l.GetId())
				return err == nil && ended.GetState() != leasepb.Lease_ACTIVE
			})
			if ended.GetState() != c.state || ended.GetReason() != c.reason {
				t.Errorf("%v", ended)
			}
			b.enforcer.set(func() { b.enforcer.refuse = nil })
			b.nothingIsLeft()
		})
	}
}

func TestABrokerOutlivesTheService(t *testing.T) {
	b := newBench(t, "")
	ctx := context.Background()
	keep := b.acquire(&leasepb.AcquireRequest{Vram: 64 << 20, Tenant: "t", Ttl: durationpb.New(time.Hour)})
	orphan := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20})
	dead := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20})
	before := b.configOf(keep.GetId())
	b.stop()
	for _, l := range []*leasepb.Lease{dead, orphan} {
		b.kill(b.recordOf(l.GetId()).PID)
		<-b.leases[l.GetId()].exited // this process still is its parent
	}
	b.kill(b.recordOf(dead.GetId()).Keeper.PID)
	eventually(t, "its keeper is dead", func() bool { return !b.leases[dead.GetId()].keeper.Alive() })
	b.start()
	eventually(t, "the one whose keeper is alive has a broker", func() bool { return b.recordOf(orphan.GetId()).Session.Number == 1 && b.serves(orphan.GetId()) })
	if after := b.configOf(orphan.GetId()); after.Token != b.tokenOf(orphan.GetId()) {
		t.Errorf("%+v", after)
	}
	after, err := b.Show(ctx, as(alice), keep.GetId())
	if err != nil || after.GetState() != leasepb.Lease_ACTIVE || after.GetVram() != 64<<20 || after.GetTenant() != "t" || after.GetExpires() == nil ||
		!after.GetAcquired().AsTime().Equal(keep.GetAcquired().AsTime()) {
		t.Errorf("%v, %v", after, err)
	}
	if b.configOf(keep.GetId()).Token != before.Token {
		t.Error("another token")
	}
	if gone, err := b.Show(ctx, as(alice), dead.GetId()); err != nil || gone.GetState() != leasepb.Lease_FAILED {
		t.Errorf("%v, %v", gone, err)
	}
	if n := len(b.cgroups.list()); n != 2 {
		t.Errorf("%d cgroups", n)
	}
	for _, l := range []*leasepb.Lease{keep, orphan} {
		if _, err := b.Drop(ctx, as(alice), &leasepb.DropRequest{Id: l.GetId()}); err != nil {
			t.Error(err)
		}
	}
	b.nothingIsLeft()
}

func TestWhatAServiceLeftThatWasKilledIsEnded(t *testing.T) {
	b := newBench(t, "")
	l := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20})
	orphan := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20})
	b.stop()
	// One was being acquired: its record names no broker. Of another there is a cgroup alone, and of a third an empty directory.
	lost := b.leases[l.GetId()]
	lost.PID = 0
	if err := lost.put(b.dirOf(l.GetId())); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(b.dirOf(orphan.GetId())); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(b.dirOf("lease-empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.enforcer.set(func() { clear(b.enforcer.slices) }) // as the enforcer does when a cgroup is empty
	b.start()
	b.nothingIsLeft()
}

func TestLeasesAreBounded(t *testing.T) {
	b := newBench(t, "")
	b.MaxLeases = 3
	var wait sync.WaitGroup
	var mu sync.Mutex
	granted, refused := 0, 0
	for range 6 {
		wait.Go(func() {
			_, err := b.Acquire(context.Background(), as(alice), &leasepb.AcquireRequest{Vram: 1 << 20})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				granted++
			case codeOf(err) == leasepb.Code_REFUSED && strings.Contains(err.Error(), "as many as may be"):
				refused++
			default:
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if granted != 3 || refused != 3 {
		t.Errorf("%d granted, %d refused", granted, refused)
	}
	uids := make(map[uint32]bool)
	for _, r := range b.enforcer.requests {
		uids[r.UID] = true
	}
	if len(uids) != 3 {
		t.Errorf("brokers have %d user ids", len(uids))
	}
}

func TestAnOperatorHasNoLimit(t *testing.T) {
	b := newBench(t, "")
	b.Operator = func(groups []uint32) bool { return slices.Contains(groups, 77) }
	for _, who := range []Peer{{UID: alice, Groups: []uint32{alice, 77}}, {UID: bob, Groups: []uint32{bob}}, {}} {
		l, err := b.Acquire(context.Background(), who, &leasepb.AcquireRequest{Vram: 1 << 20})
		if err != nil || l.GetUid() != who.UID {
			t.Fatalf("%v, %v", l, err)
		}
	}
	if r := b.enforcer.requests; r[0].For.UID != 0 || r[1].For.UID != bob || r[2].For.UID != 0 {
		t.Errorf("%+v", r)
	}
}

func TestTheRangeOfUserIDsIsNobodyElses(t *testing.T) {
	defer func(was string) { etc = was }(etc)
	etc = t.TempDir()
	for file, text := range map[string]string{
		"passwd": "root:x:0:0::/:/bin/sh\nme:x:3005:100::/:/bin/sh\n\n+@nis\n", "subuid": "me:100000:65536\n", "subgid": "me:300000:65536\n",
	} {
		if err := os.WriteFile(filepath.Join(etc, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		first, last uint32
		taken       string
	}{
		{3006, 99999, ""}, {3000, 3005, "passwd"}, {165535, 165536, "subuid"}, {165536, 299999, ""}, {1 << 30, 1 << 31, ""}, {365535, 400000, "subgid"}, {50000, 500000, "subuid"},
	} {
		err := checkUIDs(c.first, c.last)
		if (err == nil) != (c.taken == "") || err != nil && !strings.Contains(err.Error(), c.taken) {
			t.Errorf("%d-%d: %v", c.first, c.last, err)
		}
	}
	used := map[uint32]bool{2_000_000_001: true}
	var got []uint32
	last := uint32(2_000_000_002)
	for range 3 {
		uid, err := nextUID(2_000_000_000, 2_000_000_002, last, used)
		if err != nil {
			t.Fatal(err)
		}
		got, last = append(got, uid), uid
	}
	if !slices.Equal(got, []uint32{2_000_000_000, 2_000_000_002, 2_000_000_000}) {
		t.Error(got)
	}
	if _, err := nextUID(2_000_000_001, 2_000_000_001, 0, used); err == nil {
		t.Error("one that is used")
	}
	if uid, err := nextUID(0, 0, 0, nil); err == nil {
		t.Errorf("root's: %d", uid)
	}
}

func TestABrokerIsNotLedElsewhereByTheServicesEnvironment(t *testing.T) {
	got := environment([]string{"PATH=/bin", "LD_PRELOAD=/x.so", "CUDA_MPS_PIPE_DIRECTORY=/x", "CUDA_VISIBLE_DEVICES=1", "GPUSLICE_DIR=/x", "NOTIFY_SOCKET=/x", "LD_LIBRARY_PATH=/l"})
	if !slices.Equal(got, []string{"PATH=/bin", "LD_LIBRARY_PATH=/l"}) {
		t.Error(got)
	}
}

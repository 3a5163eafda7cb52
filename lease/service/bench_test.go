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

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/lease/broker"
	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/needs"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// program is a copy of this test binary that every user can execute. It replaces gpuslice-broker.
var program string

func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "--service") {
		standIn(os.Getenv("STAND_IN"))
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

// forged is text that a client's kernel prints to imitate the service's log.
const forged = "\ntime=2026-01-01T00:00:00Z level=ERROR msg=forged\n"

// standIn is a broker without a GPU. It answers connections to its session with its configuration.
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
	if config.Number > 0 { // fail only after a restart
		how = strings.TrimPrefix(how, "later ")
	}
	switch how {
	case "writes":
		fmt.Print(strings.Repeat(forged, 100), "\x1b[2J", strings.Repeat("x", 64<<10), "\n")
		how = "faults"
		fmt.Fprint(os.Stderr, "its last words\n")
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
	if code, ok := map[string]int{"faults": broker.ExitContext, "loads": broker.ExitLoadTimeout}[how]; ok { // at the first connection
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

// fakeEnforcer keeps slices without a device.
type fakeEnforcer struct {
	mu       sync.Mutex
	slices   map[string]api.Slice
	requests []api.RegisterRequest
	refuse   error // result of all calls but Devices
	killing  bool  // kill the slice's first process at registration
	holding  bool  // block Devices
	asking   int   // calls of Devices in progress
	asked    int   // calls of Devices
	last     uint64
	news     chan struct{} // closed at the next change by a test
	lists    int           // calls of Slices
	silent   bool          // Events fails
	expired  string        // the slice that expired
}

func (f *fakeEnforcer) Devices(ctx context.Context) ([]api.Device, error) {
	f.mu.Lock()
	holding := f.holding
	f.asking++
	f.asked++
	f.mu.Unlock()
	defer f.set(func() { f.asking-- })
	if holding {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	free := []uint64{10 << 30, 70 << 30}
	return []api.Device{
		{UUID: "GPU-a", Index: 0, Name: "A", Total: 80 << 30, Free: &free[0], Context: 500 << 20},
		{UUID: "GPU-b", Index: 1, Name: "B", Total: 80 << 30, Free: &free[1], ComputeCapability: "9.0"},
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

// Events reports every slice whenever a test changes something.
func (f *fakeEnforcer) Events(ctx context.Context, _ string, _ uint64, _ bool, each func(api.Event) error) error {
	for {
		f.mu.Lock()
		news, requests, silent, expired := f.news, slices.Clone(f.requests), f.silent, f.expired
		f.mu.Unlock()
		if silent {
			return api.Errorf(api.CodeBusy, "too many clients follow events")
		}
		if expired != "" {
			if err := each(api.Event{Kind: api.EventExpired, Slice: expired}); err != nil {
				return err
			}
		}
		for _, r := range requests {
			if err := each(api.Event{Kind: api.EventChanged, Slice: r.ID}); err != nil {
				return err
			}
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeEnforcer) Slices(context.Context) ([]api.Slice, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
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
	close(f.news)
	f.news = make(chan struct{})
}

type bench struct {
	*Service
	t        *testing.T
	options  Options
	enforcer *fakeEnforcer
	log      *logged
	stop     func()
}

func newBench(t *testing.T, how string) *bench {
	t.Helper()
	needs.Root(t)
	t.Setenv("STAND_IN", how)
	dir, err := os.MkdirTemp("/tmp", "gs-") // a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	enforcer := &fakeEnforcer{slices: make(map[string]api.Slice), news: make(chan struct{})}
	log := &logged{}
	b := &bench{t: t, enforcer: enforcer, log: log, options: Options{
		Enforcer: enforcer, Dir: filepath.Join(dir, "leases"), Broker: program, Cgroup: "gpuslice-test-" + filepath.Base(dir),
		Bounds: Bounds{Memory: 1 << 30, PIDs: 64, CPUs: 2}, FirstUID: 2_000_000_000, LastUID: 2_000_000_999, MaxLeases: 8, MaxClients: 16,
		Limits: func() []session.Limit {
			return []session.Limit{{User: "5001", MaxSessions: 100}, {User: "5002", MaxSessions: 1}, {User: "daemon", MaxSessions: 100}}
		},
		CodeBytes: 32 << 20, LoadTimeout: time.Second, Log: slog.New(slog.NewTextHandler(io.MultiWriter(testhost.Log(t), log), nil)),
	}}
	b.start()
	t.Cleanup(func() {
		for _, l := range b.all() {
			b.end(l, reasonDropped)
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
	await.That(t, what, is)
}

// nothingIsLeft checks that no lease has left a directory, cgroup, process or slice.
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

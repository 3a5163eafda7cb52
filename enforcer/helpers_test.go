// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/store"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const (
	gib   = uint64(1) << 30
	mib   = uint64(1) << 20
	gpu0  = "GPU-00000000-0000-0000-0000-0000000000a0"
	hex0  = "000000000000000000000000000000a0"
	gpu1  = "GPU-00000000-0000-0000-0000-0000000000a1"
	hex1  = "000000000000000000000000000000a1"
	model = "Simulated 80GB"
)

var (
	buildClient = sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp("", "gpuslice-test-")
		if err != nil {
			return "", err
		}
		out := filepath.Join(dir, "client")
		b, err := exec.Command("cc", "-O1", "-Wall", "-o", out, "testdata/client.c").CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%w: %s", err, b)
		}
		return out, nil
	})
)

func TestMain(m *testing.M) {
	code := m.Run()
	if out, err := buildClient(); err == nil {
		os.RemoveAll(filepath.Dir(out))
	}
	os.Exit(code)
}

type proc struct {
	t   *testing.T
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Reader
}

// start starts a process that looks for its slice in dir, in cgroup unless that is empty.
func start(t *testing.T, dir, cgroup string) *proc {
	t.Helper()
	client, err := buildClient()
	if err != nil {
		t.Skipf("a C compiler is needed: %v", err)
	}
	args := []string{client, dir}
	if cgroup != "" {
		// The shell moves itself, then becomes the process, so no other process was in the cgroup.
		args = []string{"/bin/sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, cgroup, client, dir}
	}
	p := &proc{t: t, cmd: exec.Command(args[0], args[1:]...)}
	r, w, err := os.Pipe()
	must.Do(t, err)
	p.cmd.Stdin, p.in = r, w
	p.cmd.Stderr = os.Stderr
	out := must.Get(p.cmd.StdoutPipe())(t)
	p.out = bufio.NewReader(out)
	must.Do(t, p.cmd.Start())
	r.Close()
	t.Cleanup(p.kill)
	if cgroup != "" {
		p.ask("hello") // it is in its cgroup
	}
	return p
}

func (p *proc) pid() int { return p.cmd.Process.Pid }

func (p *proc) kill() {
	p.in.Close()
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *proc) tell(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.t.Fatalf("tell process %d: %v", p.pid(), err)
	}
}

func (p *proc) ask(format string, args ...any) string {
	p.t.Helper()
	p.tell(format, args...)
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("process %d, command %q: %v", p.pid(), fmt.Sprintf(format, args...), err)
	}
	return strings.TrimSpace(line)
}

func (p *proc) must(format string, args ...any) uint64 {
	p.t.Helper()
	answer := p.ask(format, args...)
	n, err := strconv.ParseUint(strings.TrimPrefix(answer, "ok "), 10, 64)
	if err != nil {
		p.t.Fatalf("process %d, command %q: answer %q", p.pid(), fmt.Sprintf(format, args...), answer)
	}
	return n
}

func (p *proc) expect(want, format string, args ...any) {
	p.t.Helper()
	if got := p.ask(format, args...); got != want {
		p.t.Fatalf("process %d, command %q: answer %q, want %q", p.pid(), fmt.Sprintf(format, args...), got, want)
	}
}

type fakeTruth struct {
	mu    sync.Mutex
	bytes map[string]map[int]uint64
	hang  chan struct{}
	asked int            // listings of processes, and queries that hang
	lists map[string]int // listings of processes, by device

	used int            // queries of the bytes in use
	uses map[string]int // the same by device

	takes time.Duration // how long a listing takes

	busy      map[int]uint32
	busyAsked int
}

func (f *fakeTruth) Devices() ([]driver.Device, error) {
	var devices []driver.Device
	for i, name := range []string{gpu0, gpu1} {
		uuid, err := driver.ParseUUID(name)
		if err != nil {
			return nil, err
		}
		devices = append(devices, driver.Device{UUID: name, Raw: uuid.Raw, Index: i, Name: model, Total: 80 * gib})
	}
	return devices, nil
}

func (f *fakeTruth) Processes(uuid string) (map[int]uint64, error) {
	f.mu.Lock()
	f.asked++
	if f.lists == nil {
		f.lists = make(map[string]int)
	}
	f.lists[uuid]++
	hang := f.hang
	all := make(map[int]uint64)
	for pid, bytes := range f.bytes[uuid] {
		all[pid] = bytes
	}
	f.mu.Unlock()
	time.Sleep(f.takes)
	if hang != nil {
		<-hang
	}
	return all, nil
}

func (f *fakeTruth) Used(uuid string) (uint64, error) {
	f.mu.Lock()
	used, hang := gib, f.hang
	f.used++
	if f.uses == nil {
		f.uses = make(map[string]int)
	}
	f.uses[uuid]++
	if hang != nil {
		f.asked++
	}
	for _, bytes := range f.bytes[uuid] {
		if bytes != driver.Unknown {
			used += bytes
		}
	}
	f.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return used, nil
}

func (f *fakeTruth) DriverVersion() string { return "0" }

func (f *fakeTruth) Busy(uuid string, _ time.Time) (map[int]uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busyAsked++
	return maps.Clone(f.busy), nil
}

func (f *fakeTruth) looked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

func (f *fakeTruth) listed(uuid string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists[uuid]
}

// queries returns how often the bytes in use of a device were queried: once in each interval, and once more at each listing.
func (f *fakeTruth) queries(uuid string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.uses[uuid]
}

func (f *fakeTruth) set(uuid string, pid int, bytes uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.bytes == nil {
		f.bytes = make(map[string]map[int]uint64)
	}
	if f.bytes[uuid] == nil {
		f.bytes[uuid] = make(map[int]uint64)
	}
	f.bytes[uuid][pid] = bytes
	if bytes == 0 {
		delete(f.bytes[uuid], pid)
	}
}

// host is an enforcer for a test, which can be restarted.
type host struct {
	t       *testing.T
	options enforcer.Options
	*enforcer.Enforcer
	stop func()
}

func newTruthHost(t *testing.T, with ...func(*enforcer.Options)) (*host, *fakeTruth) {
	t.Helper()
	truth := &fakeTruth{}
	return newHost(t, truth, with...), truth
}

func newHost(t *testing.T, truth *fakeTruth, with ...func(*enforcer.Options)) *host {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "gs-"))(t) // keeps socket paths short
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &host{t: t, options: enforcer.Options{
		RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), Library: "/lib/x.so",
		Interval: 20 * time.Millisecond, SettleTime: time.Second, ExitGrace: 50 * time.Millisecond, IdleInterval: 200 * time.Millisecond,
		Policy:  enforcer.Policy{Grace: 100 * time.Millisecond},
		NoTruth: "this is a test", ContextBytes: 300 * mib,
		Log: slog.New(slog.NewTextHandler(testhost.Log(t), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}}
	if truth != nil {
		h.options.Truth = truth
	}
	if os.Geteuid() != 0 {
		h.options.Unprivileged = true
	}
	for _, change := range with {
		change(&h.options)
	}
	h.start()
	t.Cleanup(func() { h.stop() })
	return h
}

func (h *host) CreatePool(ctx context.Context, name string, r api.PoolRequest) (api.Pool, error) {
	h.t.Helper()
	needs.Root(h.t)
	return h.Enforcer.CreatePool(ctx, name, r)
}

func (h *host) records() string {
	h.t.Helper()
	boot := must.Get(process.BootID())(h.t)
	return store.RecordsDir(h.options.RunDir, boot)
}

func (h *host) stored(text string) bool {
	h.t.Helper()
	found := false
	files, _ := filepath.Glob(filepath.Join(h.records(), "slice-*"))
	for _, file := range files {
		record, _ := os.ReadFile(file)
		found = found || strings.Contains(string(record), text)
	}
	return found
}

// start needs root the second time: an enforcer without privileges cannot restore slices.
func (h *host) start() {
	h.t.Helper()
	if h.Enforcer != nil {
		needs.Root(h.t)
	}
	e := must.Get(enforcer.New(h.options))(h.t)
	h.run(e)
}

func (h *host) run(e *enforcer.Enforcer) {
	h.Enforcer = e
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		expect.NoError(h.t, <-done)
	})
}

func (h *host) restart() {
	h.t.Helper()
	h.with(func(*enforcer.Options) {})
}

// with restarts it with other options.
func (h *host) with(change func(o *enforcer.Options)) {
	h.t.Helper()
	needs.Root(h.t) // skips before the enforcer is stopped
	h.stop()
	change(&h.options)
	h.start()
}

// lead links the directory in which a process looks for its slice to the reply's.
func lead(t testing.TB, link string, reply api.RegisterReply) {
	t.Helper()
	_ = os.Remove(link) // of an earlier slice
	must.Do(t, os.Symlink(filepath.Join(reply.Dir, "bind"), link))
}

// container registers a container. Its first process is in a cgroup of its own; more starts another process in it.
func (h *host) container(r api.RegisterRequest) (first *proc, more func() *proc, reply api.RegisterReply) {
	h.t.Helper()
	cgroup, link := newCgroup(h.t), filepath.Join(h.options.RunDir, "to-"+r.ID)
	more = func() *proc { return start(h.t, link, cgroup) }
	first = more()
	r.Container, r.PID = r.ID, first.pid()
	reply = must.Get(h.Register(context.Background(), r))(h.t)
	lead(h.t, link, reply)
	return first, more, reply
}

// session registers a slice of a process that it starts, and of its descendants.
func (h *host) session(id string, quotas ...api.Quota) (*proc, api.RegisterReply) {
	h.t.Helper()
	return h.sessionOf(api.RegisterRequest{ID: id, Quotas: quotas})
}

func (h *host) sessionOf(r api.RegisterRequest) (*proc, api.RegisterReply) {
	h.t.Helper()
	link := filepath.Join(h.options.RunDir, "to-"+r.ID)
	p := start(h.t, link, "")
	r.Session, r.PID, r.UID, r.GID = true, p.pid(), uint32(os.Geteuid()), uint32(os.Getegid())
	reply := must.Get(h.Register(context.Background(), r))(h.t)
	lead(h.t, link, reply)
	return p, reply
}

func (h *host) see(id string) api.Slice {
	h.t.Helper()
	return must.Get(h.Slice(context.Background(), id))(h.t)
}

func on(device string, bytes uint64) api.Quota { return api.Quota{Device: device, Bytes: bytes} }

func newCgroup(t *testing.T) string {
	t.Helper()
	needs.Root(t)
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st syscall.Statfs_t
		const cgroup2 = 0x63677270
		if syscall.Statfs(mount, &st) != nil || st.Type != cgroup2 {
			continue
		}
		dir, err := os.MkdirTemp(mount, "gpuslice-test-")
		if err != nil {
			t.Skipf("a writable cgroup hierarchy is needed: %v", err)
		}
		t.Cleanup(func() {
			eventually(t, "remove the cgroup", func() bool { return os.Remove(dir) == nil || os.IsNotExist(syscall.Rmdir(dir)) })
		})
		return dir
	}
	t.Skip("a unified cgroup hierarchy is needed")
	return ""
}

func processes(t *testing.T, cgroup string) map[int]bool {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(cgroup, "cgroup.procs")))(t)
	pids := make(map[int]bool)
	for line := range strings.Lines(string(text)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			pids[pid] = true
		}
	}
	return pids
}

// laneAt and entryAt return the offsets of a lane, and of its entry for the first device, in a ledger's page: struct ledger_lane and
// ledger_entry of interceptor/ledger.h.
func laneAt(lane uint32) uint64  { return uint64(4096 + int(lane)*(128+64*ledger.Devices)) }
func entryAt(lane uint32) uint64 { return laneAt(lane) + 128 }

// eventually waits for an event that the kernel reports in its own time.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	await.That(t, what, ok)
}

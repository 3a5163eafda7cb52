//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	gpu "github.com/gpuslice/gpuslice/lease"
)

// leased is the host's lease service with the model of its leases. All lease faults share one.
type leased struct {
	w      *world
	client gpu.Service
	cgroup string
	leases []*granted // acquired and not dropped
	idle   int        // descriptors of a service without leases

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	stop bool          // it is not restarted
}

const (
	leaseBytes  = 64 * mib
	leaseBuffer = 2 * block
)

func (l *leased) dir() string       { return filepath.Join(l.w.dir, "leases") }
func (l *leased) armedFile() string { return filepath.Join(l.w.dir, "armed", "point") }

// newLeased starts a lease service with one lease, of which the broker is never killed.
func (w *world) newLeased() *leased {
	w.Helper()
	l := &leased{w: w, client: gpu.Service{Socket: filepath.Join(w.dir, "leases.sock")}, cgroup: filepath.Base(w.dir) + "-leases"}
	w.leased = l
	// An unprivileged broker needs access to the host's directories and the simulated card.
	w.must(os.Chmod(w.dir, 0o755))
	w.must(os.Chmod(filepath.Join(w.dir, "fake"), 0o777))
	files, err := filepath.Glob(filepath.Join(w.dir, "fake", "*"))
	w.must(err)
	for _, file := range files {
		w.must(os.Chmod(file, 0o666))
	}
	w.must(os.Mkdir(filepath.Dir(l.armedFile()), 0o777))
	w.must(os.Chmod(filepath.Dir(l.armedFile()), 0o777))
	// Exactly one broker dies at an armed point: the next one started.
	w.must(os.WriteFile(l.program(), fmt.Appendf(nil, `#!/bin/sh
if read -r point 2>/dev/null <%[1]s && rm %[1]s; then
	export %[2]s="$point"
fi
exec %[3]s "$@"
`, l.armedFile(), killpoint.Env, binary(w, "gpuslice-broker")), 0o755))
	text, err := os.ReadFile(w.config())
	w.must(err)
	w.must(os.WriteFile(l.config(), fmt.Appendf(text, "\n[leases]\nsocket = %q\ndir = %q\ncgroup = %q\n", l.client.Socket, l.dir(), l.cgroup), 0o644))
	l.start("")
	l.idle = l.descriptors()
	g := l.mustAcquire(gpu.Request{VRAM: leaseBytes})
	g.begin()
	g.broker = l.record(g.ID).PID
	l.leases = append(l.leases, g)
	return l
}

func (l *leased) program() string { return filepath.Join(l.w.dir, "broker") }
func (l *leased) config() string  { return filepath.Join(l.w.dir, "leased.toml") }

func (l *leased) arm(point string) {
	l.w.must(os.WriteFile(l.armedFile(), []byte(point+"\n"), 0o644))
}

// armed reports whether no broker has taken the point yet.
func (l *leased) armed() bool {
	_, err := os.Stat(l.armedFile())
	return err == nil
}

// launch starts the service, which dies at a point if one is given. A service that ends is restarted, as by systemd.
func (l *leased) launch(point string) error {
	cmd := exec.Command(binary(l.w, "gpuslice-leased"), "--config", l.config(), "--broker", l.program())
	log, err := os.OpenFile(l.w.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(l.w.env(), killpoint.Env+"="+point)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stop {
		return nil
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	l.cmd, l.done = cmd, done
	go func() {
		_ = cmd.Wait()
		time.Sleep(10 * time.Millisecond)
		_ = l.launch("") // callers that wait for it notice a failed start
		close(done)
	}()
	return nil
}

func (l *leased) now() (*exec.Cmd, chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cmd, l.done
}

func (l *leased) up() {
	l.w.Helper()
	l.w.eventually("the lease service answers", func() bool {
		cmd, _ := l.now()
		_, err := l.list()
		newer, _ := l.now()
		return err == nil && newer == cmd
	})
}

func (l *leased) list() ([]*gpu.Lease, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return l.client.List(ctx)
}

func (l *leased) start(point string) {
	l.w.Helper()
	l.w.must(l.launch(point))
	if point == "" {
		l.up()
	}
}

func (l *leased) end(sig unix.Signal) error {
	l.mu.Lock()
	l.stop = true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.stop = false
		l.mu.Unlock()
	}()
	cmd, done := l.now()
	if cmd == nil {
		return nil
	}
	_ = cmd.Process.Signal(sig)
	select {
	case <-done:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("after %v the lease service, process %d, has not ended by %v", patience, cmd.Process.Pid, sig)
	}
}

func (l *leased) restart(sig unix.Signal, point string) {
	l.w.Helper()
	l.w.must(l.end(sig))
	l.start(point)
}

func (l *leased) descriptors() int {
	cmd, _ := l.now()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid))
	if err != nil {
		return math.MaxInt
	}
	return len(entries)
}

type stored struct {
	PID       int    `json:"pid"`
	BrokerUID uint32 `json:"broker_uid"`
}

func (l *leased) record(id string) (r stored) {
	if text, err := os.ReadFile(filepath.Join(l.dir(), id, "lease.json")); err == nil {
		_ = json.Unmarshal(text, &r)
	}
	return r
}

func within(t time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), t)
}

func (l *leased) acquire(r gpu.Request) (*granted, error) {
	ctx, cancel := within(patience)
	defer cancel()
	r.Device = strconv.Itoa(devices - 1) // the model does not cover the turners' card
	of, err := l.client.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(of.TokenFile)
	return &granted{Lease: of, l: l, token: string(token)}, err
}

// mustAcquire retries only while the service starts; any other failure ends the round.
func (l *leased) mustAcquire(r gpu.Request) *granted {
	l.w.Helper()
	var g *granted
	l.w.eventually("a lease is acquired", func() bool {
		var err error
		g, err = l.acquire(r)
		if err != nil && !errors.Is(err, gpu.ErrUnreachable) {
			l.w.fail("acquire a lease: %v", err)
		}
		return err == nil
	})
	return g
}

func (l *leased) drop(id string) {
	l.w.Helper()
	l.w.eventually("lease "+id+" is dropped", func() bool {
		ctx, cancel := within(patience)
		defer cancel()
		_, err := l.client.Drop(ctx, id)
		if errors.Is(err, gpu.ErrUnreachable) {
			return false
		}
		var refused *gpu.Error
		if errors.As(err, &refused) && (refused.Code == gpu.NotFound || refused.Code == gpu.Expired) {
			return true // the killed service had dropped it
		}
		l.w.must(err)
		return true
	})
}

func (l *leased) check() {
	w := l.w
	w.Helper()
	var why error
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		w.goesOn()
		if why = l.differs(); why == nil {
			break
		}
		if time.Now().After(deadline) {
			w.fail("after %v: %v", patience, why)
		}
	}
	for _, g := range l.leases {
		g.use()
	}
}

func (l *leased) ids() (ids []string) {
	for _, g := range l.leases {
		ids = append(ids, g.ID)
	}
	slices.Sort(ids)
	return ids
}

func (l *leased) brokers() map[int]bool {
	all := map[int]bool{}
	if l != nil {
		for _, g := range l.leases {
			all[l.record(g.ID).PID] = true
		}
	}
	return all
}

func names(dir string, only func(os.DirEntry) bool) []string {
	entries, _ := os.ReadDir(dir)
	var all []string
	for _, e := range entries {
		if only == nil || only(e) {
			all = append(all, e.Name())
		}
	}
	return all
}

func (l *leased) differs() error {
	want := l.ids()
	found, err := l.list()
	if err != nil {
		return err
	}
	var got []string
	for _, f := range found {
		got = append(got, f.ID)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return fmt.Errorf("the leases are %v, the model has %v", got, want)
	}
	if dirs := names(l.dir(), nil); !slices.Equal(dirs, want) {
		return fmt.Errorf("the leases' directories are %v, the model has %v", dirs, want)
	}
	cgroup := filepath.Join("/sys/fs/cgroup", l.cgroup)
	if dirs := names(cgroup, os.DirEntry.IsDir); !slices.Equal(dirs, want) {
		return fmt.Errorf("the brokers' cgroups are %v, the model has %v", dirs, want)
	}
	var pids []int
	charged := map[string]uint64{}
	for _, s := range l.w.leaseSlices() {
		charged[s.ID] = 0
		if s.State != api.Active {
			return fmt.Errorf("slice %s is %s: %s", s.ID, s.State, s.Reason)
		}
		for _, d := range s.Devices {
			charged[s.ID] += d.Used + d.Overhead
		}
	}
	if len(charged) != len(want) {
		return fmt.Errorf("the enforcer has the leases' slices %v, the model has %v", charged, want)
	}
	listed := l.w.listed()
	for _, g := range l.leases {
		if text, err := os.ReadFile(g.TokenFile); err != nil || string(text) != g.token {
			return fmt.Errorf("lease %s has another token, or none: %w", g.ID, errors.Join(err))
		}
		for _, name := range names(filepath.Join(l.dir(), g.ID), nil) {
			if !slices.Contains([]string{"lease.json", "token", "session.sock", "shared.sock"}, strings.TrimSuffix(name, ".new")) {
				return fmt.Errorf("lease %s has a file %s", g.ID, name)
			}
		}
		r := l.record(g.ID)
		text, _ := os.ReadFile(filepath.Join(cgroup, g.ID, "cgroup.procs"))
		in := strings.Fields(string(text))
		if !slices.Equal(in, []string{strconv.Itoa(r.PID)}) {
			return fmt.Errorf("lease %s has the processes %v, its record says %d", g.ID, in, r.PID)
		}
		pids = append(pids, r.PID)
		var holds uint64
		for device := range devices {
			holds += listed[device][r.PID]
		}
		if _, there := charged[g.ID]; !there || holds != charged[g.ID] {
			return fmt.Errorf("the driver holds %d bytes for the broker of lease %s, of which %d are charged (there: %v)", holds, g.ID, charged[g.ID], there)
		}
		if g.broker != r.PID {
			return fmt.Errorf("lease %s has another broker, but nobody killed the former one", g.ID)
		}
		ctx, cancel := within(patience)
		stats, err := g.session.Stats(ctx)
		cancel()
		if err != nil {
			return err
		}
		if stats.GetClients() != 1 || stats.GetShared() != 0 || stats.GetAllocated() != leaseBuffer {
			return fmt.Errorf("the session of lease %s holds %v", g.ID, stats)
		}
	}
	slices.Sort(pids)
	if strays := l.processes(); !slices.Equal(strays, pids) {
		return fmt.Errorf("there are brokers %v, the model has %v", strays, pids)
	}
	return nil
}

func (l *leased) processes() (pids []int) {
	mark := []byte("FAKECUDA_STATE=" + filepath.Join(l.w.dir, "fake", "state") + "\x00")
	for _, name := range names("/proc", os.DirEntry.IsDir) {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", name, "cmdline"))
		if !strings.HasPrefix(string(line), binary(l.w, "gpuslice-broker")+"\x00") && !strings.HasPrefix(string(line), "/bin/sh\x00"+l.program()) {
			continue
		}
		if environment, _ := os.ReadFile(filepath.Join("/proc", name, "environ")); strings.Contains(string(environment), string(mark)) && alive(pid) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

func (l *leased) finish() {
	w := l.w
	w.Helper()
	for _, g := range l.leases {
		g.give()
	}
	l.leases = nil
	l.check()
	w.eventually("the lease service has closed what it had open", func() bool { return l.descriptors() <= l.idle })
	w.must(l.end(unix.SIGTERM))
	if left := names(l.dir(), nil); len(left) > 0 {
		w.fail("of leases %v are left", left)
	}
	w.must(os.Remove(filepath.Join("/sys/fs/cgroup", l.cgroup)))
	w.must(os.RemoveAll(filepath.Dir(l.armedFile())))
	w.leased = nil
}

func (l *leased) clear() {
	if l == nil {
		return
	}
	if err := l.end(unix.SIGKILL); err != nil {
		l.w.Error(err)
	}
	cgroup := filepath.Join("/sys/fs/cgroup", l.cgroup)
	for _, id := range names(cgroup, os.DirEntry.IsDir) {
		dir := filepath.Join(cgroup, id)
		_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
		for deadline := time.Now().Add(patience); time.Now().Before(deadline) && os.Remove(dir) != nil; time.Sleep(5 * time.Millisecond) {
		}
	}
	_ = os.Remove(cgroup)
	for _, g := range l.leases {
		g.close()
	}
}

func (w *world) leaseSlices() (all []api.Slice) {
	return slices.DeleteFunc(w.everySlice(), func(s api.Slice) bool { return !isLease(s) })
}

func isLease(s api.Slice) bool { return strings.HasPrefix(s.ID, "lease-") }

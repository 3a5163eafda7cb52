//go:build hostile

// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/audit"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

type operator struct {
	*host
	cgroup                 string
	register, list, scrape latencies
	ids                    []string
	sessions               int // the most concurrent ones of the users
}

// latencies are response times, and separately the time that the machine was stalled.
type latencies struct{ took, stood []time.Duration }

func (l *latencies) time(ask func() error) error {
	begin := time.Now()
	err := ask()
	end := time.Now()
	stood := machine.Between(begin, end)
	l.took, l.stood = append(l.took, max(0, end.Sub(begin)-stood)), append(l.stood, stood)
	return err
}

func (l *latencies) at(percent int) time.Duration {
	sorted := slices.Sorted(slices.Values(l.took))
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}

func (l *latencies) String() string {
	var stood time.Duration
	for _, s := range l.stood {
		stood += s
	}
	round := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	return fmt.Sprintf("%d times, p50 %v, p99 %v, max %v (not counting %v for which the machine stood still)",
		len(l.took), round(l.at(50)), round(l.at(99)), round(l.at(100)), stood.Round(time.Millisecond))
}

func (h *host) newOperator() *operator {
	h.T.Helper()
	o := &operator{host: h, cgroup: filepath.Join(testhost.UnifiedCgroups(), fmt.Sprint("operator-", time.Now().UnixNano()))}
	h.Must(os.Mkdir(o.cgroup, 0o755))
	h.cgroups = append(h.cgroups, o.cgroup)
	return o
}

func (o *operator) work(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := o.container(); err != nil {
			return err
		}
		time.Sleep(260 * time.Millisecond) // four scrapes a second are served
	}
	return nil
}

func (o *operator) container() error {
	id := fmt.Sprintf("%s-%d", o.secret, len(o.ids))
	cgroup := filepath.Join(o.cgroup, id)
	if err := os.Mkdir(cgroup, 0o755); err != nil {
		return err
	}
	defer os.Remove(cgroup)
	dir, err := os.Open(cgroup)
	if err != nil {
		return err
	}
	defer dir.Close()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	kill := sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	defer kill()
	err = o.register.time(func() error {
		_, err := o.Client.Register(context.Background(), api.RegisterRequest{
			ID: id, Container: id, PID: cmd.Process.Pid, Quotas: []api.Quota{{Device: api.AllDevices, Bytes: gib}}})
		return err
	})
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	o.ids = append(o.ids, id)
	var all []api.Slice
	err = o.list.time(func() error {
		all, err = o.Client.Slices(context.Background())
		return err
	})
	if err != nil {
		return fmt.Errorf("list the slices: %w", err)
	}
	if err := o.holdsUsers(all); err != nil {
		return err
	}
	if err := o.scrape.time(o.scrapes); err != nil {
		return fmt.Errorf("scrape the metrics: %w", err)
	}
	kill()
	if _, err := o.Client.Release(context.Background(), id, 0, true); err != nil && !errors.Is(err, api.ErrNotFound) {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

func (o *operator) scrapes() error {
	r, err := http.Get("http://" + o.metrics + "/metrics")
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", r.Status)
	}
	_, err = io.Copy(io.Discard, r.Body)
	return err
}

// descriptors returns how many a process has open.
func (h *host) descriptors(pid int) int {
	h.T.Helper()
	all := must.Get(os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)))(h.T)
	return len(all)
}

func (o *operator) holdsUsers(all []api.Slice) error {
	var bytes uint64
	sessions := 0
	for _, s := range all {
		if !s.Session {
			continue
		}
		if !strings.HasPrefix(s.ID, fmt.Sprintf("u%d-", hostileUser)) {
			return fmt.Errorf("session %s belongs to a user that may have none", s.ID)
		}
		sessions++
		for _, q := range s.Quotas {
			bytes += q.Bytes
		}
	}
	if o.sessions = max(o.sessions, sessions); sessions > 4 || bytes > 2*gib {
		return fmt.Errorf("the user has %d sessions with %d bytes, but may have 4 with 2 GiB", sessions, bytes)
	}
	return nil
}

// tenant is the well-behaved container: its program allocates, frees and knows what it should hold.
type tenant struct {
	*container
	worker   *worker
	onHost   int     // its pid
	looker   *worker // outside all slices; queries NVML
	held     map[string]uint64
	refusals uint64
	looks    int
}

const tenantQuota = 8 * gib

func (h *host) newTenant() *tenant {
	h.T.Helper()
	b := &tenant{container: h.newContainer("tenant", fmt.Sprint(tenantQuota), nil, "/programs/worker"), held: map[string]uint64{}}
	var err error
	b.worker, err = newWorker(b.run())
	h.Must(err)
	b.onHost = b.pid1()
	looker := exec.Command(filepath.Join(h.programs(), "worker"))
	looker.Env = append(h.Env(), fmt.Sprint("FAKECUDA_CONTEXT=", contextBytes))
	b.looker, err = newWorker(looker)
	h.Must(err)
	h.T.Cleanup(b.looker.kill)
	must.Equal(h.T, b.worker.ask("context 0"), "ok", "the first context")
	h.Eventually("the enforcer has learned what a context takes", func() bool {
		all, err := h.Client.Devices(context.Background())
		return err == nil && len(all) == 1 && all[0].Context == contextBytes
	})
	h.Eventually("it is charged for its context", func() bool { return b.look() == nil })
	return b
}

func (b *tenant) want() (bytes uint64) {
	for _, n := range b.held {
		bytes += n
	}
	return contextBytes + bytes
}

func (b *tenant) work(ctx context.Context) error {
	for i := uint64(0); ctx.Err() == nil; i++ {
		if err := b.operate(i); err != nil {
			return err
		}
		if err := b.look(); err != nil {
			return fmt.Errorf("at the look %d: %w", b.looks, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

func (b *tenant) operate(i uint64) error {
	left := tenantQuota - b.want()
	switch n := 2 * mib * (1 + rand.Uint64N(128)); {
	case i%64 == 0: // over the quota
		if got := b.worker.ask("alloc 0 %d %d", left+2*mib, i%2); got != "oom" {
			return fmt.Errorf("it asks for %d bytes where %d are left: %s", left+2*mib, left, got)
		}
		b.refusals++
	case i%16 == 0 && left >= 64*mib:
		if got := b.worker.ask("storm %d 200 %d", i, left/8); got != "ok 200 0" {
			return fmt.Errorf("eight at a time of up to %d bytes: %s", left/8, got)
		}
	case n > left || len(b.held) > 0 && i%3 == 0:
		for index := range b.held {
			if got := b.worker.ask("free %s", index); got != "ok" {
				return fmt.Errorf("free: %s", got)
			}
			delete(b.held, index)
			break
		}
	default:
		index, ok := strings.CutPrefix(b.worker.ask("alloc 0 %d %d", n, i%2), "ok ")
		if !ok {
			return fmt.Errorf("it asks for %d bytes where %d are left: %s", n, left, index)
		}
		b.held[index] = n
	}
	return nil
}

// look compares the expected memory with the driver's figures and the charges, to the byte.
func (b *tenant) look() error {
	b.looks++
	want := b.want()
	var driver uint64
	for _, word := range strings.Fields(b.looker.ask("list 0")) {
		pid, bytes, _ := strings.Cut(word, ":")
		if n, err := strconv.Atoi(pid); err == nil && n == b.onHost {
			driver, _ = strconv.ParseUint(bytes, 10, 64)
		}
	}
	s, err := b.Client.Slice(context.Background(), b.id)
	if err != nil {
		return err
	}
	if s.State != api.Active || s.ProcessCount != 1 || len(s.Devices) != 1 {
		return fmt.Errorf("it is %s %s, has %d processes and %d devices", s.State, s.Reason, s.ProcessCount, len(s.Devices))
	}
	if d := s.Devices[0]; driver != want || d.Used+d.Overhead != want || d.Limit != tenantQuota {
		return fmt.Errorf("it should hold %d bytes; the driver says %d, and it is charged %d and %d of %d", want, driver, d.Used, d.Overhead, d.Limit)
	}
	return nil
}

type follower struct {
	mu   sync.Mutex
	last uint64
	err  error
	told eventCounts
	all  map[api.EventKind]int
}

// eventCounts counts events by slice id and kind; for refusals it sums their numbers.
type eventCounts map[string]map[string]uint64

func (t eventCounts) add(id, kind string, n uint64) {
	if t[id] == nil {
		t[id] = map[string]uint64{}
	}
	t[id][kind] += n
}

func (f *follower) follow(ctx context.Context, h *host) {
	f.told, f.all = eventCounts{}, map[api.EventKind]int{}
	err := h.Client.Events(ctx, "", 0, true, func(e api.Event) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if e.Kind == api.EventMissed || e.Seq != f.last+1 {
			return fmt.Errorf("after event %d comes %d, %s (%d)", f.last, e.Seq, e.Kind, e.Count)
		}
		f.last = e.Seq
		f.all[e.Kind]++
		f.told.add(e.Slice, string(e.Kind), max(1, e.Count))
		return nil
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() == nil {
		f.err = errors.Join(errors.New("no more events arrive"), err)
	}
}

func (t eventCounts) lacks(o *operator, b *tenant, perSlice map[string]uint64) (errs []error) {
	want := func(id, kind string, n uint64) {
		if got := t[id][kind]; got != n {
			errs = append(errs, fmt.Errorf("%s of %s: %d, want %d", kind, id, got, n))
		}
	}
	for _, id := range o.ids {
		for kind, n := range perSlice {
			want(id, kind, n)
		}
	}
	want(b.id, string(api.EventRegistered), 1)
	want(b.id, string(api.EventRefused), b.refusals)
	return errs
}

func (h *host) audited() (t eventCounts, size int64, err error) {
	names, err := filepath.Glob(h.audit() + "*")
	if err != nil {
		return nil, 0, err
	}
	t = eventCounts{}
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			return nil, 0, err
		}
		defer file.Close()
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var e audit.Entry
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				return nil, 0, fmt.Errorf("%s: %w", lines.Bytes(), err)
			}
			size += int64(len(lines.Bytes()) + 1)
			kind := string(e.Kind)
			if e.Kind == audit.KindRequest {
				kind = e.Operation
			}
			t.add(e.Slice, kind, max(1, e.Count))
		}
		if err := lines.Err(); err != nil {
			return nil, 0, err
		}
	}
	return t, size, nil
}

type cost struct {
	peak int64 // maximum resident bytes
	cpu  time.Duration
}

func (h *host) cost() cost { return h.costOf(h.pid) }

func (h *host) costOf(pid int) (c cost) {
	h.T.Helper()
	status := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(h.T)
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib := must.Get(strconv.ParseInt(strings.Fields(rest)[0], 10, 64))(h.T)
			c.peak = kib << 10
		}
	}
	stat := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))(h.T)
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest) // fields from the third on
	for _, ticks := range fields[11:13] {
		n := must.Get(strconv.Atoi(ticks))(h.T)
		c.cpu += time.Duration(n) * time.Second / 100
	}
	return c
}

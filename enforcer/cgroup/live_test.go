// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// These tests create cgroups on the host.

// hierarchies returns the hierarchies in which a test can create cgroups.
func hierarchies(t *testing.T) map[string]*hierarchy {
	t.Helper()
	needs.Root(t)
	host, err := Open("/proc")
	if err != nil {
		t.Skipf("requires cgroups: %v", err)
	}
	all := map[string]*hierarchy{"v2": host.unified, "v1": host.controllers["pids"]}
	for name, h := range all {
		if h == nil {
			delete(all, name)
			continue
		}
		probe := filepath.Join(h.mount, fmt.Sprintf("gpuslice-probe-%d", os.Getpid()))
		if err := os.Mkdir(probe, 0o755); err != nil {
			t.Logf("requires permission to create a cgroup (%v): skips %s", err, name)
			delete(all, name)
			continue
		}
		_ = os.Remove(probe)
	}
	if len(all) == 0 {
		t.Skip("requires a writable cgroup hierarchy")
	}
	return all
}

// eachHierarchy runs f on a new, empty cgroup of each hierarchy.
func eachHierarchy(t *testing.T, f func(t *testing.T, p Path)) {
	for name, h := range hierarchies(t) {
		t.Run(name, func(t *testing.T) { f(t, newCgroup(t, h, fmt.Sprintf("/gpuslice-test-%d", os.Getpid()))) })
	}
}

func newCgroup(t *testing.T, h *hierarchy, rel string) Path {
	t.Helper()
	p := Path{Mount: h.mount, Rel: rel, V2: h.v2}
	must.Do(t, os.Mkdir(p.Dir(), 0o755))
	t.Cleanup(func() { remove(t, p) })
	var err error
	if p.Inode, err = inode(p.Dir()); err != nil {
		t.Fatal(err)
	}
	return p
}

func below(t *testing.T, p Path, name string) Path {
	t.Helper()
	return newCgroup(t, &hierarchy{mount: p.Mount, v2: p.V2}, filepath.Join(p.Rel, name))
}

// remove removes a cgroup, with retries: it stays busy for a moment after its last process was reaped.
func remove(t *testing.T, p Path) {
	t.Helper()
	waitFor(t, "remove "+p.Dir(), func() bool {
		err := os.Remove(p.Dir())
		return err == nil || errors.Is(err, os.ErrNotExist)
	})
}

func member(t *testing.T, p Path) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	must.Do(t, cmd.Start())
	t.Cleanup(func() { end(cmd) })
	must.Do(t, os.WriteFile(filepath.Join(p.Dir(), "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	return cmd
}

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func waitFor(t *testing.T, what string, f func() bool) {
	t.Helper()
	await.That(t, what, f)
}

func newTestWatcher(t *testing.T) *Watcher {
	t.Helper()
	w := must.Get(NewWatcher())(t)
	t.Cleanup(func() { w.Close() })
	return w
}

// watch returns a channel that receives a value for each report.
func watch(t *testing.T, w *Watcher, p Path) <-chan struct{} {
	t.Helper()
	reports := make(chan struct{}, 8)
	must.Do(t, w.Watch(p, func() { reports <- struct{}{} }))
	return reports
}

func wantReport(t *testing.T, reports <-chan struct{}) {
	t.Helper()
	await.Value(t, "a report", reports)
}

func wantSilence(t *testing.T, reports <-chan struct{}) {
	t.Helper()
	select {
	case <-reports:
		t.Fatal("a report without a reason")
	case <-time.After(50 * time.Millisecond):
	}
}

func TestAllProcessesBelowACgroupAreItsOwn(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		deep := below(t, below(t, p, "a"), "b")
		want := []int{member(t, p).Process.Pid, member(t, deep).Process.Pid, member(t, deep).Process.Pid}
		slices.Sort(want)
		got := must.Get(PIDs(p))(t)
		expect.EqualSlices(t, got, want)
		for _, c := range []Path{p, deep} {
			if ok, err := Populated(c); !ok || err != nil {
				t.Errorf("%s is not populated (%v)", c, err)
			}
		}
	})
}

func TestACgroupThatIsEmptyGoneOrReusedIsNotPopulated(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		reused := p
		reused.Inode++
		gone := Path{Mount: p.Mount, Rel: p.Rel + "/gone", V2: p.V2}
		empty := below(t, p, "empty")
		member(t, p)
		for name, c := range map[string]Path{"empty": empty, "gone": gone, "reused": reused} {
			populated, err := Populated(c)
			if populated || err != nil {
				t.Errorf("%s: populated %v, %v", name, populated, err)
			}
			pids, err := PIDs(c)
			if len(pids) != 0 || err != nil {
				t.Errorf("%s: processes %v, %v", name, pids, err)
			}
		}
	})
}

func TestLastExitIsReported(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		w := newTestWatcher(t)
		init, other := member(t, p), member(t, below(t, p, "a"))
		reports := watch(t, w, p)
		wantSilence(t, reports)
		end(init)
		w.Recheck(p) // as a watcher of init's pidfd does
		wantSilence(t, reports)
		end(other)
		wantReport(t, reports)
		wantSilence(t, reports)
		expect.True(t, !w.Unwatch(p), "still watched after the report")
	})
}

func TestRemovalIsReportedWithoutRecheck(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		w := newTestWatcher(t)
		c, sibling := below(t, p, "a"), below(t, p, "b")
		process, stays := member(t, c), member(t, sibling)
		reports, others := watch(t, w, c), watch(t, w, sibling)
		wantSilence(t, reports)
		end(process)
		remove(t, c)
		wantReport(t, reports)
		wantSilence(t, others)
		end(stays)
	})
}

func TestWatchDirIgnoresProcesses(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		w := newTestWatcher(t)
		c := below(t, p, "a")
		process := member(t, c)
		reports := make(chan struct{}, 10)
		must.Do(t, w.WatchDir(c, func() { reports <- struct{}{} }))
		end(process)
		w.Recheck(c)
		wantSilence(t, reports)
		remove(t, c)
		wantReport(t, reports)
	})
}

func watchedPair(t *testing.T, p Path) (w *Watcher, a, b Path) {
	t.Helper()
	w = newTestWatcher(t)
	a, b = below(t, p, "a"), below(t, p, "b")
	for _, c := range []Path{a, b} {
		member(t, c)
		watch(t, w, c)
	}
	return w, a, b
}

// An event of a parent directory names one removed cgroup. A check of its siblings would cost time without an effect that a test could see.
func TestRemovalChecksOnlyTheRemovedCgroup(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		w, a, b := watchedPair(t, p)
		w.mu.Lock()
		parent := w.watches[a].wds[0]
		w.mu.Unlock()
		event := func(name string) []byte {
			raw := binary.NativeEndian.AppendUint32(nil, uint32(parent))
			raw = binary.NativeEndian.AppendUint32(raw, unix.IN_DELETE|unix.IN_ISDIR)
			raw = binary.NativeEndian.AppendUint32(raw, 0) // cookie
			raw = binary.NativeEndian.AppendUint32(raw, 16)
			return append(raw, append([]byte(name), make([]byte, 16-len(name))...)...)
		}
		for name, want := range map[string][]Path{"a": {a}, "ab": {}, "": {a, b}} {
			got := w.pathsOf(event(name))
			slices.SortFunc(got, func(a, b Path) int { return strings.Compare(a.Rel, b.Rel) })
			expect.EqualSlices(t, got, want, "checks after the event for", name)
		}
	})
}

// The kernel queues at most 16,384 events, and reports an overflow.
func TestAfterLostEventsAllAreChecked(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		w, _, _ := watchedPair(t, p)
		lost := binary.NativeEndian.AppendUint32(nil, 1<<32-1) // no watch
		lost = binary.NativeEndian.AppendUint32(lost, unix.IN_Q_OVERFLOW)
		lost = append(lost, make([]byte, 8)...) // no cookie, no name
		must.Len(t, w.pathsOf(lost), 2, "checked")
	})
}

// stall blocks the watcher in its report for the cgroup "empty" below p, so that the kernel queues further events, until goOn.
func stall(t *testing.T, w *Watcher, p Path) (goOn func()) {
	t.Helper()
	stalled, on := make(chan struct{}), make(chan struct{})
	must.Do(t, w.Watch(below(t, p, "empty"), func() { close(stalled); <-on }))
	<-stalled
	return func() { close(on) }
}

// A container may own its cgroup. Its changes there must not wake the enforcer: the kernel reports only the cgroup's end.
func TestContainersOwnChangesDoNotWakeTheWatcher(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		w := newTestWatcher(t)
		c := below(t, p, "a")
		process := member(t, c)
		reports := watch(t, w, c)
		wantSilence(t, reports)
		defer stall(t, w, p)()
		before := unread(t, w) // the end of the watch of "empty"
		for _, f := range must.Get(os.ReadDir(c.Dir()))(t) {
			if info, err := f.Info(); err != nil || os.Chmod(filepath.Join(c.Dir(), f.Name()), info.Mode()) != nil {
				t.Errorf("chmod %s: %v", f.Name(), err)
			}
		}
		inner := filepath.Join(c.Dir(), "inner")
		self := []byte(strconv.Itoa(process.Process.Pid))
		must.Do(t, errors.Join(os.Chmod(c.Dir(), 0o755), os.Mkdir(inner, 0o755), os.Remove(inner),
			os.WriteFile(filepath.Join(c.Dir(), "cgroup.procs"), self, 0)))
		expect.Equal(t, unread(t, w)-before, 0, "bytes of events")
		end(process)
		remove(t, c)
		expect.True(t, unread(t, w) != before, "no event for the cgroup's end")
	})
}

// unread returns the number of bytes that wait in w's inotify queue.
func unread(t *testing.T, w *Watcher) int {
	t.Helper()
	conn, err := w.inotify.SyscallConn()
	must.Do(t, err)
	var n int
	var ioctl error
	err = conn.Control(func(fd uintptr) { n, ioctl = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	must.Do(t, errors.Join(err, ioctl))
	return n
}

// The kernel keeps the watch of a removed cgroup until it is removed, too.
func TestReusedPathLeavesNoWatch(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		w := newTestWatcher(t)
		c := below(t, p, "a")
		process := member(t, c)
		first := watch(t, w, c)
		wantSilence(t, first)
		goOn := stall(t, w, p)
		end(process)
		remove(t, c)
		again := below(t, p, "a")
		process = member(t, again)
		second := watch(t, w, again)
		goOn()
		wantReport(t, first)
		wantSilence(t, second)
		end(process)
		w.Recheck(again)
		wantReport(t, second)
		for _, e := range must.Get(os.ReadDir("/proc/self/fdinfo"))(t) {
			if text, _ := os.ReadFile(filepath.Join("/proc/self/fdinfo", e.Name())); strings.Contains(string(text), "inotify wd:") {
				t.Errorf("watches are left: %s", text)
			}
		}
	})
}

func TestWatchReportsAnAlreadyEmptyCgroup(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		w := newTestWatcher(t)
		wantReport(t, watch(t, w, p))
		wantReport(t, watch(t, w, Path{Mount: p.Mount, Rel: p.Rel + "/gone", V2: p.V2}))
		wantReport(t, watch(t, w, Path{Mount: p.Mount, Rel: p.Rel + "/gone/deep", V2: p.V2}))
	})
}

func TestUnwatchStopsReports(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		w := newTestWatcher(t)
		process := member(t, p)
		reports := watch(t, w, p)
		expect.Error(t, w.Watch(p, func() {}), "watched twice")
		expect.True(t, w.Unwatch(p) && !w.Unwatch(p), "Unwatch must be true once")
		end(process)
		w.Recheck(p)
		wantSilence(t, reports)
		wantReport(t, watch(t, w, p)) // and can be watched again
		expect.NoError(t, errors.Join(w.Close(), w.Close()))
		expect.ErrorIs(t, w.Watch(p, func() {}), os.ErrClosed, "watch after Close")
	})
}

// A check that fails polls again later, but must not delay a watch that was added during it.
func TestFailedCheckDelaysNoOtherWatch(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		w, empty, reports := newTestWatcher(t), below(t, p, "empty"), make(chan struct{}, 1)
		w.retry = time.Hour
		var once sync.Once
		must.Do(t, w.add(p, func(Path) (bool, error) {
			once.Do(func() { expect.NoError(t, w.Watch(empty, func() { reports <- struct{}{} })) })
			return false, errors.New("no descriptor is free")
		}, nil))
		wantReport(t, reports)
	})
}

func TestEachCloseWaitsForARunningFunction(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		w := newTestWatcher(t)
		var closed atomic.Int64
		must.Do(t, w.Watch(p, func() {
			for range 2 {
				go func() { w.Close(); closed.Add(1) }()
			}
			time.Sleep(50 * time.Millisecond)
			expect.Equal(t, closed.Load(), 0, "calls of Close that returned while a function ran")
		}))
		waitFor(t, "both calls of Close return", func() bool { return closed.Load() == 2 })
	})
}

func TestWalkingSurvivesCgroupsThatVanish(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		process := member(t, p)
		stop := make(chan struct{})
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				dir := filepath.Join(p.Dir(), strconv.Itoa(i%8))
				_ = os.MkdirAll(filepath.Join(dir, "x"), 0o755)
				_ = os.Remove(filepath.Join(dir, "x"))
				_ = os.Remove(dir)
			}
		}()
		for range 300 {
			if pids, err := PIDs(p); err != nil || !slices.Equal(pids, []int{process.Process.Pid}) {
				t.Errorf("got %v, %v", pids, err)
				break
			}
		}
		close(stop)
		<-stopped
	})
}

// deep starts a process in a cgroup so deep below p that the kernel truncates its path to one that ends in end.
func deep(t *testing.T, p Path, end string) *exec.Cmd {
	t.Helper()
	const pathMax = 4096 // including the terminating zero
	dir, err := unix.Open(p.Dir(), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must.Do(t, err)
	t.Cleanup(func() { unix.Close(dir) })
	at, length := dir, len(p.Rel)
	add := func(name string) {
		t.Helper()
		must.Do(t, unix.Mkdirat(at, name, 0o755))
		parent := at
		t.Cleanup(func() {
			waitFor(t, "remove a deep cgroup", func() bool { return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR) == nil })
		})
		if at, err = unix.Openat(parent, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		fd := at
		t.Cleanup(func() { unix.Close(fd) })
		length += 1 + len(name)
	}
	for left := pathMax - 1 - len(end) - length; left > 0; left = pathMax - 1 - len(end) - length {
		n := min(left-1, 200)
		if rest := left - 1 - n; rest == 1 { // no room for another name
			n--
		}
		add(strings.Repeat("d", n))
	}
	add(strings.TrimPrefix(end, "/") + "deeper")
	cmd := exec.Command("sleep", "600")
	must.Start(t, cmd)
	procs := must.Get(unix.Openat(at, "cgroup.procs", unix.O_WRONLY|unix.O_CLOEXEC, 0))(t)
	defer unix.Close(procs)
	must.Get(unix.Write(procs, []byte(strconv.Itoa(cmd.Process.Pid))))(t)
	return cmd
}

// A container may create cgroups below its own (Docker in Docker), of any depth and name.
func TestNoDepthOfCgroupsLeadsOutOfAContainers(t *testing.T) {
	host := must.Get(Open("/proc"))(t)
	eachHierarchy(t, func(t *testing.T, p Path) {
		for _, end := range []string{"/", "/.", "/..", "/x"} {
			t.Run(end, func(t *testing.T) {
				process := deep(t, p, end)
				sibling := member(t, below(t, p, "z"))
				m, err := host.Membership(process.Process.Pid)
				expect.True(t, err != nil || m.In(p), "not in the cgroup by its path")
				if err != nil && !errors.Is(err, unix.ENAMETOOLONG) {
					t.Error(err)
				}
				above := false
				m.Each(func(mount, rel string) { above = above || mount == p.Mount && rel == p.Rel })
				expect.True(t, err != nil || above, "the cgroup is not above it")
				pids, err := PIDs(p)
				want := []int{process.Process.Pid, sibling.Process.Pid}
				slices.Sort(want)
				if err != nil || !slices.Equal(pids, want) {
					t.Errorf("processes %v, %v: want %v", pids, err, want)
				}
			})
		}
	})
}

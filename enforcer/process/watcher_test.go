// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// leaderExits makes the test program a process with a first thread that exits, and other threads that exit when stdin is closed.
const leaderExits = "GPUSLICE_TEST_LEADER_EXITS"

func TestAProcessLivesUntilItsLastThreadEnds(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), leaderExits+"=1")
	in, _ := cmd.StdinPipe()
	must.Do(t, cmd.Start())
	defer end(cmd)
	h := mustOpen(t, cmd.Process.Pid)
	w := watcher(t)
	died := make(chan struct{})
	must.Do(t, w.Watch(h, func() { close(died) }))
	waitFor(t, func() bool {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.PID))
		return strings.Contains(string(b), ") Z ")
	})
	select {
	case <-died:
		t.Fatal("the process was reported dead while a thread runs")
	case <-time.After(50 * time.Millisecond):
	}
	must.True(t, h.Alive(), "the process is dead while a thread runs")
	in.Close()
	await.Value(t, "the process is reported dead", died)
}

func init() {
	if os.Getenv(leaderExits) != "" {
		runtime.LockOSThread() // in init this is the first thread, which TestMain keeps
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(leaderExits) == "" {
		os.Exit(m.Run())
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	// End this thread only. A raw system call would keep the scheduler's processor, which on one core is the only one.
	_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
}

func watcher(t testing.TB) *Watcher {
	t.Helper()
	w := must.Get(NewWatcher())(t)
	t.Cleanup(func() { w.Close() })
	return w
}

func TestEachDeathIsReportedOnce(t *testing.T) {
	w := watcher(t)
	const n = 50
	var calls [n]atomic.Int32
	var processes [n]*exec.Cmd
	for i := range n {
		processes[i] = sleeper(t)
		must.Do(t, w.Watch(mustOpen(t, processes[i].Process.Pid), func() { calls[i].Add(1) }))
	}
	for _, p := range processes[:n/2] {
		end(p)
	}
	waitFor(t, func() bool {
		for i := range n / 2 {
			if calls[i].Load() == 0 {
				return false
			}
		}
		return true
	})
	time.Sleep(20 * time.Millisecond)
	for i := range n {
		want := int32(0)
		if i < n/2 {
			want = 1
		}
		expect.Equal(t, calls[i].Load(), want, "process", i)
	}
}

func TestWatchReportsAnExitedProcess(t *testing.T) {
	cmd := sleeper(t)
	h := mustOpen(t, cmd.Process.Pid)
	end(cmd)
	died := make(chan struct{})
	must.Do(t, watcher(t).Watch(h, func() { close(died) }))
	<-died
}

func TestUnwatchReturnsWhetherTheExitWasReported(t *testing.T) {
	w := watcher(t)
	cmd := sleeper(t)
	h := mustOpen(t, cmd.Process.Pid)
	watch := func(died func()) {
		t.Helper()
		must.Do(t, w.Watch(h, died))
	}
	watch(func() { t.Error("called after Unwatch") })
	expect.Error(t, w.Watch(h, func() {}), "watched twice")
	expect.True(t, w.Unwatch(h) && !w.Unwatch(h), "Unwatch of a living process must be true once")
	died := make(chan struct{})
	watch(func() { close(died) })
	end(cmd)
	<-died
	expect.True(t, !w.Unwatch(h), "Unwatch is true after the report")
}

func TestAReportMayWatchAnother(t *testing.T) {
	w := watcher(t)
	first, second := sleeper(t), sleeper(t)
	h1, h2 := mustOpen(t, first.Process.Pid), mustOpen(t, second.Process.Pid)
	died := make(chan struct{})
	must.Do(t, w.Watch(h1, func() {
		h1.Close()
		expect.NoError(t, w.Watch(h2, func() { close(died) }))
	}))
	end(first)
	end(second)
	<-died
}

func TestAClosedWatcherIsSilent(t *testing.T) {
	w := watcher(t)
	cmd := sleeper(t)
	h := mustOpen(t, cmd.Process.Pid)
	must.Do(t, w.Watch(h, func() { t.Error("called after Close") }))
	must.Do(t, errors.Join(w.Close(), w.Close()))
	end(cmd)
	expect.ErrorIs(t, w.Watch(h, func() {}), os.ErrClosed, "watch after Close")
	w.Unwatch(h)
}

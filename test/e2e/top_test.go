// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// processorTime sums the CPU time of a process's threads. The 10 ms steps of /proc/PID/stat are too coarse.
func processorTime(t *testing.T, pid int) (sum time.Duration) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("process %d has no threads: %v", pid, err)
	}
	for _, path := range threads {
		text := must.Get(os.ReadFile(path))(t)
		var ran time.Duration
		must.Get(fmt.Sscan(string(text), &ran))(t)
		sum += ran
	}
	return sum
}

// With 100 slices, top costs less than 1 % of a core in total, unless all processes are shown. The test allows 10 %.
func TestTopCostsLittle(t *testing.T) {
	const (
		crowd  = 100
		window = 5 * time.Second
	)
	h := &host{Host: testhost.New(t, testhost.Options{Runtimes: []string{"/bin/true"}, Enforcer: "[admission]\novercommit = 1000.0\n", Env: []string{"FAKECUDA_CONTEXT=8M"}})}
	h.compileLinked("changer", "programs/changer.c")
	var changers []int
	for i := range crowd {
		command := exec.Command(filepath.Join(h.Bin, "gpuslice"), "--socket", h.Socket(), "run", "--vram", "600M", "--name", fmt.Sprintf("top-%d", i),
			"--", filepath.Join(h.Dir, "fake", "changer"))
		command.Env = append(h.Env(), "FAKECUDA_CONTEXT=8M")
		command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		h.Must(command.Start())
		changers = append(changers, command.Process.Pid)
		t.Cleanup(func() {
			_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
			_ = command.Wait()
		})
		if started := i + 1; started%10 == 0 {
			h.Eventually("each slice holds memory", func() bool {
				all := h.Slices()
				return len(all) == started && !slices.ContainsFunc(all, func(s api.Slice) bool { return len(s.Devices) != 1 || s.Devices[0].Used == 0 })
			})
		}
	}
	info := must.Get(h.Client.Info(context.Background()))(h.T)
	spent := func(pid int) func() time.Duration {
		before := processorTime(t, pid)
		return func() time.Duration { return processorTime(t, pid) - before }
	}
	for phase, what := range []string{"nothing changes", "all slices change each second", "they do, and the processes of all are shown"} {
		idle := spent(info.PID)
		time.Sleep(window) // the test measures time
		without := idle()

		top := exec.Command(filepath.Join(h.Bin, "gpuslice"), "--socket", h.Socket(), "top")
		top.Env = append(os.Environ(), "TERM=tmux-256color") // makes top send no queries to the terminal
		terminal, err := pty.StartWithSize(top, &pty.Winsize{Rows: 50, Cols: 140})
		if err != nil {
			t.Skip("no terminal: ", err)
		}
		defer terminal.Close()
		var drawn testhost.Output
		ended := make(chan struct{})
		go func() {
			_, _ = io.Copy(&drawn, terminal) // ends with EIO
			close(ended)
		}()
		h.Eventually("top shows them", func() bool { return strings.Contains(drawn.String(), "100 slices") })
		if phase == 2 {
			_, err = terminal.WriteString("a")
			h.Must(err)
			h.Eventually("top shows processes", func() bool { return strings.Contains(drawn.String(), " process ") })
		}
		time.Sleep(time.Second) // exclude the start
		begun := len(drawn.String())
		ofTop, ofEnforcer := spent(top.Process.Pid), spent(info.PID)
		begin := time.Now()
		time.Sleep(window)
		own, with, took := ofTop(), ofEnforcer(), time.Since(begin)
		bytes := len(drawn.String()) - begun
		if phase > 0 {
			h.Eventually("changed lines are drawn", func() bool { return len(drawn.String()) > begun })
		}
		_, err = terminal.WriteString("q")
		h.Must(err)
		h.Must(top.Wait())
		<-ended
		percent := func(d time.Duration) float64 { return 100 * d.Seconds() / took.Seconds() }
		sum := percent(own + max(with-without, 0))
		t.Logf("%s: top and what it costs the enforcer are %.2f %% of a core. Top: %.2f %%; the enforcer: %.2f %% with it, %.2f %% without; %d bytes drawn",
			what, sum, percent(own), percent(with), percent(without), bytes)
		expect.True(t, sum <= 10, "that is too much")
		for _, pid := range changers { // gpuslice run forwards the signal
			if phase == 0 {
				h.Must(syscall.Kill(pid, syscall.SIGUSR1))
			}
		}
	}
}

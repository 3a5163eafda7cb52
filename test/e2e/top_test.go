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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// processorTime is what a process has had.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var ticks int
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}

// Top at a refresh a second with 100 slices takes less than 1 % of a core, of its own and of the enforcer's together: ten times that is
// allowed here.
func TestTopCostsLittle(t *testing.T) {
	const (
		crowd  = 100
		window = 5 * time.Second
	)
	h := testhost.New(t, testhost.Options{Runtimes: []string{"/bin/true"}, Enforcer: "[admission]\novercommit = 1000.0\n", Env: []string{"FAKECUDA_CONTEXT=8M"}})
	for i := range crowd {
		command := exec.Command(filepath.Join(h.Bin, "gpuslice"), "--socket", h.Socket(), "run", "--vram", "600M", "--name", fmt.Sprintf("top-%d", i),
			"--", filepath.Join(h.Bin, "demo", "cuda_hog"), "1048576")
		command.Env = append(h.Env(), "FAKECUDA_CONTEXT=8M")
		command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		h.Must(command.Start())
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
	info, err := h.Client.Info(context.Background())
	h.Must(err)
	spent := func(pid int) func() time.Duration {
		before := processorTime(t, pid)
		return func() time.Duration { return processorTime(t, pid) - before }
	}
	idle := spent(info.PID)
	time.Sleep(window) // what is measured is time
	without := idle()

	top := exec.Command(filepath.Join(h.Bin, "gpuslice"), "--socket", h.Socket(), "top")
	top.Env = append(os.Environ(), "TERM=tmux-256color") // which is asked nothing that this test would have to answer
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
	h.Eventually("top shows them", func() bool { return strings.Contains(drawn.String(), "100 slices") }) // that it starts is no refresh
	ofTop, ofEnforcer := spent(top.Process.Pid), spent(info.PID)
	begin := time.Now()
	time.Sleep(window)
	own, with, took := ofTop(), ofEnforcer(), time.Since(begin)
	_, err = terminal.WriteString("q")
	h.Must(err)
	h.Must(top.Wait())
	<-ended
	percent := func(d time.Duration) float64 { return 100 * d.Seconds() / took.Seconds() }
	t.Logf("top: %.1f %% of a core; the enforcer: %.1f %% with it, %.1f %% without", percent(own), percent(with), percent(without))
	if sum := percent(own + max(with-without, 0)); sum > 10 {
		t.Errorf("top and what it costs the enforcer are %.1f %% of a core", sum)
	}
}

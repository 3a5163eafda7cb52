//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// worker is a process that follows commands (programs/worker.c), with the model of its memory.
type worker struct {
	w     *world
	slice *slice
	cmd   *exec.Cmd // nil if it is another worker's child
	run   *exec.Cmd // `gpuslice run --join`, its parent, if it joined a session
	pid   int
	in    *os.File
	out   *os.File
	lines *bufio.Reader
	dead  bool

	attached bool
	contexts [devices]bool
	held     []allocation
	gaveUp   bool      // it waited in vain for an enforcer and does not wait again
	retryAt  time.Time // it found no enforcer and does not retry before then
}

type allocation struct {
	number, device int
	bytes          uint64
}

func (w *world) newWorker(s *slice, cmd *exec.Cmd) *worker {
	w.Helper()
	p := &worker{w: w, slice: s, cmd: cmd}
	in, to, err := os.Pipe()
	w.must(err)
	from, out, err := os.Pipe()
	w.must(err)
	cmd.Stdin, cmd.Stdout = in, out
	cmd.Stderr = os.Stderr
	if cmd.Env == nil {
		cmd.Env = w.env()
	}
	w.must(cmd.Start())
	in.Close()
	out.Close()
	p.in, p.out, p.lines, p.pid = to, from, bufio.NewReader(from), cmd.Process.Pid
	w.workers = append(w.workers, p)
	return p
}

func (p *worker) readLine() string {
	p.w.Helper()
	_ = p.out.SetReadDeadline(time.Now().Add(patience))
	line, err := p.lines.ReadString('\n')
	if os.IsTimeout(err) {
		p.w.fail("process %d does not answer within %v", p.pid, patience)
	}
	if err != nil {
		return "gone"
	}
	return strings.TrimSpace(line)
}

func (p *worker) writeLine(format string, args ...any) {
	fmt.Fprintf(p.in, format+"\n", args...) // a process that is gone gives no answer
}

func (p *worker) ask(format string, args ...any) string {
	p.w.Helper()
	time.Sleep(time.Until(p.retryAt))
	p.writeLine(format, args...)
	return p.readLine()
}

func (p *worker) kill() {
	if !p.dead {
		_ = unix.Kill(p.pid, unix.SIGKILL)
	}
	p.wantGone()
}

// reap waits for a child that ends and returns its result. A child that does not end fails the round.
func (w *world) reap(cmd *exec.Cmd) error {
	w.Helper()
	err := ending(cmd)
	if errors.Is(err, errLate) {
		w.fail("%v", err)
	}
	return err
}

var errLate = errors.New("it goes on")

// ending is reap without failing: errLate means that the child still runs.
func ending(cmd *exec.Cmd) error {
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		return fmt.Errorf("after %v process %d, which should end, has not: %w (%v)", patience, cmd.Process.Pid, errLate, cmd.Args)
	}
}

func (p *worker) wantGone() {
	p.w.Helper()
	if p.dead {
		return
	}
	if p.cmd != nil {
		_ = p.w.reap(p.cmd)
	} else {
		p.w.eventually(fmt.Sprintf("process %d has ended", p.pid), func() bool { return !alive(p.pid) })
	}
	p.w.ended(p.run)
	p.forget()
}

func (p *worker) forget() {
	p.dead = true
	p.in.Close()
	p.out.Close()
	if p.slice != nil {
		if pool := p.slice.pool; pool != nil && (p.w.downReason != "" || p.w.mayFail != "") {
			for device := range devices {
				pool.exitedBytes[device] += p.on(device)
			}
		}
		p.slice.workers = without(p.slice.workers, p)
	}
}

func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

func (p *worker) on(device int) uint64 {
	var bytes uint64
	if p.contexts[device] {
		bytes = contextBytes
	}
	for _, a := range p.held {
		if a.device == device {
			bytes += a.bytes
		}
	}
	return bytes
}

// listed returns NVML's memory for all processes, by device and pid.
func (w *world) listed() (all [devices]map[int]uint64) {
	w.Helper()
	for device := range devices {
		all[device] = make(map[int]uint64)
		words := strings.Fields(w.observer.ask("list %d", device))
		if len(words) == 0 || words[0] != "ok" {
			w.fail("NVML does not answer the observer: %q", words)
		}
		for _, word := range words[1:] {
			pid, bytes, _ := strings.Cut(word, ":")
			n, err := strconv.Atoi(pid)
			w.must(err)
			all[device][n], err = strconv.ParseUint(bytes, 10, 64)
			w.must(err)
		}
	}
	return all
}

func without[E comparable](list []E, e E) []E {
	var rest []E
	for _, other := range list {
		if other != e {
			rest = append(rest, other)
		}
	}
	return rest
}

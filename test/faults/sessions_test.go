//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
)

// registerSession starts a session by `gpuslice run`; nil as for registerContainer.
func (w *world) registerSession(r *rand.Rand) *slice {
	w.Helper()
	s := &slice{id: w.name(), limit: quota(r), state: active, session: true}
	s.run = exec.Command(binary(w, "gpuslice"), "--socket", w.socket(), "run", "--name", s.id, "--vram", toMiB(s.limit), "--quiet", "--", programs["worker"])
	w.add(s)
	p := w.newWorker(s, s.run)
	p.cmd = nil // the worker is its child
	said := p.readLine()
	if said == "gone" {
		err := w.reap(s.run)
		p.forget()
		w.drop(s)
		if w.mayFail == "" && w.downReason == "" {
			w.fail("the session %s was refused: %v", s.id, err)
		}
		w.say("… refused")
		return nil
	}
	if w.downReason != "" {
		w.fail("the session %s has begun, but %s", s.id, w.downReason)
	}
	pid, err := strconv.Atoi(strings.TrimPrefix(said, "ready "))
	if err != nil {
		w.fail("the session %s began with %q", s.id, said)
	}
	p.pid = pid
	s.workers = []*worker{p}
	s.token = p.env(api.TokenEnv)
	return s
}

func (w *world) stopSession(s *slice) {
	w.Helper()
	for len(s.workers) > 0 {
		s.workers[0].kill()
	}
	w.ended(s.run)
	w.drop(s)
}

// ended waits for a `gpuslice run` after its processes have ended.
func (w *world) ended(run *exec.Cmd) {
	w.Helper()
	if run == nil {
		return
	}
	_ = w.reap(run) // exit status 137: its command was killed
}

func (w *world) spawn(parent *worker) *worker {
	w.Helper()
	p := &worker{w: w, slice: parent.slice}
	in, out := filepath.Join(w.dir, "in"), filepath.Join(w.dir, "out")
	for _, fifo := range []string{in, out} {
		w.must(unix.Mkfifo(fifo, 0o600))
	}
	answer := parent.ask("spawn %s %s", in, out)
	pid, err := strconv.Atoi(strings.TrimPrefix(answer, "ok "))
	if err != nil {
		w.fail("a process could not start another one: %q", answer)
	}
	p.pid = pid
	p.in, err = os.OpenFile(in, os.O_WRONLY|unix.O_NONBLOCK, 0)
	w.must(err)
	p.out, err = os.OpenFile(out, os.O_RDONLY|unix.O_NONBLOCK, 0)
	w.must(err)
	p.lines = bufio.NewReader(p.out)
	w.workers = append(w.workers, p)
	w.must(os.Remove(in))
	w.must(os.Remove(out))
	if said := p.readLine(); said != fmt.Sprint("ready ", pid) {
		w.fail("a process's child: %q", said)
	}
	s := parent.slice
	n := slices.IndexFunc(s.workers, func(p *worker) bool { return p.run != nil })
	if n < 0 {
		n = len(s.workers)
	}
	s.workers = slices.Insert(s.workers, n, p) // before joined ones: the session ends with the first
	return p
}

// joinSession starts a process by `gpuslice run --join`; only its token ties it to the session.
func joinSession(w *world, r *rand.Rand) bool {
	s := w.pickSlice(r, func(s *slice) bool {
		return s.session && s.state == active && s.run != nil && len(s.workers) < mostWorkers
	})
	if s == nil {
		return false
	}
	w.say("a process joins %s", s.id)
	run := exec.Command(binary(w, "gpuslice"), "--socket", w.socket(), "run", "--join", s.token, "--quiet", "--", programs["worker"])
	p := w.newWorker(s, run)
	p.cmd, p.run = nil, run
	said := p.readLine()
	if said == "gone" {
		p.dead = true
		w.ended(run)
		if w.mayFail == "" {
			w.fail("a process cannot join %s", s.id)
		}
		w.say("… refused")
		return true
	}
	var err error
	if p.pid, err = strconv.Atoi(strings.TrimPrefix(said, "ready ")); err != nil {
		w.fail("the process that joins %s began with %q", s.id, said)
	}
	s.workers = append(s.workers, p)
	return true
}

func (p *worker) env(name string) string {
	p.w.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
	p.w.must(err)
	for entry := range bytes.SplitSeq(text, []byte{0}) {
		if key, value, _ := strings.Cut(string(entry), "="); key == name {
			return value
		}
	}
	p.w.fail("process %d has no %s", p.pid, name)
	return ""
}

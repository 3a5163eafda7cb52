//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
)

// fill uses up the blocks and inodes of dir's file system. free removes its files.
func (w *world) fill(dir string) (free func()) {
	place := filepath.Join(dir, "filler")
	w.must(os.Mkdir(place, 0o700))
	file, err := os.Create(filepath.Join(place, "bytes"))
	w.must(err)
	chunk := make([]byte, 1<<16)
	for len(chunk) > 0 {
		if _, err := file.Write(chunk); err != nil {
			chunk = chunk[:len(chunk)/2]
		}
	}
	file.Close()
	for n := 0; ; n++ {
		if unix.Mkdir(filepath.Join(place, fmt.Sprint(n)), 0o700) != nil || n == 100000 {
			break
		}
	}
	return func() { w.must(os.RemoveAll(place)) }
}

// killWhileFull kills the enforcer and starts the next one. It must start, or report ENOSPC.
func (w *world) killWhileFull() {
	w.Helper()
	w.daemon.end(unix.SIGKILL)
	w.must(w.daemon.launch("", 0))
	if err := w.daemon.up(); errors.Is(err, errEnded) {
		w.say("it does not start")
		w.downReason = "the enforcer cannot start"
		w.hasSaid(unix.ENOSPC)
	} else if err != nil {
		w.fail("start the enforcer: %v", err)
	}
}

// endShortage frees the space. Then this enforcer, or the next one, must grant requests that it rejected.
func (w *world) endShortage(r *rand.Rand, free func()) string {
	w.Helper()
	w.operations(3)
	free()
	if w.downReason != "" || r.IntN(2) == 0 {
		w.restart(unix.SIGKILL)
	}
	w.downReason = ""
	return w.checkRecovered(r)
}

func runFull(w *world, r *rand.Rand) string {
	free := w.fillRun(r)
	free()
	return w.checkRecovered(r)
}

func runFullAndKilled(w *world, r *rand.Rand) string {
	free := w.fillRun(r)
	w.killWhileFull()
	return w.endShortage(r, free)
}

func (w *world) fillRun(r *rand.Rand) (free func()) {
	free = w.fill(filepath.Join(w.dir, "run"))
	w.mayFail, w.full = "the run directory is full", true
	for _, s := range w.slices {
		s.mayRefuseAttach = !slices.ContainsFunc(s.workers, func(p *worker) bool { return p.attached })
	}
	w.operations(6)
	beginContainer(w, r)
	beginSession(w, r)
	return free
}

// checkRecovered checks that operations that failed during the fault succeed again.
func (w *world) checkRecovered(r *rand.Rand) string {
	w.mayFail, w.full = "", false
	for _, s := range w.slices {
		s.mayRefuseAttach = false
	}
	w.check()
	w.trim(mostSlices)
	w.registerContainer(r)
	w.check()
	w.trim(mostSlices)
	return "refused or done, and well afterwards"
}

// readOnly makes the state directory read-only, while no enforcer runs: a file system with a file open for writing stays writable. The next
// enforcer must refuse to start.
func readOnly(w *world, r *rand.Rand) string {
	state := filepath.Join(w.dir, "state")
	w.populate(r)
	w.daemon.end(unix.SIGKILL)
	w.must(unix.Mount("", state, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=4m"))
	w.must(w.daemon.launch("", 0))
	err := w.daemon.up()
	w.downReason = "the enforcer cannot start"
	if err == nil {
		w.fail("the enforcer has started with a read-only state directory")
	}
	w.operations(4)
	w.must(unix.Mount("", state, "", unix.MS_REMOUNT, "size=4m"))
	w.start()
	w.downReason = ""
	return w.checkRecovered(r)
}

func (w *world) freeze(r *rand.Rand) (*slice, func()) {
	w.populate(r)
	s := w.pickSlice(r, func(s *slice) bool { return !s.session && s.state == active })
	if s == nil {
		return nil, nil
	}
	w.say("%s is frozen", s.id)
	set := func(value string) { w.must(os.WriteFile(filepath.Join(s.cgroup, "cgroup.freeze"), []byte(value), 0)) }
	set("1")
	s.frozen = true
	w.eventually("the container is frozen", func() bool {
		text, _ := os.ReadFile(filepath.Join(s.cgroup, "cgroup.events"))
		return strings.Contains(string(text), "frozen 1")
	})
	return s, func() { set("0"); s.frozen = false }
}

func frozen(w *world, r *rand.Rand) string {
	s, thaw := w.freeze(r)
	if s == nil {
		return ""
	}
	w.operations(6)
	if p := s.workers[len(s.workers)-1]; p != s.init {
		w.say("process %d of %s is killed while it is frozen", p.pid, s.id)
		p.kill()
		w.check()
	}
	thaw()
	return "harms nobody else; " + whole
}

func frozenAndKilled(w *world, r *rand.Rand) string {
	s, thaw := w.freeze(r)
	if s == nil {
		return ""
	}
	w.restart(unix.SIGKILL)
	w.check()
	w.operations(4)
	thaw()
	return "harms nobody else; " + whole
}

func malformedRequests(w *world, r *rand.Rand) string {
	var open []net.Conn
	for _, text := range []string{"", "GET /v1/sl", "POST /v1/slices HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"id\":", "\x00\xff\n\n", "DELETE"} {
		for range 8 {
			conn, err := net.Dial("unix", w.socket())
			w.must(err)
			_, err = conn.Write([]byte(text))
			w.must(err)
			open = append(open, conn)
		}
	}
	w.operations(5)
	for _, conn := range open {
		conn.Close()
	}
	return "harms nobody else"
}

func malformedAttaches(w *world, r *rand.Rand) string {
	s := w.pickSlice(r, func(s *slice) bool { return s.state == active })
	if s == nil {
		s = w.registerContainer(r)
	}
	sockets, err := filepath.Glob(filepath.Join(w.slicesDir(), "*", "bind", api.AttachSocketName))
	w.must(err)
	w.say("malformed messages to %d attach sockets, including that of slice %s", len(sockets), s.id)
	var open []net.Conn
	for _, socket := range sockets {
		for _, n := range []int{0, 1, 63, 64, 65, 4096} {
			conn, err := net.Dial("unixpacket", socket)
			w.must(err)
			message := make([]byte, n)
			for i := range message {
				message[i] = byte(r.Uint32())
			}
			if n > 0 {
				_, _ = conn.Write(message)
			}
			open = append(open, conn)
		}
	}
	w.operations(5)
	for _, conn := range open {
		conn.Close()
	}
	return "harms nobody else"
}

// breakNVML makes NVML fail or hang. The enforcer must then rely on its ledger alone.
func (w *world) breakNVML(fault string, kill bool) string {
	w.must(os.WriteFile(w.nvmlFault(), []byte(fault), 0o644))
	w.operations(4)
	if kill {
		w.noTruth = true
		w.restart(unix.SIGKILL)
		w.operations(3)
		w.noTruth = false
	}
	w.must(os.Remove(w.nvmlFault()))
	if kill {
		w.check()
		w.restart(unix.SIGKILL)
	}
	return "the ledger remains correct"
}

// overwriteLedger has a process overwrite its ledger, which must harm only its own slice. (Members of a pool share its ledger, and each can
// damage it.)
func overwriteLedger(w *world, r *rand.Rand) string {
	victim := func(p *worker) bool { return p.attached && p.slice.state == active && p.slice.pool == nil }
	p := w.pickWorker(r, victim)
	if p == nil {
		w.trim(mostSlices - 1)
		s := w.registerContainer(r)
		s.init.makeContext(0)
		p = s.init
	}
	s := p.slice
	s.state = damaged
	w.say("process %d overwrites the ledger of %s", p.pid, s.id)
	got := p.ask("scribble %d %d", r.Uint32(), 1+r.IntN(2000))
	// With the policy kill it may be killed before it answers.
	if !strings.HasPrefix(got, "ok ") && w.policy != api.Kill || got == "ok 0" {
		w.fail("process %d has not found its ledger: %q", p.pid, got)
	}
	if w.policy == api.Kill {
		w.stop(s) // its processes may be killed at any moment
	}
	w.operations(5)
	if slices.Contains(w.slices, s) {
		w.stop(s)
	}
	return "harms nobody else"
}

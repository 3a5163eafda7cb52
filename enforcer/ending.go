// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// This file ends processes. Those of a container are in its cgroup and below. Those of a session are its first process and the descendants; the first
// one comes last, since its orphans would no longer be known as descendants. With `gpuslice run` that is gpuslice itself. It exits by itself after
// the last descendant, with its command's exit code, and it forwards signals to the command, which would get them twice.

const (
	// termQuiet: SIGTERM has reached all processes once no new one appears for this time.
	termQuiet = 20 * time.Millisecond
	// minKillInterval and maxKillInterval are the bounds of the time between rounds of SIGKILL. More than one is needed for processes forked in
	// between, or held by the kernel in a system call.
	minKillInterval, maxKillInterval = 20 * time.Millisecond, 2 * time.Second
	// firstExit is the time for a session's first process to exit by itself, once it is the last one.
	firstExit = 2 * time.Second
	// killTimeout is the time after which processes that do not exit are reported.
	killTimeout = 10 * time.Second
)

// terminate sends SIGTERM once to each process of the slice, including those forked in the meantime, for the grace at most.
func (e *Enforcer) terminate(s *slice) {
	type one struct {
		pid   int
		start uint64
	}
	sent := make(map[one]bool)
	begun := time.Now()
	for appeared := begun; ; time.Sleep(termQuiet / 4) {
		before := len(sent)
		e.eachProcess(s, func(p *process.Handle) {
			if who := (one{p.PID, p.Start}); !sent[who] {
				sent[who] = true
				e.signal(s, p, syscall.SIGTERM)
			}
		})
		if len(sent) > before {
			appeared = time.Now()
		}
		if len(sent) == 0 || time.Since(appeared) >= termQuiet || time.Since(begun) >= e.options.Grace {
			break
		}
	}
	if len(sent) == 0 && s.request.Session {
		e.signalFirst(s, syscall.SIGTERM)
	}
}

// endByForce kills the slice's processes until none is left, and then releases it. It returns then, or when ctx ends.
func (e *Enforcer) endByForce(ctx context.Context, s *slice) {
	begun, reported := time.Now(), false
	var none time.Time // since when at most a session's first process is left
	for wait := minKillInterval; ; wait = min(2*wait, maxKillInterval) {
		remaining := e.killRound(s)
		killpoint.Pass("expire.killed")
		switch {
		case remaining > 0:
			none = time.Time{}
		case none.IsZero():
			none = time.Now()
		case s.request.Session && time.Since(none) >= firstExit:
			e.signalFirst(s, syscall.SIGKILL)
		}
		e.ended(s) // unless noticed already
		if !reported && remaining > 0 && time.Since(begun) >= killTimeout {
			reported = true
			s.log.Error("processes of an expired slice did not exit after SIGKILL: the kernel holds them in a system call, or they fork faster", "count", remaining)
		}
		if !e.sleep(ctx, s, wait) {
			return
		}
	}
}

// killRound sends SIGKILL to all current processes of the slice, except a session's first one, and returns their number.
func (e *Enforcer) killRound(s *slice) (found int) {
	if !s.request.Session {
		// All at once, so that none can escape by a fork.
		if err := cgroup.Kill(s.cgroup); err != nil && !errors.Is(err, cgroup.ErrNoKill) {
			s.log.Error("slice's cgroup not killed", "cgroup", s.cgroup.String(), "err", err)
		}
	}
	e.eachProcess(s, func(p *process.Handle) {
		found++
		e.signal(s, p, syscall.SIGKILL)
	})
	return found
}

func (e *Enforcer) signal(s *slice, p *process.Handle, sig syscall.Signal) {
	if err := p.Signal(sig); err != nil && !errors.Is(err, process.ErrDead) {
		s.log.Error("process of the slice not signalled", "pid", p.PID, "signal", sig.String(), "err", err)
		return
	}
	s.log.Debug("process of the slice signalled", "pid", p.PID, "signal", sig.String())
}

// signalFirst signals a session's first process, except the enforcer itself (`gpuslice run --embedded`).
func (e *Enforcer) signalFirst(s *slice, sig syscall.Signal) {
	p, err := process.Again(s.request.PID, s.initStart)
	if err != nil {
		return // exited
	}
	defer p.Close()
	if p.PID != os.Getpid() && s.maySignal(p.PID) {
		e.signal(s, p, sig)
	}
}

// eachProcess calls f for each living process of the slice that its user may signal, except a session's first one.
func (e *Enforcer) eachProcess(s *slice, f func(*process.Handle)) {
	pids, err := s.pids()
	if err != nil {
		s.log.Error("slice's processes not listed", "err", err)
	}
	for _, pid := range pids {
		if pid == os.Getpid() || s.request.Session && pid == s.request.PID {
			continue
		}
		p, err := process.Open(pid)
		if err != nil {
			continue // exited
		}
		// The pid may be another process since it was listed.
		if s.mine(pid) && s.maySignal(pid) && p.Alive() {
			f(p)
		}
		p.Close()
	}
}

// mine reports whether pid is the slice's to end. For a container that is any process in its cgroup, even in a slice that it has made there; for a
// session, none in a container with a slice.
func (s *slice) mine(pid int) bool {
	if s.request.Session {
		return s.e.owner(pid) == s
	}
	membership, err := membershipOf(s.e.host, pid)
	if err != nil && !errors.Is(err, syscall.ENAMETOOLONG) {
		return false
	}
	in, unknown := process.PIDNamespaces(pid)
	if err == nil && (!membership.In(s.cgroup) || !s.cgroup.Exists()) {
		return false
	}
	return unknown == nil && s.began(in) || membership.Is(s.cgroup) && s.e.byNamespace(in) == nil
}

// maySignal reports whether a process may be signalled on behalf of the slice. In a session only processes that its users could signal may be: not one
// with another user's rights, as a setuid program has.
func (s *slice) maySignal(pid int) bool {
	if !s.request.Session {
		return true
	}
	may := func(root int, uid uint32) bool {
		return process.Ancestor(pid, root) && (uid == 0 || ownedBy(pid, uid))
	}
	if may(s.request.PID, s.request.UID) {
		return true
	}
	for _, j := range s.joined.All() {
		if may(j.PID, j.UID) {
			return true
		}
	}
	return false
}

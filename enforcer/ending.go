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

// The end of processes. Those of a container are all in its cgroup and below it. Those of a session are its first process
// and what descends from it, and the first process comes last: what it leaves behind would no longer be known as its
// descendants. `gpuslice run` is such a first process. It ends by itself when no descendant is left, with its command's exit
// code; and it hands signals on to its command, which would get them twice.

const (
	// termQuiet is how long no new process of the slice may appear until all have been asked to end.
	termQuiet = 20 * time.Millisecond
	// minKillInterval and maxKillInterval are between two rounds of killing, which are needed for processes that were forked
	// meanwhile, or that the kernel holds in a system call.
	minKillInterval, maxKillInterval = 20 * time.Millisecond, 2 * time.Second
	// firstExit is how long a session's first process has to exit by itself once it is the last one.
	firstExit = 2 * time.Second
	// killTimeout is after what time it is reported that processes do not exit.
	killTimeout = 10 * time.Second
)

// terminate sends SIGTERM once to each process of the slice, also to those that are forked meanwhile: for the grace at most.
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

// endByForce kills the slice's processes until there are none, and releases it then. It returns when that is so, or
// ctx ends.
func (e *Enforcer) endByForce(ctx context.Context, s *slice) {
	begun, reported := time.Now(), false
	var none time.Time // since when there was none but a session's first one
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
		e.ended(s) // unless that was noticed already
		if !reported && remaining > 0 && time.Since(begun) >= killTimeout {
			reported = true
			s.log.Error("processes of an expired slice did not exit after SIGKILL: the kernel holds them in a system call, or they fork faster", "count", remaining)
		}
		if !e.sleep(ctx, s, wait) {
			return
		}
	}
}

// killRound sends SIGKILL to all processes of the slice that there are, but for a session's first one, and says how many it has found.
func (e *Enforcer) killRound(s *slice) (found int) {
	if !s.request.Session {
		// All at once, so that none can fork away.
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

// signalFirst is for a session's first process. It is not for this process, which is that of `gpuslice run --embedded`.
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

// eachProcess calls f for all processes of the slice that are alive and that the slice's user may signal, but for a session's first one.
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
		// Its pid may be another's than when it was listed.
		if s.mine(pid) && s.maySignal(pid) && p.Alive() {
			f(p)
		}
		p.Close()
	}
}

// mine says whether pid is the slice's to end. A container's are all that are in its cgroup, whatever slices they have
// made for themselves in there; a session's are not those in a container that has a slice.
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

// maySignal says whether a process of the slice may be sent a signal for whom the slice is. A session is its users': one of its processes that
// runs with another user's rights, as a setuid program does, they could not end themselves.
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

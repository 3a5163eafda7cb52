// SPDX-License-Identifier: Apache-2.0

package members

import (
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// A session's first process ends last, since its orphans would no longer be known as descendants. With `gpuslice run` it is gpuslice itself, which
// exits after the last descendant, and forwards signals to its command, which would get them twice.

const (
	// termQuiet: SIGTERM has reached all processes once no new one appears for this time.
	termQuiet = 20 * time.Millisecond
	// Several rounds of SIGKILL are needed for processes forked in between, or held by the kernel in a system call.
	minKillInterval, maxKillInterval = 20 * time.Millisecond, 2 * time.Second
	// firstExit is how long a session's first process has to exit by itself, once it is the last one.
	firstExit = 2 * time.Second
	// killTimeout is the time after which processes that do not exit are reported.
	killTimeout = 10 * time.Second
)

// Terminate sends SIGTERM once to each process, including those forked in the meantime, for the grace at most.
func (g *Group) Terminate(grace time.Duration) {
	sent, begun := make(map[process.Identity]bool), time.Now()
	for appeared := begun; ; time.Sleep(termQuiet / 4) {
		before := len(sent)
		g.Each(func(p *process.Handle) {
			if who := (process.Identity{PID: p.PID, Start: p.Start}); !sent[who] {
				sent[who] = true
				g.Signal(p, syscall.SIGTERM)
			}
		})
		if len(sent) > before {
			appeared = time.Now()
		}
		if len(sent) == 0 || time.Since(appeared) >= termQuiet || time.Since(begun) >= grace {
			break
		}
	}
	if len(sent) == 0 && g.Session {
		g.signalFirst(syscall.SIGTERM)
	}
}

// Kill kills all processes, in rounds, until next returns false. It calls that after each round, with the time until the following one.
func (g *Group) Kill(next func(wait time.Duration) bool) {
	begun, reported := time.Now(), false
	var none time.Time // since when at most a session's first process is left
	for wait := minKillInterval; ; wait = min(2*wait, maxKillInterval) {
		remaining := g.KillRound()
		killpoint.Pass("expire.killed")
		switch {
		case remaining > 0:
			none = time.Time{}
		case none.IsZero():
			none = time.Now()
		case g.Session && time.Since(none) >= firstExit:
			g.signalFirst(syscall.SIGKILL)
		}
		if !reported && remaining > 0 && time.Since(begun) >= killTimeout {
			reported = true
			g.Log.Error("processes of an expired slice did not exit after SIGKILL: the kernel holds them in a system call, or they fork faster", "count", remaining)
		}
		if !next(wait) {
			return
		}
	}
}

// KillRound sends SIGKILL to all current processes, except a session's first one, and returns their number.
func (g *Group) KillRound() (found int) {
	if !g.Session {
		// All at once, so that none can escape by a fork.
		if err := cgroup.Kill(g.Cgroup); err != nil && !errors.Is(err, cgroup.ErrNoKill) {
			g.Log.Error("slice's cgroup not killed", "cgroup", g.Cgroup.String(), "err", err)
		}
	}
	g.Each(func(p *process.Handle) {
		found++
		g.Signal(p, syscall.SIGKILL)
	})
	return found
}

// Signal signals a process that MaySignal allows.
func (g *Group) Signal(p *process.Handle, sig syscall.Signal) {
	if err := p.Signal(sig); err != nil && !errors.Is(err, process.ErrDead) {
		g.Log.Error("process of the slice not signalled", "pid", p.PID, "signal", sig.String(), "err", err)
		return
	}
	g.Log.Debug("process of the slice signalled", "pid", p.PID, "signal", sig.String())
}

// signalFirst signals a session's first process, except the enforcer itself (`gpuslice run --embedded`).
func (g *Group) signalFirst(sig syscall.Signal) {
	p, err := process.Again(g.PID, g.Start)
	if err != nil {
		return // exited
	}
	defer p.Close()
	if p.PID != os.Getpid() && g.MaySignal(p.PID) {
		g.Signal(p, sig)
	}
}

// Each calls f for each living process that the slice's user may signal, except a session's first one.
func (g *Group) Each(f func(*process.Handle)) {
	pids, err := g.pids()
	if err != nil {
		g.Log.Error("slice's processes not listed", "err", err)
	}
	for _, pid := range pids {
		if pid == os.Getpid() || g.Session && pid == g.PID {
			continue
		}
		p, err := process.Open(pid)
		if err != nil {
			continue // exited
		}
		// The pid may be another process since it was listed.
		if g.ends(pid) && g.MaySignal(pid) && p.Alive() {
			f(p)
		}
		p.Close()
	}
}

// ends reports whether a process ends with the slice. With a container's does any process in its cgroup, even in a slice that it has made there; with
// a session's, none in a container with a slice.
func (g *Group) ends(pid int) bool {
	if g.Session {
		return g.Index.Owner(pid) == g
	}
	membership, err := g.Index.Membership(pid)
	if err != nil && !errors.Is(err, syscall.ENAMETOOLONG) {
		return false
	}
	in, unknown := process.PIDNamespaces(pid)
	if err == nil && (!membership.In(g.Cgroup) || !g.Cgroup.Exists()) {
		return false
	}
	return unknown == nil && g.began(in) || membership.Is(g.Cgroup) && g.Index.byNamespace(in) == nil
}

// MaySignal reports whether a process may be signalled on behalf of the slice. In a session only processes that its users could signal may be: not one
// with another user's rights, as a setuid program has.
func (g *Group) MaySignal(pid int) bool {
	if !g.Session {
		return true
	}
	may := func(root int, uid uint32) bool {
		return process.Ancestor(pid, root) && (uid == 0 || g.Index.Owned(pid, uid))
	}
	if may(g.PID, g.UID) {
		return true
	}
	for _, j := range g.Joined() {
		if may(j.PID, j.UID) {
			return true
		}
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

// Package members finds the slice of a process, and ends processes. A container's processes are those in its cgroup and below; a session's are its first
// process, those that joined it, and the descendants of all of them. It knows nothing of quotas, records and events.
//
// The package must never signal a process, or keep one, by its pid alone: a fact about a pid counts once a handle says that the process is alive. No
// file of the kernel is read with a lock held.
package members

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"slices"
	"strconv"

	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// Group is the processes of one slice. Its exported fields do not change once it is in an Index.
type Group struct {
	Index   *Index
	Log     *slog.Logger
	ID      string // the slice's
	Session bool
	PID     int    // of the first process
	Start   uint64 // its start time
	UID     uint32 // of a session's user
	Cgroup  cgroup.Path
	PIDNS   uint64          // inode of the pid namespace of a container's first process; 0 if unknown
	Leads   bool            // that process is the first in its pid namespace: all others there descend from it, or joined
	First   *process.Handle // nil if it is not watched (WatchesFirst), or had exited when the enforcer restarted

	mu        guard.Mutex[guard.Leaf] // guards the fields below, which are replaced, never changed
	joined    []Joined
	remaining []*process.Handle
}

// Joined is a process that joined a session.
type Joined struct {
	*process.Handle
	UID uint32
}

// maxJoined bounds the processes that join a session, not their descendants. Each attach of any process checks all of them.
const maxJoined = 256

// Has reports whether a process belongs to the group and, after that was found, was still alive.
func (g *Group) Has(p *process.Handle) bool { return g.Index.Owner(p.PID) == g && p.Alive() }

// WatchesFirst reports whether the group has a handle of its first process. A cgroup of version 2 reports when it is empty, which saves that.
func (g *Group) WatchesFirst() bool { return !g.Cgroup.V2 }

func (g *Group) WatchFirst(exited func()) error {
	if g.First == nil {
		return nil
	}
	return g.Index.Deaths.Watch(g.First, exited)
}

func (g *Group) FirstLives() bool {
	p, err := process.Again(g.PID, g.Start)
	if err != nil {
		return !errors.Is(err, process.ErrDead) // unless known to be dead
	}
	p.Close()
	return true
}

// Alive reports whether a process of the group is alive. Of a session only the first one counts.
func (g *Group) Alive() bool {
	return g.First != nil && g.First.Alive() || !g.Session && g.populated()
}

// Lingers reports whether processes of a released slice are alive: those of a container may use its mounts, those of a session its memory.
func (g *Group) Lingers() bool {
	if g.Session {
		return slices.ContainsFunc(g.Remaining(), (*process.Handle).Alive)
	}
	return g.populated()
}

func (g *Group) populated() bool {
	populated, err := cgroup.Populated(g.Cgroup)
	if err != nil {
		g.Log.Error("cannot tell whether the slice's cgroup is empty", "err", err)
	}
	return populated || err != nil // unless known to be dead
}

func (g *Group) pids() (all []int, err error) {
	if !g.Session {
		return cgroup.PIDs(g.Cgroup)
	}
	entries, err := os.ReadDir("/proc")
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && g.descends(pid) {
			all = append(all, pid)
		}
	}
	return all, err
}

// roots are the processes from which all of a session descend.
func (g *Group) roots() iter.Seq[*process.Handle] {
	return func(yield func(*process.Handle) bool) {
		if g.First != nil && !yield(g.First) {
			return
		}
		for _, j := range g.Joined() {
			if !yield(j.Handle) {
				return
			}
		}
	}
}

// HasRoot reports whether all descendants of a process are in the session.
func (g *Group) HasRoot(pid int) bool {
	for root := range g.roots() {
		if root.PID == pid && root.Alive() {
			return true
		}
	}
	return false
}

func (g *Group) descends(pid int) (found bool) {
	process.Ancestors(pid, func(above int) bool {
		found = g.HasRoot(above)
		return !found
	})
	return found
}

// MayJoin returns an error if a process may not join the session.
func (g *Group) MayJoin(p *process.Handle) error {
	if other := g.Index.session(p.PID); other != nil {
		return fmt.Errorf("it is in session %s already", other.ID)
	}
	// A container's processes stay in its slice, even with a session's token.
	if container := g.Index.container(p.PID); container != nil && container != g.Index.container(g.PID) {
		return fmt.Errorf("it is in slice %s of a container", container.ID)
	}
	if !p.Alive() {
		return process.ErrDead // what was checked may be another process
	}
	return nil
}

// Join adds a process. The group owns its handle, and closes it if it fails.
func (g *Group) Join(p *process.Handle, uid uint32) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.joined) >= maxJoined {
		p.Close()
		return fmt.Errorf("%d processes have joined the session", maxJoined)
	}
	g.joined = append(slices.Clone(g.joined), Joined{p, uid})
	return nil
}

// WatchJoined has a process leave when it exits.
func (g *Group) WatchJoined(p *process.Handle) error {
	return g.Index.Deaths.Watch(p, func() { go g.Leave(p) })
}

// Leave removes a process that joined.
func (g *Group) Leave(p *process.Handle) {
	g.mu.Lock()
	g.joined = slices.DeleteFunc(slices.Clone(g.joined), func(j Joined) bool { return j.Handle == p })
	g.mu.Unlock()
	g.close(p)
}

func (g *Group) Joined() []Joined {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.joined
}

// Close forgets from which processes a session's descend. The remaining ones stay.
func (g *Group) Close() {
	for root := range g.roots() {
		g.close(root)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.joined = nil
}

func (g *Group) close(p *process.Handle) {
	g.Index.Deaths.Unwatch(p)
	p.Close()
}

// Remains notes a process that outlives its session, or logs why it could not be opened. Until the last of them has exited, the session's bytes count
// against its devices and its user. Otherwise a user could exceed the limit by one session after another.
func (g *Group) Remains(p *process.Handle, err error) {
	if err != nil {
		if !errors.Is(err, process.ErrDead) {
			g.Log.Error("a remaining process of the session could not be opened: its memory is not counted", "err", err)
		}
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	known := slices.ContainsFunc(g.remaining, func(r *process.Handle) bool { return r.PID == p.PID && r.Alive() })
	if known || !p.Alive() {
		p.Close()
		return
	}
	g.remaining = append(slices.Clone(g.remaining), p)
}

// Remaining returns the processes that outlive their session, including those that have exited since.
func (g *Group) Remaining() []*process.Handle {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.remaining
}

// WatchRemaining calls exited when one of them exits.
func (g *Group) WatchRemaining(exited func()) error {
	var errs []error
	for _, p := range g.Remaining() {
		errs = append(errs, g.Index.Deaths.Watch(p, func() { go exited() }))
	}
	return errors.Join(errs...)
}

func (g *Group) CloseRemaining() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.remaining {
		g.close(p)
	}
	g.remaining = nil
}

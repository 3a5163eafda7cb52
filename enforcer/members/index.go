// SPDX-License-Identifier: Apache-2.0

package members

import (
	"errors"
	"maps"
	"slices"
	"syscall"

	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// Index has the groups of a host. The exported fields are set before it has any.
type Index struct {
	// Membership returns a process's cgroups; nil if there are no containers. Kernels before Linux 6.7 do not report a cgroup deeper than a path can
	// be long: ENAMETOOLONG.
	Membership func(pid int) (cgroup.Membership, error)
	// Owned reports whether a process has no other user's rights.
	Owned  func(pid int, uid uint32) bool
	Deaths *process.Watcher

	mu       guard.Mutex[guard.Leaf] // guards the maps
	byCgroup map[cgroup.Path]*Group  // containers, by path; the later one of two
	byPIDNS  map[uint64]*Group       // containers whose first process leads its pid namespace, by that
	sessions map[*Group]struct{}
}

// Add replaces a group with the same cgroup or pid namespace.
func (x *Index) Add(g *Group) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byCgroup == nil {
		x.byCgroup, x.byPIDNS, x.sessions = make(map[cgroup.Path]*Group), make(map[uint64]*Group), make(map[*Group]struct{})
	}
	if g.Session {
		x.sessions[g] = struct{}{}
		return
	}
	x.byCgroup[where(g.Cgroup)] = g
	if g.Leads {
		x.byPIDNS[g.PIDNS] = g
	}
}

// Remove leaves a group that has replaced this one.
func (x *Index) Remove(g *Group) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.sessions, g)
	if at := where(g.Cgroup); x.byCgroup[at] == g {
		delete(x.byCgroup, at)
	}
	if x.byPIDNS[g.PIDNS] == g {
		delete(x.byPIDNS, g.PIDNS)
	}
}

// At returns the group of exactly this cgroup.
func (x *Index) At(p cgroup.Path) *Group {
	x.mu.Lock()
	defer x.mu.Unlock()
	if g := x.byCgroup[where(p)]; g != nil && g.Cgroup == p {
		return g
	}
	return nil
}

// where returns a cgroup's path without its identity, which /proc/PID/cgroup does not have.
func where(p cgroup.Path) cgroup.Path { return cgroup.Path{Mount: p.Mount, Rel: p.Rel} }

// Owner returns the group to which a process belongs now: its container's, or the nearest session's. A session inside a container has its own
// members; a container that a session's program began has left the session.
func (x *Index) Owner(pid int) *Group {
	container := x.container(pid)
	session := x.session(pid)
	if container != nil && (session == nil || x.container(session.PID) != container) {
		return container
	}
	return session
}

func (x *Index) container(pid int) *Group {
	if x.Membership == nil {
		return nil
	}
	membership, err := x.Membership(pid)
	if err != nil && !errors.Is(err, syscall.ENAMETOOLONG) {
		return nil // exited, most likely
	}
	if g, theirs := x.Over(pid, membership); !theirs {
		return g
	}
	return nil
}

// Over returns the container with the longest cgroup above these of a process, if the process is in that container's pid namespace or below. A
// process can be moved to another cgroup by any program with write access, and an unrelated container can be placed below another's cgroup (docker run
// --cgroup-parent), but a container cannot leave its pid namespace. So a process elsewhere belongs to the container of its pid namespace. Without
// one it belongs to the container with exactly its cgroup; below that, theirs is true, and the container is not responsible for it.
func (x *Index) Over(pid int, membership cgroup.Membership) (g *Group, theirs bool) {
	x.mu.Lock()
	membership.Each(func(mount, rel string) {
		other := x.byCgroup[cgroup.Path{Mount: mount, Rel: rel}]
		if other != nil && (g == nil || len(rel) > len(g.Cgroup.Rel)) {
			g = other
		}
	})
	x.mu.Unlock()
	// A path can be used again before the end of its former cgroup is noticed.
	if g != nil && !g.Cgroup.Exists() {
		g = nil
	}
	in, err := process.PIDNamespaces(pid)
	if g != nil && (err != nil || g.began(in)) {
		return g, false
	}
	if other := x.byNamespace(in); other != nil {
		return other, false
	}
	return g, g != nil && !membership.Is(g.Cgroup)
}

// byNamespace returns the container made for the nearest of these pid namespaces.
func (x *Index) byNamespace(in []uint64) *Group {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, inode := range in {
		if g := x.byPIDNS[inode]; g != nil {
			return g
		}
	}
	return nil
}

// began reports whether one of these pid namespaces is the container's.
func (g *Group) began(in []uint64) bool { return g.PIDNS == 0 || slices.Contains(in, g.PIDNS) }

// session returns the nearest session above a process. It reads the process's ancestors once, for any number of sessions.
func (x *Index) session(pid int) (found *Group) {
	x.mu.Lock()
	sessions := slices.Collect(maps.Keys(x.sessions))
	x.mu.Unlock()
	if len(sessions) == 0 {
		return nil
	}
	above := make(map[int]int) // distance
	process.Ancestors(pid, func(pid int) bool {
		if _, again := above[pid]; !again {
			above[pid] = len(above)
		}
		return true
	})
	nearest := len(above)
	for _, g := range sessions {
		for root := range g.roots() {
			if far, isBelow := above[root.PID]; isBelow && far < nearest && root.Alive() {
				found, nearest = g, far
			}
		}
	}
	return found
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"maps"
	"slices"
	"syscall"

	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// member reports whether a process belongs to the slice and, after that was found, was still alive.
func (e *Enforcer) member(s *slice, p *process.Handle) bool {
	return e.owner(p.PID) == s && p.Alive()
}

// owner returns the slice to which pid belongs now: its container, or the nearest session. A session inside a container has its own members; a
// container that a session's program began has left the session.
func (e *Enforcer) owner(pid int) *slice {
	container := e.container(pid)
	session := e.session(pid)
	if container != nil && (session == nil || e.container(session.request.PID) != container) {
		return container
	}
	return session
}

// container returns the container of a process: the one with the longest cgroup above the process's.
func (e *Enforcer) container(pid int) *slice {
	s, theirs := e.containerAbove(pid)
	if theirs {
		return nil
	}
	return s
}

// containerAbove returns the container with the longest cgroup above the process's, if the process is in that container's pid namespace or below. A
// process can be moved to another cgroup by any program with write access, and an unrelated container can be placed below another's cgroup (docker run
// --cgroup-parent), but a container cannot leave its pid namespace. So a process elsewhere belongs to the container of its pid namespace. Without
// one it belongs to the container with exactly its cgroup; below that, theirs is true, and the container is not responsible for it.
func (e *Enforcer) containerAbove(pid int) (s *slice, theirs bool) {
	if e.host == nil {
		return nil, false
	}
	membership, err := membershipOf(e.host, pid)
	if err != nil && !errors.Is(err, syscall.ENAMETOOLONG) {
		return nil, false // exited, most likely
	}
	return e.containerOver(pid, membership)
}

// containerOver is containerAbove for a process in these cgroups.
func (e *Enforcer) containerOver(pid int, membership cgroup.Membership) (s *slice, theirs bool) {
	e.mu.Lock()
	membership.Each(func(mount, rel string) {
		other := e.byCgroup[cgroup.Path{Mount: mount, Rel: rel}]
		if other != nil && (s == nil || len(rel) > len(s.cgroup.Rel)) {
			s = other
		}
	})
	e.mu.Unlock()
	// A path can be used again before the end of its former cgroup is noticed.
	if s != nil && !s.cgroup.Exists() {
		s = nil
	}
	in, err := process.PIDNamespaces(pid)
	if s != nil && (err != nil || s.began(in)) {
		return s, false
	}
	if other := e.byNamespace(in); other != nil {
		return other, false
	}
	return s, s != nil && !membership.Is(s.cgroup)
}

// membershipOf returns a process's cgroups. Tests replace it: kernels before Linux 6.7 do not report a cgroup deeper than a path can be long.
var membershipOf = (*cgroup.Host).Membership

// byNamespace returns the container made for the nearest of these pid namespaces.
func (e *Enforcer) byNamespace(in []uint64) *slice {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, inode := range in {
		if s := e.byPIDNS[inode]; s != nil {
			return s
		}
	}
	return nil
}

// began reports whether one of these pid namespaces is the container's.
func (s *slice) began(in []uint64) bool { return s.pidNS == 0 || slices.Contains(in, s.pidNS) }

// session returns the nearest session above a process. It reads the process's ancestors once, for any number of sessions.
func (e *Enforcer) session(pid int) *slice {
	e.mu.Lock()
	sessions := slices.Collect(maps.Keys(e.sessions))
	e.mu.Unlock()
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
	var found *slice
	nearest := len(above)
	for _, s := range sessions {
		s.roots(func(root *process.Handle) bool {
			if far, is := above[root.PID]; is && far < nearest && root.Alive() {
				found, nearest = s, far
			}
			return true
		})
	}
	return found
}

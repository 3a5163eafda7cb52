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

// member says whether the process is one of the slice, and still was after that was found out.
func (e *Enforcer) member(s *slice, p *process.Handle) bool {
	return e.owner(p.PID) == s && p.Alive()
}

// owner finds the slice whose member pid is now: the container that it is of, or the nearest session. A session that began inside a container has its own members; a container that a session's program
// began has left the session.
func (e *Enforcer) owner(pid int) *slice {
	container := e.container(pid)
	session := e.session(pid)
	if container != nil && (session == nil || e.container(session.request.PID) != container) {
		return container
	}
	return session
}

// container finds the container that a process is of: the one with the longest cgroup above the process's.
func (e *Enforcer) container(pid int) *slice {
	s, theirs := e.containerAbove(pid)
	if theirs {
		return nil
	}
	return s
}

// containerAbove finds the container that a process is of: the one with the longest cgroup above the process's, if the process is in the pid namespace
// in which that one began, or below it. A process can be moved to any cgroup by who may write there, and a container that was made elsewhere can
// be put below another's cgroup (docker run --cgroup-parent); but a container has no way out of its pid namespace. So one in another place
// is of the container whose pid namespace it is. If it is of none, it is of that whose very cgroup it is in; below that theirs is true of it, and it
// is not the container's to answer for.
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

// containerOver is containerAbove of a process that is in these cgroups.
func (e *Enforcer) containerOver(pid int, membership cgroup.Membership) (s *slice, theirs bool) {
	e.mu.Lock()
	membership.Each(func(mount, rel string) {
		other := e.byCgroup[cgroup.Path{Mount: mount, Rel: rel}]
		if other != nil && (s == nil || len(rel) > len(s.cgroup.Rel)) {
			s = other
		}
	})
	e.mu.Unlock()
	// A path can be used again, before the liveness of the one that had it is noticed.
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

// membershipOf is the cgroups of a process. Tests have kernels that do not tell those that are deeper than paths are long, as such before Linux 6.7.
var membershipOf = (*cgroup.Host).Membership

// byNamespace finds the container that the nearest of these pid namespaces was made for.
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

// began says whether one of these pid namespaces is that in which the container began.
func (s *slice) began(in []uint64) bool { return s.pidNS == 0 || slices.Contains(in, s.pidNS) }

// session finds the session that is nearest above a process. The process's ancestors are read once, however many
// sessions there are.
func (e *Enforcer) session(pid int) *slice {
	e.mu.Lock()
	sessions := slices.Collect(maps.Keys(e.sessions))
	e.mu.Unlock()
	if len(sessions) == 0 {
		return nil
	}
	above := make(map[int]int) // how far
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

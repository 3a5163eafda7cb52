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

// containerAbove finds the container with the longest cgroup above a process's. A container that was made elsewhere can be put below its
// cgroup (docker run --cgroup-parent): then theirs is true of the process, which is not the slice's to answer for.
func (e *Enforcer) containerAbove(pid int) (s *slice, theirs bool) {
	if e.host == nil {
		return nil, false
	}
	membership, err := membershipOf(e.host, pid)
	if errors.Is(err, syscall.ENAMETOOLONG) {
		return e.byNamespace(pid), false
	}
	if err != nil {
		return nil, false // exited, most likely
	}
	e.mu.Lock()
	membership.Each(func(mount, rel string) {
		other := e.byCgroup[cgroup.Path{Mount: mount, Rel: rel}]
		if other != nil && (s == nil || len(rel) > len(s.cgroup.Rel)) {
			s = other
		}
	})
	e.mu.Unlock()
	// A path can be used again, before the liveness of the one that had it is noticed.
	if s == nil || !s.cgroup.Exists() {
		return nil, false
	}
	return s, !s.made(pid, membership)
}

// membershipOf is the cgroups of a process. Tests have kernels that do not tell.
var membershipOf = (*cgroup.Host).Membership

// byNamespace finds the container of a process that is in a cgroup so deep that the kernel does not tell its path, which whoever may make
// cgroups there can do: the one in whose pid namespace the process is, or below. nil if that is the host's.
func (e *Enforcer) byNamespace(pid int) *slice {
	for _, s := range e.all() {
		if !s.request.Session && s.madeUntold(pid) {
			return s
		}
	}
	return nil
}

func (s *slice) madeUntold(pid int) bool {
	own, err := process.PIDNamespace()
	if err != nil || s.pidNS == 0 || s.pidNS == own {
		return false
	}
	in, err := process.InPIDNamespace(pid, s.pidNS)
	return in && err == nil
}

// made says whether a process in or below the container's cgroup is of the container: in the cgroup itself, or in the pid namespace in which
// it began, or below that. A container has no way out of it; where it has the host's, all below its cgroup are its.
func (s *slice) made(pid int, m cgroup.Membership) bool {
	if s.pidNS == 0 || m.Is(s.cgroup) {
		return true
	}
	in, err := process.InPIDNamespace(pid, s.pidNS)
	return in || err != nil
}

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

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"maps"
	"slices"

	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// member says whether the process is one of the slice, and still was after that was found out.
func (e *Enforcer) member(s *slice, p *process.Handle) bool {
	return e.owner(p.PID) == s && p.Alive()
}

// owner finds the slice whose member pid is now: the container with the longest cgroup above it, or the nearest
// session. A session that began inside a container has its own members; a container that a session's program
// began has left the session.
func (e *Enforcer) owner(pid int) *slice {
	container := e.container(pid)
	session := e.session(pid)
	if container != nil && (session == nil || e.container(session.request.PID) != container) {
		return container
	}
	return session
}

func (e *Enforcer) container(pid int) *slice {
	if e.host == nil {
		return nil
	}
	membership, err := e.host.Membership(pid)
	if err != nil {
		return nil // exited, most likely
	}
	var found *slice
	e.mu.Lock()
	membership.Each(func(mount, rel string) {
		s := e.byCgroup[cgroup.Path{Mount: mount, Rel: rel}]
		if s != nil && (found == nil || len(rel) > len(found.cgroup.Rel)) {
			found = s
		}
	})
	e.mu.Unlock()
	// A path can be used again, before the liveness of the one that had it is noticed.
	if found == nil || !found.cgroup.Exists() {
		return nil
	}
	return found
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

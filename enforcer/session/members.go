// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// maxMembers bounds the processes that join a session, not those that descend from them: each is checked when
// a process attaches anywhere.
const maxMembers = 256

// errFull is returned when as many processes have joined as may.
var errFull = fmt.Errorf("%d processes have joined the session", maxMembers)

// Member is a process that joined a session: it and its descendants are of the session.
type Member struct {
	*process.Handle
	UID uint32
}

// Members are the processes that joined one session.
type Members struct {
	mu  guard.Mutex[guard.Leaf] // guards all
	all []Member                // the elements of one slice do not change
}

// All are the members now.
func (m *Members) All() []Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all
}

// Add a member.
func (m *Members) Add(member Member) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.all) >= maxMembers {
		return errFull
	}
	m.all = append(slices.Clone(m.all), member)
	return nil
}

// Remove a member, and say whether it was one. Its handle is the caller's to close.
func (m *Members) Remove(p *process.Handle) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	rest := slices.DeleteFunc(slices.Clone(m.all), func(member Member) bool { return member.Handle == p })
	was := len(rest) < len(m.all)
	m.all = rest
	return was
}

// Clear removes all members, and returns them.
func (m *Members) Clear() []Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.all
	m.all = nil
	return all
}

// Stored is the members as the store keeps them.
func (m *Members) Stored() (stored []store.Joined) {
	for _, member := range m.All() {
		stored = append(stored, store.Joined{Process: store.Process{PID: member.PID, Start: member.Start}, UID: member.UID})
	}
	return stored
}

// Restore makes those of the stored members that are alive the members.
func (m *Members) Restore(stored []store.Joined) {
	var all []Member
	for _, r := range stored {
		if p, err := process.Again(r.PID, r.Start); err == nil {
			all = append(all, Member{p, r.UID})
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = all
}

// Asker is the process that asks, as the kernel reports it; it may have exited since.
type Asker struct {
	PID   int    // 0: it is not in the enforcer's pid namespace, nor below it
	Start uint64 // of the process; 0 if that is not known
	UID   uint32
}

// Owns says why a process is neither the asker nor descends from it. The caller holds a Handle of pid, and checks afterwards
// whether that is alive.
func (a Asker) Owns(pid int) error {
	asker, err := a.names(pid)
	if err != nil {
		return err
	}
	defer asker.Close()
	return above(asker, pid)
}

// above says why a process is neither the asker nor descends from it.
func above(asker *process.Handle, pid int) error {
	if !process.Ancestor(pid, asker.PID) {
		return fmt.Errorf("process %d is neither the caller (%d) nor a descendant of the caller", pid, asker.PID)
	}
	if !asker.Alive() { // its connection may be held by a descendant, and its pid be another process's
		return fmt.Errorf("the one that asks: %w", process.ErrDead)
	}
	return nil
}

// MayName says why a pid that the asker names may not be what the enforcer takes it for: pids are those of the asker's pid namespace.
func (a Asker) MayName(pid int) error {
	asker, err := a.names(pid)
	if err != nil {
		return err
	}
	return asker.Close()
}

// names is MayName, and holds on to the asker.
func (a Asker) names(pid int) (asker *process.Handle, err error) {
	if a.PID <= 0 {
		return nil, errors.New("the one that asks is not in the enforcer's pid namespace, nor below it, so its processes are not known")
	}
	if asker, err = process.Again(a.PID, a.Start); err != nil {
		return nil, fmt.Errorf("the one that asks: %w", err)
	}
	own, err := process.PIDNamespace()
	if err == nil && asker.PIDNS != own {
		err = fmt.Errorf("the one that asks (%d) is in another pid namespace than the enforcer, where pid %d is another process: "+
			"who asks must be on the host, or in a container with the host's pids (--pid host)", a.PID, pid)
	}
	if err != nil {
		asker.Close()
		return nil, err
	}
	return asker, nil
}

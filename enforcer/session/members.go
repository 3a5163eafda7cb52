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

// maxMembers bounds the processes that join a session, not their descendants. Each attach of any process checks all of them.
const maxMembers = 256

// errFull is returned if maxMembers processes have joined.
var errFull = fmt.Errorf("%d processes have joined the session", maxMembers)

// Member is a process that joined a session. It and its descendants belong to the session.
type Member struct {
	*process.Handle
	UID uint32
}

// Members are the processes that joined one session.
type Members struct {
	mu  guard.Mutex[guard.Leaf] // guards all
	all []Member                // replaced as a whole, never changed
}

func (m *Members) All() []Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all
}

func (m *Members) Add(member Member) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.all) >= maxMembers {
		return errFull
	}
	m.all = append(slices.Clone(m.all), member)
	return nil
}

// Remove removes a member, and reports whether it was one. The caller closes its handle.
func (m *Members) Remove(p *process.Handle) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	rest := slices.DeleteFunc(slices.Clone(m.all), func(member Member) bool { return member.Handle == p })
	was := len(rest) < len(m.all)
	m.all = rest
	return was
}

func (m *Members) Clear() []Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.all
	m.all = nil
	return all
}

// Stored returns the members as the store keeps them.
func (m *Members) Stored() (stored []store.Joined) {
	for _, member := range m.All() {
		stored = append(stored, store.Joined{Process: store.Process{PID: member.PID, Start: member.Start}, UID: member.UID})
	}
	return stored
}

// Restore sets the members to the live ones of the stored members.
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

// Asker is the process that sent a request, as the kernel reports it. It may have exited since.
type Asker struct {
	PID   int    // 0 if it is outside of the enforcer's pid namespace
	Start uint64 // its start time, or 0 if unknown
	UID   uint32
}

// Owns returns an error if the process pid is neither the asker nor its descendant. The caller holds a Handle of pid, and checks afterwards
// that it is alive.
func (a Asker) Owns(pid int) error {
	asker, err := a.names(pid)
	if err != nil {
		return err
	}
	defer asker.Close()
	return above(asker, pid)
}

// above is the part of Owns that needs a live handle on the asker.
func above(asker *process.Handle, pid int) error {
	if !process.Ancestor(pid, asker.PID) {
		return fmt.Errorf("process %d is neither the caller (%d) nor a descendant of the caller", pid, asker.PID)
	}
	if !asker.Alive() { // a descendant may hold its connection, and its pid may be reused
		return fmt.Errorf("the calling process: %w", process.ErrDead)
	}
	return nil
}

// MayName returns an error if a pid in the asker's request may not mean the same process to the enforcer, since the asker is in another pid
// namespace.
func (a Asker) MayName(pid int) error {
	asker, err := a.names(pid)
	if err != nil {
		return err
	}
	return asker.Close()
}

// names implements MayName, and returns a handle on the asker.
func (a Asker) names(pid int) (asker *process.Handle, err error) {
	if a.PID <= 0 {
		return nil, errors.New("the calling process is not in the enforcer's pid namespace, nor below it, so its processes are not known: run it on the host")
	}
	if asker, err = process.Again(a.PID, a.Start); err != nil {
		return nil, fmt.Errorf("the calling process: %w", err)
	}
	own, err := process.PIDNamespace()
	if err == nil && asker.PIDNS != own {
		err = fmt.Errorf("the calling process (%d) is in another pid namespace than the enforcer, where pid %d is another process: "+
			"run it on the host, or in a container with the host's pids (--pid host)", a.PID, pid)
	}
	if err != nil {
		asker.Close()
		return nil, err
	}
	return asker, nil
}

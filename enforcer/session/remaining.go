// SPDX-License-Identifier: Apache-2.0

package session

import (
	"slices"

	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// Remaining are the processes of a session that is over: it ends with its first process, or when it is released by force, and what
// descended from that may live on. They are charged nothing more, and what they hold is not free: until the last of them has exited, the
// session counts for what it held, to its devices and to its user, like a container that is released while it has processes. Otherwise one
// session after the other would give a user as much as he likes.
//
// Its methods need a lock of the caller's.
type Remaining struct{ all []*process.Handle }

// Add one, whose handle is Remaining's from then on.
func (r *Remaining) Add(p *process.Handle) {
	if !p.Alive() || r.Has(p.PID) {
		p.Close()
		return
	}
	r.all = append(r.all, p)
}

// All of them, those that have exited since among them.
func (r *Remaining) All() []*process.Handle { return r.all }

// Has says whether a process is one of them.
func (r *Remaining) Has(pid int) bool {
	return slices.ContainsFunc(r.all, func(p *process.Handle) bool { return p.PID == pid && p.Alive() })
}

// Alive says whether any is.
func (r *Remaining) Alive() bool { return slices.ContainsFunc(r.all, (*process.Handle).Alive) }

// Stored is them as the store keeps them.
func (r *Remaining) Stored() (stored []store.Process) {
	for _, p := range r.all {
		stored = append(stored, store.Process{PID: p.PID, Start: p.Start})
	}
	return stored
}

// Close forgets them.
func (r *Remaining) Close() {
	for _, p := range r.all {
		p.Close()
	}
	r.all = nil
}

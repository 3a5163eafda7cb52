// SPDX-License-Identifier: Apache-2.0

package session

import (
	"slices"

	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// Remaining are the processes that outlive their session. A session ends with its first process, or by a forced release, and descendants
// may live on. They can charge nothing more. Until the last of them has exited, the session's bytes count against its devices and its user,
// like those of a released container with processes. Otherwise a user could exceed the limit by one session after another.
//
// The caller serialises calls of its methods.
type Remaining struct{ all []*process.Handle }

// Add adds a process, and owns its handle.
func (r *Remaining) Add(p *process.Handle) {
	if !p.Alive() || r.Has(p.PID) {
		p.Close()
		return
	}
	r.all = append(r.all, p)
}

// All returns all of them, including those that have exited since.
func (r *Remaining) All() []*process.Handle { return r.all }

// Has reports whether a process is one of them, and alive.
func (r *Remaining) Has(pid int) bool {
	return slices.ContainsFunc(r.all, func(p *process.Handle) bool { return p.PID == pid && p.Alive() })
}

// Alive reports whether any of them is alive.
func (r *Remaining) Alive() bool { return slices.ContainsFunc(r.all, (*process.Handle).Alive) }

// Stored returns them as the store keeps them.
func (r *Remaining) Stored() (stored []store.Process) {
	for _, p := range r.all {
		stored = append(stored, store.Process{PID: p.PID, Start: p.Start})
	}
	return stored
}

func (r *Remaining) Close() {
	for _, p := range r.all {
		p.Close()
	}
	r.all = nil
}

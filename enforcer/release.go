// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"errors"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
)

// Why slices are released.
const (
	causeAsked    = "asked"
	causeEnded    = "ended"    // its processes have
	causeReplaced = "replaced" // it had ended, and another took its id or cgroup
	causeFailed   = "failed"   // its registration
)

// Release ends a slice: of that generation only, unless it is 0. Without force, one whose processes are alive
// stays. The poststop hook of a container knows neither; so it ends the slice of the container that has just
// stopped, and a newer one that the engine has started under the same id stays.
// Releasing what is not there is api.ErrNotFound.
func (e *Enforcer) Release(_ context.Context, id string, generation uint64, force bool) (api.Slice, error) {
	if err := api.CheckID(id); err != nil {
		return api.Slice{}, err
	}
	if err := e.lockChange(); err != nil {
		return api.Slice{}, err
	}
	defer e.change.Unlock()
	s := e.find(id)
	if s == nil {
		return api.Slice{}, api.Errorf(api.CodeNotFound, "there is no slice %s", id)
	}
	if generation != 0 && generation != s.generation {
		return api.Slice{}, api.Errorf(api.CodeNotFound, "there is no slice %s of generation %d: it was released", id, generation)
	}
	if !force && s.running() {
		return api.Slice{}, api.Errorf(api.CodeRunning, "slice %s has processes that are alive (it began with %d): stop them first, or force the release", id, s.request.PID)
	}
	shown := s.show(false)
	if err := e.release(s, causeAsked); err != nil {
		return api.Slice{}, err
	}
	shown.State = api.Released
	return shown, nil
}

// release takes a slice away, in steps of which each can be the last one that happens: the record goes last, so a
// restart goes on where this stopped. Called with change held.
func (e *Enforcer) release(s *slice, cause string) error {
	s.mu.Lock()
	var err error
	if s.ledger != nil {
		record := s.stored()
		record.Releasing = true
		err = e.store.PutSlice(record)
	}
	killpoint.Pass("release.marked")
	if s.ledger != nil && s.state == api.Active {
		// Who is attached and alive still has the page: its next charge is refused.
		s.ledger.SetClosed()
		for _, d := range s.devices {
			if d.account != nil {
				_ = d.account.Limit(0) // the flag above says the same, to whoever reads it
			}
		}
	}
	killpoint.Pass("release.closed")
	s.state = api.Released
	s.let()
	s.mu.Unlock()
	if err != nil {
		// The disk is full or gone. The slice is over all the same; a restart will find a record of
		// something that is dead, and drop it.
		s.log.Error("the release of a slice is not on disk", "err", err)
	}

	if e.cgroups != nil && s.cgroup != (cgroup.Path{}) {
		e.cgroups.Unwatch(s.cgroup)
	}
	e.mu.Lock()
	if e.slices[s.id()] == s {
		delete(e.slices, s.id())
	}
	e.mu.Unlock()
	e.removeSliceDir(s.dir)
	killpoint.Pass("release.removed")
	err = errors.Join(err, e.store.DeleteSlice(s.id(), s.generation))
	killpoint.Pass("release.done")
	s.log.Info("slice released", "generation", s.generation, "cause", cause)
	e.count(func(c Counter) { c.Released(cause) })
	return err
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"errors"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// Causes of release.
const (
	causeAsked    = "asked"
	causeEnded    = "ended"    // its processes have exited
	causeExpired  = "expired"  // its deadline had passed
	causeReplaced = "replaced" // it had ended, and another slice took its id or cgroup
	causeFailed   = "failed"   // its registration failed
)

// Release ends a slice; a generation other than 0 must match. Without force a slice with living processes stays. A forced one grants no more memory,
// and the container's mounts stay until its processes exit (clearOnceEmpty). A suspended slice with memory in host memory always stays: nothing could
// bring the memory back later. The error for an unknown slice is api.ErrNotFound.
func (e *Enforcer) Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error) {
	if err := api.CheckID(id); err != nil {
		return api.Slice{}, err
	}
	s, err := e.turnOf(ctx, id)
	if err != nil {
		return api.Slice{}, err
	}
	defer s.turn.Give()
	if generation != 0 && generation != s.generation {
		return api.Slice{}, api.Errorf(api.CodeNotFound, "there is no slice %s of generation %d: it was released", id, generation)
	}
	if pid := s.leftSuspended(); pid != 0 {
		return api.Slice{}, api.Errorf(api.CodeRunning, "slice %s is suspended: its process %d (%s) would wait forever: `gpuslice resume %s` first, or end its processes",
			id, pid, process.Name(pid), id)
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

// release ends a slice in steps, any of which can be the last: a restart continues there. Called in the slice's turn.
func (e *Enforcer) release(s *slice, cause string) error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.noteRemaining()
	err := e.store.Retire(s.storedNow())
	killpoint.Pass("release.marked")
	s.mu.Lock()
	was := s.quota.State
	closes := s.quota.Ledger != nil && (was == api.Active || was == api.Expired)
	if closes {
		s.reportCounts()
	}
	if cause != causeFailed {
		s.endNeeds()
	}
	if closes {
		s.quota.Close()
	}
	s.quota.State = api.Released
	if s.rec.Phase == core.Expiring && (cause == causeEnded || cause == causeAsked) { // however it was noticed
		cause = causeExpired
	}
	s.mu.Unlock()
	s.denyNative()
	s.linger(s.remainder(was))
	killpoint.Pass("release.closed")
	s.mu.Lock()
	s.closeFiles()
	s.mu.Unlock()
	e.reachNative(s.group.Cgroup)
	if err != nil {
		// The run directory is full. The slice ends all the same, and the store is updated once it can be. After an earlier restart the record is
		// of an ended slice, which is dropped, or of a closed page, which grants nothing more.
		s.log.Error("release not persisted: trying again", "err", err)
	}
	s.log.Info("slice released", "generation", s.generation, "cause", cause)
	e.count(func(c Counter) { c.Released(cause) })
	if cause == causeFailed { // no caller knows of it, so it is mounted nowhere
		e.strike(s)
		e.clear(s)
		return err
	}
	s.tell(api.Event{Kind: api.EventReleased, Cause: cause}) // before the slice disappears from queries
	e.strike(s)
	return errors.Join(err, e.clearOnceEmpty(s))
}

// clearOnceEmpty clears what a released slice leaves on the host, once its container has no process. Until then an attaching process gets the reply
// that the slice was released. The interceptor is bound in the slice's directory: if its file is removed, the kernel removes the mount in every
// namespace, the loader preloads nothing, without a message, and new processes of the container have no quota at all. Called in the slice's turn.
func (e *Enforcer) clearOnceEmpty(s *slice) error {
	if !s.group.Lingers() {
		e.clear(s)
		return nil
	}
	known := e.linger(s)
	if !known {
		s.log.Warn("slice released with running processes: their memory counts until they exit", "cgroup", s.group.Cgroup.String(), "remaining", len(s.group.Remaining()))
	}
	killpoint.Pass("release.lingering")
	if !s.request.Session {
		if s.request.For != nil {
			e.cgroups.Unwatch(s.group.Cgroup) // from now on it does not stay without processes
		}
		if err := e.watchCgroup(s.group.Cgroup); err != nil {
			s.log.Error("removing the slice's directory failed: it stays until the enforcer is restarted", "dir", s.dir, "err", err)
		}
	} else if !known {
		s.hangUp() // it is mounted nowhere, and its token is void
		e.removeSliceDir(s.dir)
		if err := e.watchRemaining(s); err != nil {
			s.log.Error("the session's memory may count until the enforcer is restarted", "err", err)
		}
	}
	return nil
}

// clear removes what a released slice has left. Called in its turn.
func (e *Enforcer) clear(s *slice) {
	last, ok := e.vacate(s)
	if !ok {
		return
	}
	defer e.unclaim(s)
	e.dropSlice(s)
	for _, p := range s.pools {
		p.part(s)
	}
	if last {
		e.cgroups.Unwatch(s.group.Cgroup)
		s.clearNative()
	}
	s.group.CloseRemaining()
	s.hangUp()
	e.removeSliceDir(s.dir)
	killpoint.Pass("release.removed")
	if err := e.store.Forget(s.id(), s.generation); err != nil {
		s.log.Error("deleting the record of a released slice failed: trying again", "err", err)
	}
	killpoint.Pass("release.done")
}

// clearReleased clears a slice that was released before its processes exited, if they have.
func (e *Enforcer) clearReleased(s *slice) {
	if !e.waitForReleased(s) {
		return
	}
	defer s.turn.Give()
	if err := e.clearOnceEmpty(s); err != nil {
		s.log.Error("released slice not cleared", "err", err)
	}
}

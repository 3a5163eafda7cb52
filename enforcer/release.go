// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"errors"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// Why slices are released.
const (
	causeAsked    = "asked"
	causeEnded    = "ended"    // its processes have
	causeExpired  = "expired"  // its time was over
	causeReplaced = "replaced" // it had ended, and another took its id or cgroup
	causeFailed   = "failed"   // its registration
)

// Release ends a slice: of that generation only, unless it is 0. Without force, one whose processes are alive
// stays. With it they get nothing more; what is bound into a container stays there until they end (see clearOnceEmpty).
// A suspended one stays in any case while processes of it are in host memory: nobody could bring them back any more.
// Releasing what is not there is api.ErrNotFound.
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
		return api.Slice{}, api.Errorf(api.CodeRunning, "slice %s is suspended: its process %d (%s) would wait for ever: `gpuslice resume %s` first, or end its processes",
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

// release ends a slice, in steps of which each can be the last one that happens: a restart goes on where this
// stopped. Called in the slice's turn.
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
	if s.expired && (cause == causeEnded || cause == causeAsked) { // whoever saw to it first: its engine, its session, or we
		cause = causeExpired
	}
	s.mu.Unlock()
	s.denyNative()
	e.book.Set(s.holder, s.remainder(was))
	killpoint.Pass("release.closed")
	s.mu.Lock()
	s.let()
	s.mu.Unlock()
	e.reachNative(s.cgroup)
	if err != nil {
		// The run directory is full. The slice is over all the same, and the store says so once it can. A restart before that
		// finds a record of something that is dead, and drops it; or a page that is closed, and gives nothing more.
		s.log.Error("release not persisted: it is tried again", "err", err)
	}
	s.log.Info("slice released", "generation", s.generation, "cause", cause)
	e.count(func(c Counter) { c.Released(cause) })
	if cause == causeFailed { // nobody was told of it, so nothing of it is bound anywhere
		e.strike(s)
		e.clear(s)
		return err
	}
	s.tell(api.Event{Kind: api.EventReleased, Cause: cause}) // whoever finds it gone finds this
	e.strike(s)
	return errors.Join(err, e.clearOnceEmpty(s))
}

// clearOnceEmpty clears away what a released slice leaves on the host; but as long as a container has processes all of
// that stays, and who asks for a place in the ledger is told that the slice was released. The interceptor is bound
// in the slice's directory: the kernel takes a mount away when the file under it is removed, in every namespace;
// the loader then finds nothing to preload, says nothing, and what such a container starts has no quota at all.
// Called in the slice's turn.
func (e *Enforcer) clearOnceEmpty(s *slice) error {
	if !s.lingers() {
		e.clear(s)
		return nil
	}
	known := e.linger(s)
	if !known {
		s.log.Warn("slice released with running processes: their memory counts until they exit", "cgroup", s.cgroup.String(), "remaining", len(s.remaining.All()))
	}
	killpoint.Pass("release.lingering")
	if !s.request.Session {
		if err := e.watchCgroup(s.cgroup); err != nil {
			s.log.Error("slice's directory kept until the enforcer is restarted", "dir", s.dir, "err", err)
		}
	} else if !known {
		s.hangUp() // nothing of it is bound anywhere, and its token opens nothing any more
		e.removeSliceDir(s.dir)
		if err := e.watchRemaining(s); err != nil {
			s.log.Error("the session's memory may count until the enforcer is restarted", "err", err)
		}
	}
	return nil
}

// clear clears away what a released slice has left. Called in its turn.
func (e *Enforcer) clear(s *slice) {
	last, ok := e.vacate(s)
	if !ok {
		return
	}
	defer e.unclaim(s)
	e.book.Drop(s.holder)
	for _, p := range s.pools {
		p.part(s)
	}
	if last {
		e.cgroups.Unwatch(s.cgroup)
		s.clearNative()
	}
	s.closeRemaining()
	s.hangUp()
	e.removeSliceDir(s.dir)
	killpoint.Pass("release.removed")
	if err := e.store.Forget(s.id(), s.generation); err != nil {
		s.log.Error("record of a released slice not deleted: it is tried again", "err", err)
	}
	killpoint.Pass("release.done")
}

// lingers says whether a released slice has processes: a container's may still use what is bound there, a session's hold what
// it gave them.
func (s *slice) lingers() bool {
	if s.request.Session {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.remaining.Alive()
	}
	populated, err := cgroup.Populated(s.cgroup)
	if err != nil {
		s.log.Error("cannot tell whether the slice's cgroup is empty", "err", err)
	}
	return populated || err != nil // what is not known to be dead is alive
}

// clearReleased clears away what a slice has left that was released before its processes ended, if they have.
func (e *Enforcer) clearReleased(s *slice) {
	if !e.waitForReleased(s) {
		return
	}
	defer s.turn.Give()
	if err := e.clearOnceEmpty(s); err != nil {
		s.log.Error("released slice not cleared", "err", err)
	}
}

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

// causeFailed is the cause, in metrics, of the end of a slice that was not registered.
const causeFailed = "failed"

// Release ends a slice; a generation other than 0 must match. Without force a slice with living processes stays. A forced one grants no more memory,
// and the container's mounts stay until its processes exit (vacates). A suspended slice with memory in host memory always stays: nothing could
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
	if err := e.release(s, core.CauseAsked); err != nil {
		return api.Slice{}, err
	}
	shown.State = api.Released
	return shown, nil
}

// release ends a slice in steps, any of which can be the last: a restart continues there. The slice ends though that cannot be written. Called in the
// slice's turn.
func (e *Enforcer) release(s *slice, cause string) error {
	err := e.ask(s, func(client uint64) core.Command {
		return core.Release{Client: client, ID: s.id(), Generation: s.generation, Cause: cause, Force: true, NoneHosted: true}
	})
	return errors.Join(err, s.unstored)
}

// retire stores that the slice is released.
func (s *slice) retire() {
	s.mu.Lock()
	again := s.closing
	s.closing = true
	s.mu.Unlock()
	if again {
		return
	}
	s.noteRemaining()
	if s.unstored = s.e.store.Retire(s.storedNow()); s.unstored != nil {
		// The run directory is full. The store repeats the write. After an earlier restart the record is of an ended slice, which is dropped, or of a
		// closed page, which grants nothing more.
		s.log.Error("release not persisted: trying again", "err", s.unstored)
	}
	killpoint.Pass("release.marked")
}

// close closes the ledger of a retired slice, and notes what its processes hold.
func (s *slice) close() {
	s.mu.Lock()
	was := s.quota.State
	closes := s.quota.Ledger != nil && (was == api.Active || was == api.Expired)
	if closes {
		s.reportCounts()
	}
	s.endNeeds()
	if closes {
		s.quota.Close()
	}
	s.quota.State = api.Released
	s.mu.Unlock()
	s.denyNative()
	s.remains = core.Used{Generation: s.generation, Op: s.op, Bytes: s.remainder(was, s.e.book.Has(s.holder, false))}
	killpoint.Pass("release.closed")
	s.mu.Lock()
	s.closeFiles()
	s.mu.Unlock()
	s.e.reachNative(s.group.Cgroup)
}

// tellReleased appends the event of a slice's end. It returns what core has to know of its processes. A slice without processes stays in queries until
// core has forgotten it: others that need its room wait for its turn.
func (s *slice) tellReleased(event api.Event) core.Fact {
	s.log.Info("slice released", "generation", s.generation, "cause", event.Cause)
	s.e.count(func(c Counter) { c.Released(event.Cause) })
	s.tell(event) // before the slice disappears from queries
	if s.vacates() {
		return core.Empty{Generation: s.generation}
	}
	s.e.strike(s)
	return s.remains
}

// fail removes a slice after its registration failed. No caller knows it, so it is mounted nowhere.
func (s *slice) fail() {
	s.setLimited(false) // the driver is given no limits that the store does not know
	s.retire()
	s.close()
	s.e.count(func(c Counter) { c.Released(causeFailed) })
	if !s.e.vacate(s) {
		s.e.forget(s)
	}
	s.clear()
}

// vacates reports whether what the released slice leaves on the host can be cleared: its container has no process. Until then an attaching process gets
// the reply that the slice was released. The interceptor is bound in the slice's directory: if its file is removed, the kernel removes the mount in
// every namespace, the loader preloads nothing, without a message, and new processes of the container have no quota at all. Called in the slice's turn.
func (s *slice) vacates() bool {
	e := s.e
	if !s.group.Lingers() {
		return e.vacate(s)
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
	return false
}

// clear removes what the slice has left on the host, and then its record. Called in its turn.
func (s *slice) clear() {
	e := s.e
	if e.claims(s) { // no other slice has the cgroup
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

// clearOnceEmpty clears a released slice if its processes have exited. Called in its turn.
func (e *Enforcer) clearOnceEmpty(s *slice) {
	if s.vacates() {
		e.note(s, core.Empty{Generation: s.generation})
	}
}

// clearReleased clears a slice that was released before its processes exited, if they have.
func (e *Enforcer) clearReleased(s *slice) {
	if e.waitForReleased(s) {
		defer s.turn.Give()
		e.clearOnceEmpty(s)
	}
}

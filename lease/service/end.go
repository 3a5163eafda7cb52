// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Reasons for which a lease has ended. With any other reason it has failed.
const (
	reasonDropped = "it was dropped"
	reasonExpired = "it expired"
	reasonLinger  = "no client was connected any more"

	reasonReleased = "its slice was released"
)

// hasExpired reports whether the lease has expired, by the enforcer's last answer.
func (l *lease) hasExpired() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expires != nil && time.Until(l.deadline) < 100*time.Millisecond
}

// endAside calls end in a goroutine.
func (s *Service) endAside(l *lease, reason string) {
	s.ending.Go(func() { s.end(l, reason) })
}

// end ends a lease, and returns when nothing of it is left. A second call waits for the first, and returns its result.
func (s *Service) end(l *lease, reason string) *leasepb.Lease {
	l.mu.Lock()
	first := !l.ending
	l.ending = true
	l.mu.Unlock()
	if !first {
		<-l.done
		return l.last
	}
	begin := time.Now()
	var stages []any // duration of each
	last := begin
	stage := func(name string) {
		now := time.Now()
		stages, last = append(stages, name, now.Sub(last)), now
	}
	l.quit()
	l.starting.Lock() // no more restarts
	s.mark(l, reason)
	stage("recorded")
	killpoint.Pass("end.marked")
	s.stop(l)
	stage("broker")
	killpoint.Pass("end.stopped")
	s.clear(l.ID)
	stage("cgroup")
	killpoint.Pass("end.cleared")
	l.starting.Unlock()
	s.release(l)
	stage("slice")
	killpoint.Pass("end.released")
	// Last: the next service finds an unfinished end by the directory.
	if err := os.RemoveAll(s.dirOf(l.ID)); err != nil {
		s.Log.Error("removing a lease's directory failed", "lease", l.ID, "err", err)
	}
	killpoint.Pass("end.removed")
	l.mu.Lock()
	l.charged = 0
	l.last = l.shownLocked()
	cause := causeOfEnd(reason)
	l.last.State, l.last.Reason = leasepb.Lease_ENDED, reason
	if cause == causeFailed {
		l.last.State = leasepb.Lease_FAILED
	}
	l.mu.Unlock()
	s.mu.Lock()
	delete(s.leases, l.ID)
	served := l.serving || l.child == nil
	if served {
		s.ended = append(s.ended[max(0, len(s.ended)-maxEnded+1):], l.last)
	}
	s.mu.Unlock()
	if served {
		s.counts.leaseEnded(l, cause)
		s.Log.Info("lease ended", "lease", l.ID, "uid", l.UID, "state", l.last.GetState(), "reason", reason, "took", time.Since(begin), slog.Group("stages", stages...))
	}
	close(l.done)
	return l.last
}

// mark records the end, so that the next service completes it instead of starting another broker.
func (s *Service) mark(l *lease, reason string) {
	if l.PID == 0 || l.Over != nil {
		return // not adopted, or marked already
	}
	l.Over = &endReason{reason}
	if err := l.put(s.dirOf(l.ID)); err != nil {
		s.Log.Error("recording that a lease ends failed", "lease", l.ID, "err", err)
	}
}

// stop ends the broker, which gets exitGrace to notify its clients.
func (s *Service) stop(l *lease) {
	if l.process == nil {
		return
	}
	defer l.process.Close()
	_ = l.process.Signal(syscall.SIGTERM) // it may have exited
	select {
	case <-l.exited:
	case <-time.After(exitGrace):
	}
	if l.process.Alive() {
		_ = l.process.Signal(syscall.SIGKILL)
	}
	s.deaths.Unwatch(l.process)
}

func (s *Service) clear(id string) {
	if err := s.cgroups.remove(id, endTimeout); err != nil {
		s.Log.Error("removing a broker's cgroup failed: the next service tries again", "lease", id, "err", err)
	}
}

// release releases the slice. An unreachable enforcer does that itself later, since the cgroup is gone.
func (s *Service) release(l *lease) {
	if l.Generation == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	_, err := s.Enforcer.Release(ctx, l.ID, l.Generation, true)
	if err != nil && !errors.Is(err, api.ErrNotFound) {
		s.Log.Warn("releasing a lease's slice failed: the enforcer releases it by itself", "lease", l.ID, "err", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"log/slog"

	"github.com/gpuslice/gpuslice/enforcer/report/lines"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Calls of one user that acquire a lease.
const (
	maxAcquiring = 4  // carried out at one time
	maxAcquires  = 36 // with those that wait for that
)

// maxLogs is of how many users each has lines of its own in the log.
const maxLogs = 1024

// acquires are a user's.
type acquires struct {
	calls int           // Service.mu guards it
	turns chan struct{} // has one for each that is carried out
}

// unlimited reports whether no limit applies to a user: to root and the operators.
func (s *Service) unlimited(who Peer) bool {
	return who.UID == 0 || s.Operator != nil && s.Operator(who.Groups)
}

// admit says whether a user may acquire a lease now, before anything is made of it, and counts that. The enforcer decides how much of the
// device it may be.
func (s *Service) admit(ctx context.Context, who Peer) (leave func(), err error) {
	if s.unlimited(who) {
		return func() {}, nil
	}
	leave, err = s.turn(ctx, who.UID)
	if err != nil {
		return nil, err
	}
	if err := s.limited(who); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// turn waits until few enough others of the user's calls are carried out.
func (s *Service) turn(ctx context.Context, uid uint32) (leave func(), err error) {
	s.mu.Lock()
	a := s.acquires[uid]
	if a == nil {
		a = &acquires{turns: make(chan struct{}, maxAcquiring)}
		if s.acquires == nil {
			s.acquires = make(map[uint32]*acquires)
		}
		s.acquires[uid] = a
	}
	if a.calls >= maxAcquires {
		s.mu.Unlock()
		return nil, failed(leasepb.Code_REFUSED, "ask again later", "uid %d is acquiring %d leases, as many as a user may at one time", uid, maxAcquires)
	}
	a.calls++
	s.mu.Unlock()
	gone := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if a.calls--; a.calls == 0 {
			delete(s.acquires, uid)
		}
	}
	select {
	case a.turns <- struct{}{}:
		return func() { <-a.turns; gone() }, nil
	case <-ctx.Done():
		gone()
		return nil, refusal(context.Cause(ctx))
	}
}

// limited says by which limit the user may have no other lease, or none yet.
func (s *Service) limited(who Peer) error {
	limit, err := session.For(s.Limits(), who.UID, who.Groups)
	if err != nil {
		return refusal(err)
	}
	if n := s.count(who.UID); n >= limit.MaxSessions {
		return failed(leasepb.Code_REFUSED, "drop one, or ask the operator for more (max_sessions)", "uid %d has %d leases, and may have %d sessions at one time", who.UID, n, limit.MaxSessions)
	}
	if err := s.changes.Change(who.UID); err != nil {
		return refusal(err)
	}
	return nil
}

// count is how many leases of a user serve.
func (s *Service) count(uid uint32) (n int) {
	for _, l := range s.all() {
		if l.UID == uid {
			n++
		}
	}
	return n
}

// logOf bounds how often each message is written that a user can cause.
func (s *Service) logOf(uid uint32) *slog.Logger {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logs[uid] == nil {
		if len(s.logs) >= maxLogs {
			uid = session.NoUser
		}
		if s.logs == nil {
			s.logs = make(map[uint32]*slog.Logger)
		}
		if s.logs[uid] == nil {
			s.logs[uid] = lines.Bound(s.Log)
		}
	}
	return s.logs[uid]
}

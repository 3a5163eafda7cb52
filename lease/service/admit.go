// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"log/slog"

	"github.com/gpuslice/gpuslice/enforcer/report/lines"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Limits of one user's Acquire calls.
const (
	maxAcquiring = 4  // executed at a time
	maxAcquires  = 36 // executed or waiting
)

// maxLogs is the maximum of users with log limits of their own.
const maxLogs = 1024

type acquires struct {
	calls int           // guarded by Service.mu
	turns chan struct{} // one element per executing call
}

// unlimited reports whether the caller has no limits: root or an operator.
func (s *Service) unlimited(who Peer) bool {
	return who.UID == 0 || s.Operator != nil && s.Operator(who.Groups)
}

// admit checks whether the user may acquire a lease now, before anything is created, and counts the call until leave. The
// enforcer limits the memory.
func (s *Service) admit(ctx context.Context, who Peer) (leave func(), err error) {
	if s.unlimited(who) {
		return func() {}, nil
	}
	leave, err = s.waitTurn(ctx, who.UID)
	if err != nil {
		return nil, err
	}
	if err := s.limited(who); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// waitTurn waits while maxAcquiring calls of the user are executing.
func (s *Service) waitTurn(ctx context.Context, uid uint32) (leave func(), err error) {
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
		return nil, failed(leasepb.Code_REFUSED, "try again later", "uid %d is acquiring %d leases, the limit for each user at one time", uid, maxAcquires)
	}
	a.calls++
	s.mu.Unlock()
	uncount := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if a.calls--; a.calls == 0 {
			delete(s.acquires, uid)
		}
	}
	select {
	case a.turns <- struct{}{}:
		return func() { <-a.turns; uncount() }, nil
	case <-ctx.Done():
		uncount()
		return nil, refusal(context.Cause(ctx))
	}
}

// limited returns the limit that the user has reached, or nil.
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

func (s *Service) count(uid uint32) (n int) {
	for _, l := range s.all() {
		if l.UID == uid {
			n++
		}
	}
	return n
}

// logOf returns a log that limits how often each message caused by the user is written.
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

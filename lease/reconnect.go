// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

const (
	minPause, maxPause = 10 * time.Millisecond, 500 * time.Millisecond // between attempts to connect
	// openTimeout limits how long Open tries to connect to a socket without a listener: a broker that failed often is
	// restarted after 10 s.
	openTimeout = 15 * time.Second
	// remoteTimeout is the time after which an unresponsive session on another host is given up: its end cannot be detected
	// otherwise.
	remoteTimeout = time.Minute
)

// connected starts using a new connection. The mutex must not be held.
func (s *Session) connected(stream leasepb.Session_WorkClient, header metadata.MD) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.err != nil {
		return s.err
	}
	killpoint.Pass("client.connected")
	if capability := header.Get(leasepb.CapabilityHeader); len(capability) > 0 {
		s.capability = capability[0]
	}
	s.stream, s.away, s.followed = stream, false, len(header.Get(leasepb.FollowedHeader)) > 0
	s.ended.Go(func() { s.receive(stream) })
	s.notify()
	return nil
}

// handleDisconnect handles the end of a connection: the session has ended, or only its broker.
func (s *Session) handleDisconnect(err error) {
	s.mutex.Lock()
	followed := s.followed
	s.mutex.Unlock()
	if !followed || isFinal(fromStatus(err)) {
		s.fail(s.wrapError(err))
		return
	}
	killpoint.Pass("client.lost")
	s.answerAll(s.lossOf(err))
	s.reconnect()
}

// isFinal reports whether err ends the session for this client.
func isFinal(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code != SyncFailed
}

// lossOf returns the failure of calls in flight. A connection on this host ends with its broker alone.
func (s *Session) lossOf(err error) *leasepb.Failure {
	for _, detail := range status.Convert(err).Details() {
		if f, ok := detail.(*leasepb.Failure); ok {
			return f
		}
	}
	return &leasepb.Failure{
		Code:    SyncFailed,
		Message: fmt.Sprintf("the connection to the session's broker has ended: %s", status.Convert(err).Message()),
		Advice:  "the session continues; if the broker has exited, its buffers and modules are lost: allocate and load them again",
		Lost:    s.directory != "",
	}
}

// answerAll fails all calls in flight. Lost launches are reported by the next Sync.
func (s *Session) answerAll(f *leasepb.Failure) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.launches > s.synced {
		s.lost, s.synced = f, s.launches
	}
	for _, c := range s.waiting {
		if c.done != nil {
			c.done <- &leasepb.Reply{Failure: f} // buffered
		}
	}
	s.waiting, s.outgoing, s.messages, s.bytes, s.away = nil, nil, nil, 0, true
	s.notify()
}

func (s *Session) reconnect() {
	begin := time.Now()
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		s.connection.ResetConnectBackoff()
		err := s.connect(s.live)
		switch {
		case err == nil:
			return
		case isFinal(fromStatus(err)), s.isGone(), s.directory == "" && time.Since(begin) > remoteTimeout:
			s.fail(s.wrapError(err))
			return
		}
		select {
		case <-time.After(pause):
		case <-s.live.Done():
			return
		}
	}
}

func (s *Session) enter(ctx context.Context) error {
	begin := time.Now()
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		err := s.connect(ctx)
		if err == nil || s.directory == "" || isFinal(fromStatus(err)) || s.isGone() || ctx.Err() != nil || time.Since(begin) > openTimeout {
			return err
		}
		s.connection.ResetConnectBackoff()
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// isGone reports whether a session on this host has ended: its lease's directory is then removed. Until then another broker
// may follow.
func (s *Session) isGone() bool {
	if s.directory == "" {
		return false
	}
	_, err := os.Lstat(s.socket)
	return errors.Is(err, fs.ErrNotExist)
}

// takeLost returns the failure of launches lost with a broker, unless a Sync has reported it. n is the number of launches
// before the current Sync.
func (s *Session) takeLost(n uint64) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	f := s.lost
	s.lost, s.synced = nil, max(s.synced, n)
	if f == nil {
		return nil
	}
	return failure(f)
}

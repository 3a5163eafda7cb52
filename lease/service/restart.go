// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/lease/broker"
)

// Limits of broker restarts. Creating a context keeps the driver busy, and a client that faults in a loop must not slow down
// others.
const (
	restartsAtOnce  = 5
	restartInterval = 10 * time.Second
)

// superviseBroker keeps a broker running until the lease or the service ends.
func (s *Service) superviseBroker(l *lease) {
	s.check(l.live, l) // earlier events of the slice were ignored
	for exited := l.exited; exited != nil; {
		select {
		case <-exited:
		case <-l.live.Done():
			return
		}
		cause, reason := s.whyExited(l)
		switch {
		case l.live.Err() != nil:
			return
		case cause == causeExpired || cause == causeLinger:
			s.end(l, reason)
			return
		}
		killpoint.Pass("restart.found")
		args := []any{"lease", l.ID, "reason", reason}
		if l.child != nil {
			args = append(args, "output", l.child.output.text())
		}
		s.Log.Warn("a lease's broker exited unexpectedly", args...)
		s.counts.brokerEnded(cause)
		exited = s.follow(l, reason)
	}
}

// whyExited returns the cause and the reason of the broker's end, also if the enforcer ended it.
func (s *Service) whyExited(l *lease) (cause, reason string) {
	ctx, cancel := context.WithTimeout(l.live, askTimeout)
	defer cancel()
	slice, err := s.Enforcer.Slice(ctx, l.ID)
	if err == nil && slice.State == api.Expired || l.hasExpired() {
		return causeExpired, reasonExpired
	}
	if l.child == nil {
		return causeOther, "it exited; its exit code is not known, because a former lease service started it"
	}
	state := l.child.command.ProcessState
	switch state.ExitCode() {
	case broker.ExitLinger:
		return causeLinger, reasonLinger
	case broker.ExitContext:
		return causeFault, "a device fault destroyed its context"
	case broker.ExitLoadTimeout:
		return causeLoad, fmt.Sprintf("a module took longer to load than load_timeout (%s)", l.Session.LoadTimeout)
	case 0:
		return causeOther, "it was stopped by SIGTERM"
	}
	return causeOther, state.String()
}

// follow starts the next broker. It returns a channel closed when that exits, or nil if the lease ends first.
func (s *Service) follow(l *lease, reason string) chan struct{} {
	for {
		l.mu.Lock()
		l.why = reason
		l.mu.Unlock()
		if err := s.stillGranted(l); err != nil {
			s.endIfLive(l, err.Error())
			return nil
		}
		if l.pace.Wait(l.live) != nil {
			return nil
		}
		exited, err := s.startAgain(l, reason)
		switch {
		case err == nil:
			return exited
		case errors.Is(err, errTooOften):
			s.endIfLive(l, fmt.Sprintf("%v; the last time: %s", err, reason))
			return nil
		case l.live.Err() != nil:
			return nil
		}
		s.Log.Warn("starting another broker failed: trying again", "lease", l.ID, "err", err)
		reason = "starting another broker failed, trying again: " + err.Error()
	}
}

// stillGranted waits for the enforcer. It returns nil if the lease's slice exists, and otherwise why it does not.
func (s *Service) stillGranted(l *lease) error {
	for {
		ctx, cancel := context.WithTimeout(l.live, askTimeout)
		slice, err := s.Enforcer.Slice(ctx, l.ID)
		cancel()
		switch {
		case err == nil && slice.Generation == l.Generation && slice.State == api.Expired:
			return errors.New(reasonExpired)
		case err == nil && slice.Generation == l.Generation:
			return nil
		case err == nil || errors.Is(err, api.ErrNotFound):
			return errors.New(l.whyGone())
		}
		select { // wait for the enforcer's restart
		case <-time.After(interval):
		case <-l.live.Done():
			return nil // the caller checks live
		}
	}
}

func (s *Service) endIfLive(l *lease, reason string) {
	if l.live.Err() == nil {
		s.end(l, reason)
	}
}

var errTooOften = fmt.Errorf("its brokers exited unexpectedly %d times, which is the limit", broker.MaxBrokers)

func (s *Service) startAgain(l *lease, reason string) (chan struct{}, error) {
	l.starting.Lock()
	defer l.starting.Unlock()
	ctx, cancel := context.WithTimeoutCause(l.live, startTimeout, fmt.Errorf("it did not start within %s", startTimeout))
	defer cancel()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if l.process != nil {
		s.deaths.Unwatch(l.process)
		l.process.Close()
		l.process = nil
	}
	s.cgroups.empty(l.ID) // what the former broker left
	if l.Session.Number+1 >= broker.MaxBrokers {
		return nil, errTooOften
	}
	l.Session.Number++
	l.Session.Before = reason
	// Store the number first, so that no two brokers return equal handles.
	if err := l.put(s.dirOf(l.ID)); err != nil {
		return nil, err
	}
	killpoint.Pass("restart.counted")
	if err := s.start(ctx, l, func() error { return nil }); err != nil {
		return nil, err
	}
	killpoint.Pass("restart.serves")
	if err := l.put(s.dirOf(l.ID)); err != nil {
		return nil, err
	}
	killpoint.Pass("restart.stored")
	l.mu.Lock()
	l.restarts = l.Session.Number
	l.mu.Unlock()
	s.Log.Info("broker started again", "lease", l.ID, "restarts", l.Session.Number, "pid", l.PID)
	return l.exited, nil
}

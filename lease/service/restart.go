// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/lease/broker"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// A lease whose broker ends by itself gets another one: so many at once, and then one in each interval. Making a context keeps the card's
// driver busy, and a client that faults in a loop must not do that to others.
const (
	restartsAtOnce  = 5
	restartInterval = 10 * time.Second
)

// mind sees to it that the lease has a broker, until it ends or the service does.
func (s *Service) mind(l *lease) {
	s.check(l.live, l) // what the enforcer told before the lease served was of none
	for exited := l.exited; exited != nil; {
		select {
		case <-exited:
		case <-l.unkept:
			s.keepAgain(l)
			continue
		case <-l.live.Done():
			return
		}
		cause, reason := s.whyExited(l)
		switch {
		case l.live.Err() != nil:
			return
		case cause == causeExpired || cause == causeLinger:
			s.end(l, leasepb.Lease_ENDED, reason)
			return
		}
		killpoint.Pass("restart.found")
		args := []any{"lease", l.ID, "reason", reason}
		if l.child != nil {
			args = append(args, "output", l.child.output.words())
		}
		s.Log.Warn("a lease's broker ended by itself", args...)
		s.counts.brokerEnded(cause)
		exited = s.follow(l, reason)
	}
}

// whyExited is also for a broker that the enforcer ended.
func (s *Service) whyExited(l *lease) (cause, reason string) {
	ctx, cancel := context.WithTimeout(l.live, askTimeout)
	defer cancel()
	slice, err := s.Enforcer.Slice(ctx, l.ID)
	if err == nil && slice.State == api.Expired || l.due() {
		return causeExpired, reasonExpired
	}
	if l.child == nil {
		return causeOther, "it ended, and its exit code is not known: it was another lease service's"
	}
	state := l.child.command.ProcessState
	switch state.ExitCode() {
	case broker.ExitLinger:
		return causeLinger, reasonLinger
	case broker.ExitContext:
		return causeFault, "a device fault took its context"
	case broker.ExitLoadTimeout:
		return causeLoad, fmt.Sprintf("a module took longer to load than load_timeout (%s)", l.Session.LoadTimeout)
	case 0:
		return causeOther, "it was asked to end"
	}
	return causeOther, state.String()
}

// follow starts a broker in the place of one that has ended, and returns what is closed when the new one has; nil if the lease ends first.
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
		s.Log.Warn("no other broker could be started: it is tried again", "lease", l.ID, "err", err)
		reason = "another one could not be started, which is tried again: " + err.Error()
	}
}

// stillGranted returns when the enforcer has said that the lease's slice is there; its error is why it is not.
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
		select { // an enforcer that is not there comes back
		case <-time.After(interval):
		case <-l.live.Done():
			return nil // the next step finds that
		}
	}
}

func (s *Service) endIfLive(l *lease, reason string) {
	if l.live.Err() != nil {
		return
	}
	state := leasepb.Lease_FAILED
	if reason == reasonExpired {
		state = leasepb.Lease_ENDED
	}
	s.end(l, state, reason)
}

var errTooOften = fmt.Errorf("its brokers ended by themselves %d times, which is as often as is accepted", broker.MaxBrokers)

// startAgain starts the next broker of a lease.
func (s *Service) startAgain(l *lease, reason string) (chan struct{}, error) {
	l.starting.Lock()
	defer l.starting.Unlock()
	ctx, cancel := context.WithTimeoutCause(l.live, startTimeout, fmt.Errorf("it did not serve within %s", startTimeout))
	defer cancel()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if l.process != nil {
		s.deaths.Unwatch(l.process)
		l.process.Close()
		l.process = nil
	}
	if err := s.keep(l); err != nil {
		return nil, err
	}
	s.cgroups.killOthers(l.ID, l.keeper.PID) // which the former one left
	if l.Session.Number+1 >= broker.MaxBrokers {
		return nil, errTooOften
	}
	l.Session.Number++
	l.Session.Before = reason
	// First, so that no broker ever gives handles that a former one gave.
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

// keepAgain is for a lease whose keeper has ended: without one its slice would end with its broker.
func (s *Service) keepAgain(l *lease) {
	if l.pace.Wait(l.live) != nil {
		return
	}
	l.starting.Lock()
	defer l.starting.Unlock()
	if l.live.Err() != nil {
		return
	}
	s.Log.Warn("a lease's keeper ended by itself", "lease", l.ID)
	err := s.keep(l)
	if err == nil {
		err = l.put(s.dirOf(l.ID))
	}
	if err != nil {
		s.Log.Error("a lease has no other keeper: it ends with its broker", "lease", l.ID, "err", err)
		if l.keeper == nil || !l.keeper.Alive() {
			l.unkept = nil
		}
	}
}

// watchKeeper has mind learn that the keeper has ended.
func (s *Service) watchKeeper(l *lease) error {
	unkept := make(chan struct{})
	l.unkept = unkept
	return s.deaths.Watch(l.keeper, func() { close(unkept) })
}

// keep starts the lease's keeper, unless that is alive. By it the lease's slice goes on while there is no broker.
func (s *Service) keep(l *lease) error {
	if l.keeper != nil {
		if l.keeper.Alive() {
			return nil
		}
		s.deaths.Unwatch(l.keeper)
		l.keeper.Close()
		l.keeper = nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close() // one that is not told to stay ends
	command := s.command(l, "--keep", []*os.File{r})
	err = s.launch(l, command)
	r.Close()
	if err != nil {
		return fmt.Errorf("start the lease's keeper: %w", err)
	}
	handle, err := process.Open(command.Process.Pid) // it is there: nobody has waited for it
	go func() { _ = command.Wait() }()
	if err != nil {
		return err
	}
	l.keeper, l.Keeper = handle, identity{handle.PID, handle.Start}
	if err := s.watchKeeper(l); err != nil {
		return err
	}
	killpoint.Pass("keep.forked")
	if err := s.cgroups.add(l.ID, handle.PID); err != nil {
		return err
	}
	if _, err := w.WriteString(broker.Stay); err != nil {
		return fmt.Errorf("tell the lease's keeper to stay: %w", err)
	}
	killpoint.Pass("keep.told")
	return nil
}

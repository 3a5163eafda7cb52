// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"errors"
	"syscall"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
)

// What the policy has done to slices and processes. That what they hold past the ledger is charged is the sampler's doing, whatever
// the policy is.

// freeze lets nothing more be charged in the slice, on any device, and says why. What is charged stays, and can be given
// back. Called with mu held.
func (s *slice) freeze(why string) {
	if s.quota.Freeze(why) {
		s.wantNative()
	}
}

// thaw gives back what freeze took. Called with mu held.
func (s *slice) thaw() {
	if s.quota.Thaw() {
		s.wantNative()
		s.log.Info("slice unfrozen")
	}
}

// enforce ends a process that holds memory past the ledger, or its slice with it, and says whether it was signalled. That it is
// still the one that was sampled, and still of the slice, is made sure of first: its pid may be anybody's by now. It is told before it is
// done: with its last process a slice may be released at once, which is told after that.
func (e *Enforcer) enforce(ctx context.Context, s *slice, k *sampled) bool {
	p, err := process.Again(k.process.PID, k.process.Start)
	if err != nil {
		if !errors.Is(err, process.ErrDead) {
			s.log.Error("process with memory beyond the ledger not found", "pid", k.process.PID, "err", err)
		}
		return false
	}
	defer p.Close()
	if !e.member(s, p) || !s.maySignal(p.PID) {
		return false
	}
	v := k.violation
	killed := api.Event{Kind: api.EventKilled, PID: v.PID, Command: v.Command, Device: v.Device, Bytes: v.Bytes, Cause: v.Cause, Count: 1}
	if e.options.Policy.Scope == api.ScopeSlice {
		e.enforceAll(ctx, s, killed)
	} else if !k.killed { // one that does not exit at once, since it hangs in the kernel, is killed again at each sample
		s.tellKilled(killed)
	}
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, process.ErrDead) {
		s.log.Error("process with memory beyond the ledger not killed", "pid", k.process.PID, "err", err)
		return false
	}
	killpoint.Pass("policy.killed")
	return true
}

// enforceAll tells that all processes of the slice are killed, kills them until there are none, and releases it then.
func (e *Enforcer) enforceAll(ctx context.Context, s *slice, killed api.Event) {
	s.mu.Lock()
	ending := s.ending || s.quota.State == api.Released || s.quota.State == quota.Left
	s.ending = true
	s.mu.Unlock()
	if ending {
		return
	}
	e.eachProcess(s, func(p *process.Handle) {
		if p.PID != killed.PID {
			killed.Count++
		}
	})
	s.tellKilled(killed)
	e.killRound(s)
	e.ends.Go(func() { e.endByForce(ctx, s) })
}

// tellKilled tells of a process that was killed, or of Count.
func (s *slice) tellKilled(killed api.Event) {
	s.log.Warn("process killed for memory beyond the ledger", "pid", killed.PID, "command", killed.Command, "device", killed.Device,
		"bytes", killed.Bytes, "cause", killed.Cause, "processes", killed.Count)
	s.tell(killed)
}

// answerDamage is what is done about a slice whose page was overwritten. Which of its processes did it cannot be told,
// nor what any of them has charged: so where the policy is to kill, all of them are. It is told once.
func (e *Enforcer) answerDamage(ctx context.Context, s *slice) {
	s.mu.Lock()
	overwritten, action := s.overwritten, e.options.Policy.Bypass
	s.overwritten = false
	s.mu.Unlock()
	if !overwritten {
		return
	}
	e.ends.Go(func() { // the page may be gone before the next enforcer, with who has overwritten it
		if !e.waitFor(s) {
			return
		}
		defer s.turn.Give()
		if err := s.put(); err != nil {
			s.log.Error("damage of the slice not persisted: the next enforcer may not detect it", "err", err)
		}
	})
	s.tell(api.Event{Kind: api.EventBypass, Cause: api.BypassOverwritten, Action: action})
	e.count(func(c Counter) { c.Bypassed(string(action)) })
	if action == api.Kill {
		killpoint.Pass("policy.found")
		e.enforceAll(ctx, s, api.Event{Kind: api.EventKilled, Cause: api.BypassOverwritten})
	}
}

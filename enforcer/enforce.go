// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"syscall"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
)

// This file applies the policy to slices and processes. The sampler charges memory beyond the ledger under any policy.

// freeze stops all charges of the slice, on all devices, for the reason why. Charged memory stays, and can be released. Called with mu held.
func (s *slice) freeze(why string) {
	if s.quota.Freeze(why) {
		s.wantNative()
	}
}

// thaw undoes freeze. Called with mu held.
func (s *slice) thaw() {
	if s.quota.Thaw() {
		s.wantNative()
		s.log.Info("slice unfrozen")
	}
}

// enforce kills a process that holds memory beyond the ledger, or its whole slice, and reports whether it sent the signal. It first checks that the pid
// is still that process, and still in the slice. The event precedes the signal: after its last process a slice may be released at once, and that
// event must come second.
func (e *Enforcer) enforce(s *slice, k *sampled) bool {
	p, err := process.Again(k.process.PID, k.process.Start)
	if err != nil {
		if !errors.Is(err, process.ErrDead) {
			s.log.Error("process with memory beyond the ledger not found", "pid", k.process.PID, "err", err)
		}
		return false
	}
	defer p.Close()
	if !s.group.Has(p) || !s.group.MaySignal(p.PID) {
		return false
	}
	v := k.violation
	killed := api.Event{Kind: api.EventKilled, PID: v.PID, Command: v.Command, Device: v.Device, Bytes: v.Bytes, Cause: v.Cause, Count: 1}
	if e.options.Policy.Scope == api.ScopeSlice {
		e.enforceAll(s, killed)
	} else if !k.killed { // a process that hangs in the kernel is killed again at each sample
		s.tellKilled(killed)
	}
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, process.ErrDead) {
		s.log.Error("process with memory beyond the ledger not killed", "pid", k.process.PID, "err", err)
		return false
	}
	killpoint.Pass("policy.killed")
	return true
}

// enforceAll reports that all processes of the slice are killed, kills them until none is left, and then releases the slice.
func (e *Enforcer) enforceAll(s *slice, killed api.Event) {
	s.mu.Lock()
	ending := s.ending || s.quota.State == api.Released || s.quota.State == quota.Left
	s.ending = true
	s.mu.Unlock()
	if ending {
		return
	}
	s.group.Each(func(p *process.Handle) {
		if p.PID != killed.PID {
			killed.Count++
		}
	})
	s.tellKilled(killed)
	s.group.KillRound()
	e.ends.Go(func() { e.endByForce(s) })
}

func (s *slice) tellKilled(killed api.Event) {
	s.log.Warn("process killed for memory beyond the ledger", "pid", killed.PID, "command", killed.Command, "device", killed.Device,
		"bytes", killed.Bytes, "cause", killed.Cause, "processes", killed.Count)
	s.tell(killed)
}

// answerDamage has core know of a slice's damage, and applies the policy if a process overwrote the page, once. It is unknown which process did and
// what each has charged, so the kill policy kills all of them.
func (e *Enforcer) answerDamage(s *slice) {
	s.mu.Lock()
	damaged, why, overwritten, action := s.damaged, s.quota.Reason, s.overwritten, e.options.Policy.Bypass
	s.damaged, s.overwritten = false, false
	s.mu.Unlock()
	if damaged {
		e.ends.Go(func() {
			if e.waitFor(s) {
				defer s.turn.Give()
				e.note(s, core.Tampered{Generation: s.generation, Why: why})
			}
		})
	}
	if !overwritten {
		return
	}
	s.tell(api.Event{Kind: api.EventBypass, Cause: api.BypassOverwritten, Action: action})
	e.count(func(c Counter) { c.Bypassed(string(action)) })
	if action == api.Kill {
		killpoint.Pass("policy.found")
		e.enforceAll(s, api.Event{Kind: api.EventKilled, Cause: api.BypassOverwritten})
	}
}

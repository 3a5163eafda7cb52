// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// What the policy has done to slices and processes. That what they hold past the ledger is charged is the sampler's doing, whatever
// the policy is.

// freeze lets nothing more be charged in the slice, on any device, and says why. What is charged stays, and can be given
// back. Called with mu held.
func (s *slice) freeze(why string) {
	if s.state != api.Active {
		return
	}
	s.frozen = why
	changed := false
	for _, d := range s.devices {
		if d.frozen {
			continue
		}
		if err := d.freeze(true); err != nil {
			s.damaged(fmt.Errorf("the limit on device %s cannot be frozen: %w", d.uuid, err))
			return
		}
		killpoint.Pass("policy.frozen")
		changed = true
	}
	if changed {
		s.wantNative()
	}
}

// thaw gives back what freeze took. Called with mu held.
func (s *slice) thaw() {
	s.frozen = ""
	for _, d := range s.devices {
		if err := d.freeze(false); err != nil {
			s.damaged(fmt.Errorf("the limit on device %s cannot be given back: %w", d.uuid, err))
			return
		}
		killpoint.Pass("policy.thawed")
	}
	s.wantNative()
	s.log.Info("slice unfrozen")
}

// freeze sets the page's limit to 0, or to what it is.
func (d *device) freeze(frozen bool) error {
	d.frozen = frozen
	return d.setLimit(d.Limit)
}

// setLimit is how a limit is changed: the page has 0 instead as long as the slice is frozen.
func (d *device) setLimit(limit uint64) error {
	page := limit
	if d.frozen {
		page = 0
	}
	if err := d.account.Limit(page); err != nil {
		return err
	}
	d.Limit = limit
	return nil
}

// onPage is the device as the page has it.
func (d *device) onPage() ledger.Device {
	device := d.Device
	if d.frozen {
		device.Limit = 0
	}
	return device
}

// refreeze takes up what a predecessor had frozen, in an enforcer that would freeze it, too, and can find out when that
// ends; any other gives the limit back. Whoever writes a 0 there harms its own slice. Called with mu held.
func (s *slice) refreeze(index int) error {
	d := s.devices[index]
	if d.Limit == 0 || s.ledger.Limit(index) != 0 {
		return nil
	}
	if s.e.truth == nil || s.e.options.Policy.Bypass != api.Refuse || s.record() {
		return d.account.Limit(d.Limit)
	}
	d.frozen = true
	if s.e.truth.device(d.UUID) != nil {
		if s.unsampled == nil {
			s.unsampled = make(map[[16]byte]struct{})
		}
		s.unsampled[d.UUID] = struct{}{}
	}
	s.frozen = "a process held memory past the ledger before the enforcer was restarted: no memory is granted until the devices are sampled"
	return nil
}

// enforce ends a process that holds memory past the ledger, or its slice with it, and says whether it was signalled. That it is
// still the one that was sampled, and still of the slice, is made sure of first: its pid may be anybody's by now.
func (e *Enforcer) enforce(ctx context.Context, s *slice, k *sampled) bool {
	p, err := process.Again(k.process.PID, k.process.Start)
	if err == nil {
		defer p.Close()
		if !e.member(s, p) {
			return false
		}
		err = p.Signal(syscall.SIGKILL)
	}
	if err != nil && !errors.Is(err, process.ErrDead) {
		s.log.Error("kill a process that holds memory past the ledger", "pid", k.process.PID, "err", err)
		return false
	}
	if p == nil {
		return false
	}
	killpoint.Pass("policy.killed")
	v := k.violation
	killed := api.Event{Kind: api.EventKilled, PID: v.PID, Command: v.Command, Device: v.Device, Bytes: v.Bytes, Cause: v.Cause, Count: 1}
	if e.options.Policy.Scope == api.ScopeSlice {
		e.enforceAll(ctx, s, killed)
	} else if !k.killed { // one that does not exit at once, since it hangs in the kernel, is killed again at each sample
		s.tellKilled(killed)
	}
	return true
}

// enforceAll kills all processes of the slice, until there are none, and releases it then.
func (e *Enforcer) enforceAll(ctx context.Context, s *slice, killed api.Event) {
	s.mu.Lock()
	ending := s.ending || s.state == api.Released || s.state == left
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
	e.killRound(s)
	s.tellKilled(killed)
	e.ends.Go(func() { e.endByForce(ctx, s) })
}

// tellKilled tells of a process that was killed, or of Count.
func (s *slice) tellKilled(killed api.Event) {
	s.log.Warn("killed for memory held past the ledger", "pid", killed.PID, "command", killed.Command, "device", killed.Device,
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
	s.tell(api.Event{Kind: api.EventBypass, Cause: api.BypassOverwritten, Action: action})
	e.count(func(c Counter) { c.Bypassed(string(action)) })
	if action == api.Kill {
		killpoint.Pass("policy.found")
		e.enforceAll(ctx, s, api.Event{Kind: api.EventKilled, Cause: api.BypassOverwritten})
	}
}

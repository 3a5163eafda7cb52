// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// What is done about processes that hold memory past the ledger. That it is charged to their slice is the
// comparison's doing (compare.go), and happens whatever the policy is. This is who is to blame.
//
// A process that holds memory and never attached is: the interceptor attaches before it lets any call through that
// makes the driver take something, and a process whose attach fails is given nothing. So there is no moment at which
// an honest process holds memory and has no lane, however quickly it is looked at.
//
// A process that attached may hold more than its lane says, since the driver takes memory for itself (code, local
// memory), and since memory that a sibling lent it becomes its own when the sibling ends. So it is named if that is
// more than the allowance, and more than that is done only if its slice is beyond its limit, which is what others suffer
// from.
//
// Nobody is judged by one look: it can fall between two steps of a process that is at work. Two in a row are believed
// if the process charged nothing and gave nothing back meanwhile. Of one that did, a look can say too much: what
// it held between two charges is not known. To be so misled, a look has to find the lane low, the driver high and the lane low
// again; for a process that goes up and down at random that is one look in seven at most, each comparison looks five
// times at such a one (rounds), and eight comparisons in a row have to agree.

const (
	// sure is what the looks at a process must add up to, in a row, before something is done; still is what a look counts at a
	// process whose lane did not move, and any other look counts 1.
	sure  = 8
	still = 4
)

// DefaultAllowance is argued for in docs/security.md.
const DefaultAllowance = 1 << 30

// Policy is what is done about processes that hold memory past the ledger.
type Policy struct {
	Bypass    api.Action // "" is api.Log
	Scope     api.Scope  // of api.Kill; "" is api.ScopeProcess
	Allowance uint64     // bytes that a process may hold beyond its charges; 0 is DefaultAllowance
}

// place is where a process is suspected: on one device.
type place struct {
	device [16]byte
	pid    int
}

// suspect is a process that holds memory past the ledger on one device, as far as the last look says.
type suspect struct {
	process     *process.Handle
	command     string
	uuid        string
	cause       string // api.BypassUnattached or api.BypassExcess
	bytes       uint64 // past the ledger
	looks       int    // what the looks in a row add up to
	first, last time.Time
	action      api.Action // what was done; "" before it is sure
	killed      bool
}

// judge looks which processes hold memory on a device past the ledger, after a comparison: truth is what the driver
// says, beyond what the comparison found beyond the lanes, before what these held when it began. It returns whom to kill;
// doubt says that a second look should come soon, suspicious that looks are needed until there is nobody to suspect.
func (s *slice) judge(g *gpu, truth map[int]uint64, beyond map[int]bounds, before map[int]holding) (kill []*suspect, doubt, suspicious bool) {
	now := time.Now()
	after := s.holdings(g.Raw)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != api.Active && s.state != api.Damaged {
		s.acquit()
		return nil, false, false
	}
	index := s.find(g.Raw) // -1 is a device on which the slice has nothing to hold
	for pid, bytes := range truth {
		if bytes == 0 || bytes == driver.Unknown {
			continue
		}
		cause, past := s.past(index, pid, bytes, beyond[pid].sure(), after[pid])
		if cause == "" {
			continue
		}
		x := s.suspect(place{g.Raw, pid}, cause, now)
		if x == nil {
			suspicious = true
			continue
		}
		x.uuid, x.bytes, x.last = g.UUID, past, now
		if cause == api.BypassUnattached || (s.state == api.Active && before[pid].number == after[pid].number) {
			x.looks += still
		} else {
			x.looks++
		}
		switch {
		case x.looks < sure || now.Sub(x.first) < s.e.options.Interval/2:
			doubt = true
		case s.answerTo(index, x) == api.Kill:
			kill = append(kill, x)
		}
	}
	s.forget(g.Raw, now)
	return kill, doubt, suspicious || len(s.suspects) > 0 || s.frozen != ""
}

// past is how much a process holds past the ledger, and how; "" if that is nothing to speak of. Called with mu held.
func (s *slice) past(index, pid int, bytes, beyond uint64, after holding) (cause string, past uint64) {
	l := s.byPID[pid]
	switch {
	case l == nil && (s.ledger != nil || !s.remaining.Has(pid)):
		return api.BypassUnattached, bytes
	case l != nil && !l.process.Alive(): // the pid may be another's, whose turn comes when the lane is settled
		return "", 0
	case s.state == api.Damaged:
		// The page says anything, or was not found. An honest process could have charged the limit, or one that was
		// higher, and no more.
		if index >= 0 {
			bytes -= min(bytes, s.devices[index].mostLimit())
		}
	case index < 0:
	case l.settles[index].number == s.number(index, pid) && time.Now().Before(l.settles[index].until), s.makesFirstContext(index, l):
		return "", 0
	default: // what it has charged since it was looked at counts for it
		bytes = min(beyond, bytes-min(bytes, max(after.bytes, s.charged(index, l))))
	}
	if bytes <= s.e.options.Policy.Allowance {
		return "", 0
	}
	return api.BypassExcess, bytes
}

// suspect finds the suspect at a place, or makes one; nil if the process has ended. Called with mu held.
func (s *slice) suspect(at place, cause string, now time.Time) *suspect {
	if x := s.suspects[at]; x != nil {
		if x.process.Alive() && x.cause == cause {
			return x
		}
		s.lift(at)
	}
	p, err := process.Open(at.pid)
	if err != nil {
		if !errors.Is(err, process.ErrDead) {
			s.log.Error("look at a process that holds memory past the ledger", "pid", at.pid, "err", err)
		}
		return nil
	}
	x := &suspect{process: p, command: process.Name(at.pid), cause: cause, first: now}
	if s.suspects == nil {
		s.suspects = make(map[place]*suspect)
	}
	s.suspects[at] = x
	return x
}

// answerTo does what is to be done about a process of which it is sure, but for killing it, and says what that is.
// It is told once, and again if more is done than before. Called with mu held.
func (s *slice) answerTo(index int, x *suspect) api.Action {
	action := s.e.options.Policy.Bypass
	if s.record() || (x.cause == api.BypassExcess && !s.overLimit(index)) {
		action = api.Log
	}
	if action == api.Refuse {
		s.freeze(fmt.Sprintf("process %d (%s) holds %s on %s past the ledger: nothing more is given until that is gone", x.process.PID, x.command, api.FormatSize(x.bytes), x.uuid))
	}
	if action == x.action || (x.action != "" && action == api.Log) {
		return action
	}
	x.action = action
	e := api.Event{Kind: api.EventBypass, PID: x.process.PID, Command: x.command, Device: x.uuid, Bytes: x.bytes, Cause: x.cause, Action: action}
	if index >= 0 {
		e.Limit = s.devices[index].toldLimit()
	}
	s.tell(e)
	s.e.count(func(c Counter) { c.Bypassed(string(action)) })
	s.log.Warn("a process of the slice holds memory past the ledger", "device", x.uuid, "pid", x.process.PID, "command", x.command,
		"bytes", x.bytes, "cause", x.cause, "action", action)
	killpoint.Pass("policy.found")
	return action
}

// overLimit says whether the slice holds more than it may on a device, or its pool does. Called with mu held.
func (s *slice) overLimit(index int) bool {
	return index < 0 || s.state == api.Damaged || s.figures(index).Used > s.devices[index].Limit ||
		s.pool != nil && s.pool.overLimit(s.devices[index].UUID)
}

// forget drops those of whom a look on the device said nothing: at once if nothing was done about them, or if they have ended;
// else after two intervals without a word. Called with mu held.
func (s *slice) forget(raw [16]byte, now time.Time) {
	patience := 2 * s.e.options.Interval
	for at, x := range s.suspects {
		if at.device != raw || x.last.Equal(now) {
			continue
		}
		if x.action == "" || !x.process.Alive() || now.Sub(x.last) >= patience {
			s.lift(at)
		}
	}
	if s.frozen != "" && s.state == api.Active && now.Sub(s.suspicious) >= patience && !s.inDoubt(now, patience) {
		s.thaw()
	}
}

// inDoubt says whether a process is suspected of which nobody is sure yet, or not any more, since its device was not looked at:
// nothing is given back before that is known. Called with mu held.
func (s *slice) inDoubt(now time.Time, patience time.Duration) bool {
	for _, x := range s.suspects {
		if x.action == "" || x.action == api.Refuse && now.Sub(x.last) >= patience {
			return true
		}
	}
	return false
}

// lift lets go of a suspect, and says so if anything was done about it. Called with mu held.
func (s *slice) lift(at place) {
	if x := s.suspects[at]; x.action != "" {
		s.tell(api.Event{Kind: api.EventCleared, PID: x.process.PID, Command: x.command, Device: x.uuid, Bytes: x.bytes, Cause: x.cause})
		s.log.Info("a process of the slice holds nothing past the ledger any more", "device", x.uuid, "pid", x.process.PID)
	}
	s.drop(at)
}

// drop and acquit let go of one suspect, or of all. Called with mu held.
func (s *slice) drop(at place) {
	_ = s.suspects[at].process.Close()
	delete(s.suspects, at)
}

func (s *slice) acquit() {
	for at := range s.suspects {
		s.drop(at)
	}
}

// freeze lets nothing more be charged in the slice, on any device, and says why. What is charged stays, and can be given
// back. Called with mu held.
func (s *slice) freeze(why string) {
	if s.state != api.Active {
		return
	}
	s.frozen, s.suspicious = why, time.Now()
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
		s.followLater()
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
	s.followLater()
	s.log.Info("memory is given to the slice again")
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
	s.frozen, s.suspicious = "a process held memory past the ledger when the enforcer was restarted: that is looked at again", time.Now()
	return nil
}

// punish ends a process that holds memory past the ledger, or its slice with it. That it is still the one that was looked at,
// and still of the slice, is made sure of first: its pid may be anybody's by now, the handle is not.
func (e *Enforcer) punish(ctx context.Context, s *slice, x *suspect) {
	if !e.member(s, x.process) {
		return
	}
	err := x.process.Signal(syscall.SIGKILL)
	if err != nil && !errors.Is(err, process.ErrDead) {
		s.log.Error("kill a process that holds memory past the ledger", "pid", x.process.PID, "err", err)
		return
	}
	killpoint.Pass("policy.killed")
	killed := api.Event{Kind: api.EventKilled, PID: x.process.PID, Command: x.command, Device: x.uuid, Bytes: x.bytes, Cause: x.cause, Count: 1}
	if e.options.Policy.Scope == api.ScopeSlice {
		e.punishAll(ctx, s, killed)
	} else if !x.killed { // one that does not die at once, since it hangs in the kernel, is killed again at each look
		s.tellKilled(killed)
	}
	x.killed = true // only the comparison of its device asks
}

// punishAll kills all processes of the slice, until there are none, and releases it then.
func (e *Enforcer) punishAll(ctx context.Context, s *slice, killed api.Event) {
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

// tellKilled tells of a death, or of Count.
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
		e.punishAll(ctx, s, api.Event{Kind: api.EventKilled, Cause: api.BypassOverwritten})
	}
}

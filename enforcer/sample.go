// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/devices"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/policy"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/truth"
)

// The enforcer charges in lane 0, as one sum per device, what the driver holds for processes beyond their lanes: modules, local memory, hidden
// memory, and what is left after an exit. Package truth has the rules. This file samples the driver, finds the slice of each process, and acts on
// the results.

// Policy is the action on processes that hold memory beyond the ledger.
type Policy = policy.Policy

// sampler samples one device. It belongs to one goroutine.
type sampler struct {
	e     *Enforcer
	g     *devices.Device
	rules truth.Rules
	idle  truth.Idle
	known map[int]*sampled // by pid: slices' processes that the driver lists

	before, after lanes
	outside       map[int]uint64 // by pid: bytes in the last list of processes of no slice
}

// sampled is one process of a slice, on the sampler's device.
type sampled struct {
	process truth.Process
	slice   *slice
	at      time.Time // of the last sample that listed it
	exited  time.Time
	state   truth.State
	lane    uint64 // its lane at the last sample that decided

	violation policy.Violation // of the last sample that found one
	violating bool             // there is one
	found     bool             // by the last sample, too: it is not about to be cleared
	done      api.Action       // taken on the violation
	killed    bool
}

// found is the result of a device's last sample for a slice's processes.
type found struct {
	processes map[int]use
	refused   []policy.Violation // for which the slice is frozen
	undecided bool               // the bytes of a process are unknown
	doubt     bool               // it is unknown whether there is a violation
}

// use is the result of a device's last sample for a process.
type use struct {
	start   uint64
	driver  *uint64 // bytes by the driver; nil if unknown
	charged uint64  // bytes beyond its lane
	lane    uint64  // the lane of that result: 0 if it had none
	past    uint64  // bytes beyond the ledger, if that is a violation
	cause   string  // of a violation; "" if there is none
}

func (e *Enforcer) newSampler(g *devices.Device) *sampler {
	o := e.options
	return &sampler{
		e: e, g: g, known: make(map[int]*sampled), before: newLanes(), after: newLanes(),
		rules: truth.Rules{SettleTime: o.SettleTime, ExitGrace: o.ExitGrace, BypassGrace: o.Policy.Grace, Allowance: o.Policy.Allowance},
	}
}

// run samples the device until ctx ends: once in each interval, and once more if that would decide something. So the driver lists processes at most
// twice in an interval, whatever they do.
func (m *sampler) run(ctx context.Context) {
	ticker := time.NewTicker(m.e.options.Interval)
	defer ticker.Stop()
	var again time.Time // time of another sample
	spare := false      // this interval's second sample is still free
	for {
		var wanted <-chan time.Time
		if spare && !again.IsZero() {
			wanted = time.After(time.Until(again))
		}
		regular := false
		select {
		case <-ctx.Done():
			m.e.publish(m.g) // what was learned since the last sample
			return
		case <-m.g.Exits:
			if at := time.Now().Add(m.rules.ExitGrace); again.IsZero() || at.Before(again) {
				again = at
			}
			continue
		case <-ticker.C:
			regular, spare = true, true
		case <-wanted:
			spare = false
		}
		m.e.publish(m.g)
		again = m.sample(regular && again.IsZero())
	}
}

// sample takes one sample of all processes, unless mayStand is set and the last list is still valid. It returns when another sample would decide
// something; zero if none would.
func (m *sampler) sample(mayStand bool) (again time.Time) {
	e, g := m.e, m.g
	all := e.all()
	if len(all) == 0 {
		clear(m.known)
		m.idle = truth.Idle{}
		g.Idle(e.options.Interval, e.inSlice)
		return again
	}
	at := time.Now()
	before, err := m.read(&m.before, all)
	switch {
	case errors.Is(err, driver.ErrHangs): // the next query would hang, too
	case err == nil && mayStand && m.idle.Stands(at, before, e.options.IdleInterval):
		e.failing(g, nil)
		g.Sampled(at, before.Used, nil, false)
		return again
	}
	m.idle = truth.Idle{}
	if errors.Is(err, driver.ErrHangs) {
		e.failing(g, err)
		return again
	}
	listed, failed := g.Processes(devices.Timeout)
	if failed != nil {
		e.failing(g, failed)
		return again
	}
	after, errAfter := m.read(&m.after, all)
	known, open, untold := m.identify(at, listed)
	e.failing(g, untold)
	if errAfter == nil {
		g.Sampled(at, after.Used, m.outside, true)
	}

	results := make(map[*slice]*found)
	violations := make(map[*slice][]*sampled)
	for pid, k := range known {
		x := truth.Sample{Begun: at, Bytes: listed[pid], Before: m.before.of(k), After: m.after.of(k), Exited: k.exited}
		if x.Unknown = x.Bytes == driver.Unknown; x.Unknown {
			x.Bytes = 0
		}
		var res truth.Result
		k.state, res = truth.Next(k.state, x, m.rules)
		f := results[k.slice]
		if f == nil {
			f = &found{processes: make(map[int]use)}
			results[k.slice] = f
		}
		if res.Decided {
			k.lane = x.After.ID
		}
		u := use{start: k.process.Start, charged: res.Excess, lane: k.lane}
		if bytes := x.Bytes; !x.Unknown {
			u.driver = &bytes
		}
		if k.at.Equal(at) {
			f.processes[pid] = u
		} else if !res.Violation { // no longer listed
			delete(m.known, pid)
		}
		f.undecided = f.undecided || !res.Decided
		f.doubt = f.doubt || !res.Decided || !res.Again.IsZero()
		open = open || !res.Decided || res.Open || res.Violation || !res.Again.IsZero()
		k.violating, k.found = res.Violation, res.Violation && res.Decided && res.Again.IsZero()
		if k.found {
			k.violation = policy.Violation{
				PID: pid, Command: k.violation.Command, Device: g.UUID, Cause: k.violation.Cause, Bytes: res.Excess, Record: k.slice.record(),
			}
		}
		if res.Violation || res.Cleared {
			violations[k.slice] = append(violations[k.slice], k)
		}
		if !res.Again.IsZero() {
			soon := res.Again
			if !soon.After(at) {
				soon = at.Add(e.options.Interval / 2)
			}
			if again.IsZero() || soon.Before(again) {
				again = soon
			}
		}
	}
	for _, s := range all {
		f := results[s]
		if f == nil {
			f = &found{}
		}
		if m.take(s, f, violations[s], at) {
			open = true
		}
	}
	// Instances of a GPU can share memory, so its used bytes may not be those of this instance.
	m.idle = truth.Listed(at, before, after, open || err != nil || errAfter != nil || g.Parent != "")
	return again
}

// read reads the lanes of all slices, then the device's memory in use.
func (m *sampler) read(l *lanes, all []*slice) (truth.Totals, error) {
	l.read(all, m.g.Raw)
	used, err := m.g.Used(devices.Timeout)
	return truth.Totals{Used: used, Lanes: l.digest}, err
}

// identify finds the slices of the listed processes. It returns the slices' processes by pid, including those no longer listed. open is true if
// listed memory can be released without a change to a lane. untold is set if the driver gives no figure for a process of a slice.
func (m *sampler) identify(at time.Time, listed map[int]uint64) (known map[int]*sampled, open bool, untold error) {
	m.outside = make(map[int]uint64)
	for pid, bytes := range listed {
		s, p, exited := m.owner(pid, at)
		if s == nil {
			m.outside[pid] = bytes
		}
		standing, sampling := m.after.slices[s]
		open = open || bytes == driver.Unknown || bytes > 0 && (!sampling || !standing.charges)
		if s != nil && bytes == driver.Unknown {
			untold = driver.ErrUntold
		}
		if !sampling || !standing.samples {
			continue
		}
		k := m.known[pid]
		if k == nil || k.process != p || k.slice != s {
			k = &sampled{process: p, slice: s}
			m.known[pid] = k
		}
		k.at = at
		if k.exited.IsZero() {
			k.exited = exited
		}
	}
	maps.DeleteFunc(m.known, func(_ int, k *sampled) bool { return !m.after.slices[k.slice].samples })
	for _, k := range m.known {
		if !k.at.Equal(at) && k.exited.IsZero() && !running(k.process) {
			k.exited = at
		}
	}
	return m.known, open, untold
}

// owner returns the slice of a listed process; nil if it is in none. An attached process belongs to the slice with its lane, even after
// it moved to another cgroup. An exited process must be known from before; exited is when it was.
func (m *sampler) owner(pid int, at time.Time) (s *slice, p truth.Process, exited time.Time) {
	for _, l := range []lanes{m.after, m.before} {
		if r, has := l.byPID[pid]; has && r.handle.Alive() {
			return r.slice, r.process, exited
		}
	}
	start, err := process.StartTime(pid)
	if err == nil && process.Exists(pid) {
		return m.e.owner(pid), truth.Process{PID: pid, Start: start}, exited
	}
	if err != nil && !errors.Is(err, process.ErrDead) {
		return nil, p, exited
	}
	is := func(p truth.Process) bool { return err != nil || p.Start == start } // a zombie still has its start time
	for _, l := range []lanes{m.after, m.before} {
		if x, has := l.exits[pid]; has && is(x.process) {
			return x.slice, x.process, x.at
		}
		if r, has := l.byPID[pid]; has && is(r.process) {
			return r.slice, r.process, at
		}
	}
	if k := m.known[pid]; k != nil && is(k.process) {
		return k.slice, k.process, at
	}
	return nil, p, exited
}

func running(p truth.Process) bool {
	start, err := process.StartTime(p.PID)
	return err == nil && start == p.Start && process.Exists(p.PID) || err != nil && !errors.Is(err, process.ErrDead)
}

// take charges what was found of a slice's processes, and applies the policy to violations. open is true if there is more to find without a change.
func (m *sampler) take(s *slice, f *found, violations []*sampled, at time.Time) (open bool) {
	e, g := m.e, m.g
	overLimit, used := s.charge(g, f, at)
	if used && len(f.processes) > 0 && s.uses(g) {
		open = true // none of it is charged yet
	}
	if s.settleExecuted(g.Raw, f.processes) {
		open = true
	}
	var kill []*sampled
	for _, k := range violations {
		if !k.violating {
			s.cleared(k)
			continue
		}
		if !k.found {
			f.show(k)
			if k.done == api.Refuse {
				f.refused = append(f.refused, k.violation)
			}
			continue
		}
		cause := api.BypassExcess
		if !m.after.has(k) && !m.before.has(k) {
			cause = api.BypassUnattached
		}
		if k.violation.Cause != cause {
			s.cleared(k)
			k.violation.Cause = cause
		}
		if k.violation.Command == "" {
			k.violation.Command = process.Name(k.process.PID)
		}
		k.violation.OverLimit = overLimit
		action, tell := e.options.Policy.Answer(k.violation, k.done)
		if tell {
			k.done = action
			s.tellViolation(k.violation, g.Raw, action)
		}
		switch action {
		case api.Refuse:
			f.refused = append(f.refused, k.violation)
		case api.Kill:
			kill = append(kill, k)
		}
		f.show(k)
	}
	s.evaluated(g.Raw, f)
	for _, k := range kill {
		if e.enforce(s, k) {
			k.killed = true
		}
	}
	return open
}

// failing notes whether the driver answers, and logs changes.
func (e *Enforcer) failing(g *devices.Device, err error) {
	switch changed := g.Asked(err); {
	case !changed:
	case err != nil:
		e.log.Error("NVML query failed: memory beyond the ledger is not detected on the device", "device", g.UUID, "err", err)
	default:
		e.log.Info("NVML answers again", "device", g.UUID)
	}
}

// charge sets lane 0 of a device to what was found there. overLimit reports whether the slice then exceeds a limit; uses, whether the slice lacks
// the device but may have it.
func (s *slice) charge(g *devices.Device, f *found, at time.Time) (overLimit, uses bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	index := s.quota.Index(g.Raw)
	if index < 0 || s.quota.State != api.Active {
		for pid, u := range f.processes {
			u.charged = 0
			f.processes[pid] = u
		}
		return true, index < 0 && s.quota.State == api.Active
	}
	d := s.quota.Devices[index]
	var total uint64
	for _, u := range f.processes {
		total += u.charged
	}
	n := s.note(d)
	if n.sampled.IsZero() {
		n.sampled = at
	}
	n.samples++
	if d.Inherited > 0 {
		if f.undecided && (at.Sub(n.sampled) < s.e.options.SettleTime || n.samples < truth.Agreeing) { // as rule 3 of package truth
			total = max(total, d.Inherited)
		} else {
			d.Inherited = 0
		}
	}
	maps.DeleteFunc(n.exits, func(_ int, x exit) bool { return x.at.Before(at) }) // those listed are in known from here on
	s.quota.SetExcess(index, total, 0)
	if s.quota.State != api.Active {
		return true, false
	}
	p := s.poolOn(d.UUID)
	if p != nil {
		p.beyondLanes(s, d.UUID, total, d.Inherited == 0)
	}
	return s.quota.OverLimit(index) || p != nil && p.overLimit(d.UUID), false
}

// uses adds a device to the ledger that a process uses unannounced, and reports whether the slice may use it. The addition is stored, so it runs in
// the background, one at a time.
func (s *slice) uses(g *devices.Device) bool {
	if _, covered := s.quotaOn(g.Raw, g.Total); !covered {
		return false
	}
	if s.adding.CompareAndSwap(false, true) {
		s.e.ends.Go(func() {
			defer s.adding.Store(false)
			if _, err := s.addDevice(g.Raw, g.Total); err != nil && !errors.Is(err, ErrClosed) {
				s.log.Error("device in use not added to the ledger", "device", g.UUID, "err", err)
			}
		})
	}
	return true
}

// evaluated records the result for a device, and freezes or thaws the slice by it.
func (s *slice) evaluated(raw [16]byte, f *found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isSampled() {
		return
	}
	if len(f.processes) > 0 || f.doubt {
		if s.found == nil {
			s.found = make(map[[16]byte]*found)
		}
		s.found[raw] = f
	} else {
		delete(s.found, raw)
	}
	if s.quota.State != api.Active {
		return
	}
	delete(s.unsampled, raw)
	var refused []policy.Violation
	doubt := len(s.unsampled) > 0
	for _, f := range s.found {
		refused = append(refused, f.refused...)
		doubt = doubt || f.doubt
	}
	switch why := policy.Frozen(s.quota.Frozen, refused, doubt); {
	case why != "":
		s.freeze(why)
	case s.quota.Frozen != "":
		s.thaw()
	}
}

func (s *slice) tellViolation(v policy.Violation, raw [16]byte, action api.Action) {
	e := api.Event{Kind: api.EventBypass, PID: v.PID, Command: v.Command, Device: v.Device, Bytes: v.Bytes, Cause: v.Cause, Action: action}
	s.mu.Lock()
	if index := s.quota.Index(raw); index >= 0 {
		e.Limit = s.eventLimit(s.quota.Devices[index])
	}
	s.mu.Unlock()
	if v.Cause == api.BypassUnattached {
		e.Preload = s.preloadOf(v.PID)
	}
	s.tell(e)
	s.e.count(func(c Counter) { c.Bypassed(string(action)) })
	s.log.Warn("process holds memory beyond its charges", "device", v.Device, "pid", v.PID, "command", v.Command,
		"bytes", v.Bytes, "cause", v.Cause, "preload", e.Preload, "action", action)
	killpoint.Pass("policy.found")
}

// cleared reports the end of a violation that was reported.
func (s *slice) cleared(k *sampled) {
	if v := k.violation; k.done != "" {
		s.tell(api.Event{Kind: api.EventCleared, PID: v.PID, Command: v.Command, Device: v.Device, Bytes: v.Bytes, Cause: v.Cause})
		s.log.Info("process no longer holds memory beyond its charges", "device", v.Device, "pid", v.PID)
	}
	k.done, k.killed = "", false
}

// exit is an exited process, until the driver's bytes for it are known.
type exit struct {
	slice   *slice
	process truth.Process
	at      time.Time
}

// exited notes an exited process, and has its devices sampled. Called with mu held.
func (s *slice) exited(p *process.Handle) {
	if s.e.truth == nil {
		return
	}
	for _, d := range s.quota.Devices {
		g := s.e.truth.At(d.UUID)
		// If the driver does not answer there may be any number by now.
		n := s.note(d)
		if g == nil || len(n.exits) >= ledger.Slots {
			continue
		}
		if n.exits == nil {
			n.exits = make(map[int]exit)
		}
		n.exits[p.PID] = exit{s, truth.Process{PID: p.PID, Start: p.Start}, time.Now()}
		g.Exited()
	}
}

// show notes a violation for display.
func (f *found) show(k *sampled) {
	if u, listed := f.processes[k.process.PID]; listed {
		u.past, u.cause = k.violation.Bytes, k.violation.Cause
		f.processes[k.process.PID] = u
	}
}

// past returns the bytes held beyond the ledger, for display: at most total for each process.
func (f *found) past(total uint64) (sum uint64) {
	if f == nil {
		return 0
	}
	for _, u := range f.processes {
		sum += min(u.past, total)
	}
	return sum
}

// chargedFor returns what is charged beyond a process's lane. Charges of a former image of the process do not count.
func (f *found) chargedFor(p *process.Handle, l *quota.Lane) uint64 {
	if f == nil {
		return 0
	}
	if u := f.processes[p.PID]; u.start == p.Start && u.lane == l.ID() {
		return u.charged
	}
	return 0
}

// driver returns the driver's bytes for a process; 0 if unknown.
func (f *found) driver(pid int) uint64 {
	if f == nil || f.processes[pid].driver == nil {
		return 0
	}
	return *f.processes[pid].driver
}

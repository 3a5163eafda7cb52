// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/attach"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/report"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// slice is one slice's life in this process. What is above mu does not change.
type slice struct {
	e          *Enforcer
	log        *slog.Logger
	pace       *rate.Limiter       // of what its processes ask
	request    api.RegisterRequest // quotas by UUID
	holder     *admission.Holder
	generation uint64
	created    time.Time
	dir        string
	initStart  uint64
	pidNS      uint64      // the pid namespace of a container's first process, by its inode; 0: not known
	leads      bool        // that process is the first one of its pid namespace: others that are there came from it, or joined it
	cgroup     cgroup.Path // of a container
	token      session.Token
	init       *process.Handle // if watchesFirst; nil if it was dead already when the enforcer restarted
	pools      []*pool         // of which it is a member: no two have a device in common

	joined session.Members

	// turn orders what changes the slice: registering, devices, quotas, time, joining, releasing. What is stored of it, and what
	// the driver is told of it, changes in the turn only.
	turn *guard.Turn

	mu      guard.Mutex[guard.Slice]
	quota   *quota.Quota
	notes   map[*quota.Device]*note
	strange bool // a process that is not of the slice was named in the log
	server  *attach.Server

	closing  bool // it is being released: no process is let in any more
	executed bool // processes that have called execve are being found (exec.go)

	found       map[[16]byte]*found   // what the last samples did, by device; none for nothing
	adding      atomic.Bool           // a device in use is being added to the ledger
	unsampled   map[[16]byte]struct{} // devices that have to be sampled before it is again, after a restart
	overwritten bool                  // its page was, and nothing is done about it yet

	refusals report.Refusals
	refused  *api.Refusal // the last; nil if there was none. Not changed once it is here

	needsChanged bool // since the history has it
	rejected     report.Rejected

	quotas   []api.Quota // as they are now; request has those that it began with
	lowered  bool        // a quota is less than what is used, which admission still counts
	ttl      time.Duration
	deadline time.Duration // since boot; 0 is never
	ending   bool          // this enforcer sees to its end
	expired  bool          // it is known that its time is over
	asked    time.Duration // since boot: when its processes were asked to end; 0 if they were not

	overstayed string // why it was ended before its time

	suspension *store.Suspension // nil: it goes on. What it points to does not change. Changes in the turn
	residency  *residency        // of an elastic slice

	remaining session.Remaining // of a session that is released, or who may have a ledger that was not found; changes in the turn, with mu held

	mayBeLimited bool // the driver has limits of its cgroup, or is going to (native.go)
}

// note is what a slice knows of one of its quota's devices beside the quota.
type note struct {
	recovered   uint64       // bytes given back after exits, of which it was told
	needed      uint64       // the quota with which all that was refused by the slice's own limit would have fitted
	allocations uint64       // that were counted among the host's
	exits       map[int]exit // by pid: processes that have exited, until the driver was asked what it holds for them
	sampled     time.Time    // when it was first; zero if it was not by this enforcer
}

// newQuota gives a slice that nobody knows a quota without devices.
func (s *slice) newQuota() {
	s.quota = quota.New(quota.Options{Log: s.log, Owner: s, Lock: &s.mu, Deaths: s.e.deaths, Record: s.record()})
}

// noted is what is noted of a device, for who changes nothing of it. Called with mu held.
func (s *slice) noted(d *quota.Device) note {
	if n := s.notes[d]; n != nil {
		return *n
	}
	return note{}
}

// note is never nil. Called with mu held.
func (s *slice) note(d *quota.Device) *note {
	n := s.notes[d]
	if n == nil {
		n = new(note)
		if s.notes == nil {
			s.notes = make(map[*quota.Device]*note)
		}
		s.notes[d] = n
	}
	return n
}

func (s *slice) id() string { return s.request.ID }

func (s *slice) record() bool { return s.request.Mode == api.Record }

// stored is the slice as the store keeps it. Called with mu held, or before anybody else knows the slice.
func (s *slice) stored() store.Slice {
	r := store.Slice{
		Request: s.request, Generation: s.generation, Created: s.created,
		Deadline: s.deadline, Expired: s.expired, Asked: s.asked,
		InitStart: s.initStart, PIDNS: s.pidNS, Leads: s.leads,
		CgroupMount: s.cgroup.Mount, CgroupRel: s.cgroup.Rel, CgroupInode: s.cgroup.Inode, CgroupV2: s.cgroup.V2,
		Native: s.mayBeLimited, Suspended: s.suspension,
		Dir:    s.dir,
		Joined: s.joined.Stored(), Survivors: s.remaining.Stored(),
	}
	r.Request.Quotas, r.Request.TTL = s.quotas, s.ttl
	if s.token != (session.Token{}) {
		r.TokenSum = s.token[:]
	}
	if s.quota.Overwritten {
		r.Damaged = s.quota.Reason
	}
	if s.quota.Stored {
		r.Ledger = store.Ledger(s.quota.Identity)
	}
	for _, d := range s.quota.Devices {
		r.Limits = append(r.Limits, s.storedLimit(d))
	}
	return r
}

func (s *slice) storedNow() store.Slice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stored()
}

// storedLimit is a device as the store keeps it. Called with mu held, or of a device that nobody else has.
func (s *slice) storedLimit(d *quota.Device) store.Limit {
	bytes := d.Granted()
	if s.record() {
		bytes, _ = quotaOn(s.quotas, d.UUID, d.Total)
	}
	return storedLimit(d, bytes, d.Highest)
}

// storedLimit is a device as the store keeps it, with a limit of so many bytes. The highest one that was is kept if it is more.
func storedLimit(d *quota.Device, bytes, highest uint64) store.Limit {
	if highest <= bytes {
		highest = 0
	}
	return store.Limit{Device: d.Name, Bytes: bytes, Total: d.Total, Most: highest}
}

// listen opens the attach socket.
func (s *slice) listen() error {
	place := attach.Place{Dir: filepath.Join(s.dir, bindName), Mode: 0o666, UID: -1, GID: -1}
	if s.request.OnHost() {
		place.Mode = 0o600
		if !s.e.options.Unprivileged {
			place.UID, place.GID = int(s.request.UID), int(s.request.GID)
		}
	}
	server, err := attach.Serve(place, s.pace, s.isMember, s.answer, s.log)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = server
	return nil
}

// Damaged is the quota's: nothing more can be charged; the processes and the host go on. Called with mu held.
func (s *slice) Damaged() {
	s.overwritten = s.quota.Overwritten
	s.log.Error("the slice's ledger is damaged: a process of the slice overwrote it, or the slice is under attack; nothing more can be charged until the slice is released",
		"err", s.quota.Reason)
}

// Ending is the quota's. Called with mu held.
func (s *slice) Ending(l *quota.Lane) {
	if s.quota.State == api.Active || s.quota.State == api.Expired {
		s.reportRefusals(l, time.Now())
	}
	if !l.Process.Alive() { // else it called execve, which closes what the driver would go by
		s.exited(l.Process)
	}
}

// check compares the page with the enforcer's own copy.
func (s *slice) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reportRejected()
	switch s.quota.State {
	case api.Active:
		if err := s.quota.Verify(); err != nil {
			s.quota.Damage(err)
			return
		}
		for _, p := range s.pools {
			p.reconcile(s)
		}
	case api.Expired: // nothing is charged any more, so nothing can be charged wrongly
	default:
		return
	}
	if s.lowered && s.turn.TryTake() { // else a quota is being set, and has what it is set to
		s.recommit()
		s.turn.Give()
	}
	s.reportCounts()
	s.checkNeeds()
}

// watchesFirst says whether the end of the slice's first process is waited for. A cgroup of version 2 tells by itself when it has
// become empty; there the process is looked up when it is asked for, which saves a descriptor for each container.
func (s *slice) watchesFirst() bool { return !s.cgroup.V2 }

// firstLives says whether the process with which the slice began is alive.
func (s *slice) firstLives() bool {
	p, err := process.Again(s.request.PID, s.initStart)
	if err != nil {
		return !errors.Is(err, process.ErrDead) // what is not known to be dead is alive
	}
	p.Close()
	return true
}

// running says whether a process of the slice is alive, as far as its kind of slice can tell.
func (s *slice) running() bool {
	if s.init != nil && s.init.Alive() {
		return true
	}
	if s.request.Session {
		return false
	}
	populated, err := cgroup.Populated(s.cgroup)
	if err != nil {
		s.log.Error("is the slice's cgroup empty", "err", err)
		return true // not known to be dead
	}
	return populated
}

// leave lets go of the slice without ending it. Called once, in the slice's turn if it is known to anybody.
func (s *slice) leave() {
	s.mu.Lock()
	s.quota.State = quota.Left
	s.mu.Unlock()
	s.hangUp()
	s.mu.Lock()
	s.let()
	s.mu.Unlock()
	s.closeRemaining()
	for _, p := range s.pools {
		p.part(s)
	}
}

// hangUp closes the attach socket.
func (s *slice) hangUp() {
	s.mu.Lock()
	server := s.server
	s.server = nil
	s.mu.Unlock()
	if server == nil {
		return
	}
	if err := server.Close(); err != nil {
		s.log.Error("close the attach socket", "err", err)
	}
}

// let closes what this process has open for the slice, but for the attach socket. Called with mu held.
func (s *slice) let() {
	s.found, s.notes = nil, nil
	s.closeJoined()
	errs := []error{s.quota.Leave()}
	s.quota.Devices = nil
	if s.init != nil {
		s.e.deaths.Unwatch(s.init)
		errs = append(errs, s.init.Close())
	}
	if err := errors.Join(errs...); err != nil && !errors.Is(err, os.ErrClosed) {
		s.log.Error("close a slice", "err", err)
	}
}

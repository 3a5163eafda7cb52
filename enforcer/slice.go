// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/attach"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/members"
	"github.com/gpuslice/gpuslice/enforcer/mover"
	"github.com/gpuslice/gpuslice/enforcer/pace"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/report"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// slice is one slice. Fields above mu do not change.
type slice struct {
	e          *Enforcer
	log        *slog.Logger
	pace       *pace.Limiter       // limits the requests of its processes
	request    api.RegisterRequest // quotas by UUID
	holder     *admission.Holder
	generation uint64
	created    time.Time
	dir        string
	group      *members.Group // its processes
	token      session.Token
	pools      []*pool // its pools: no two have a device in common
	memory     *mover.Slice

	// Its turn orders changes of the slice: registering, devices, quotas, time to live, joining, moves, releasing. Its record and the driver's limits
	// change in the turn only.
	desk

	mu      guard.Mutex[guard.Slice]
	quota   *quota.Quota
	notes   map[*quota.Device]*note
	strange bool // a process outside the slice was logged
	server  *attach.Server

	closing  bool      // it is being released: no process can attach
	op       uint64    // of core's last operation on its ledger or memory
	remains  core.Used // what its processes hold, once it is released
	unstored error     // its release is not in the store yet
	executed bool      // processes that called execve are being searched for (exec.go)

	found       map[[16]byte]*found   // by device: results of the last samples, if any
	adding      atomic.Bool           // a device in use is being added to the ledger
	unsampled   map[[16]byte]struct{} // devices to sample before the slice is thawed, after a restart
	damaged     bool                  // core does not know yet that the ledger is damaged
	overwritten bool                  // its page was overwritten, and the policy is not applied yet

	refusals report.Refusals
	refused  *api.Refusal // the last one; nil if there was none. What it points to does not change

	needsChanged bool // since the history was updated
	rejected     report.Rejected

	made    bool                // core has admitted it
	rec     core.Record         // as stored, but for the limits, which the quota has, and the residence, which suspension has
	totals  map[[16]byte]uint64 // bytes of the devices that its processes named
	changed []string            // devices with another limit, to be told
	ending  bool                // this enforcer is ending it

	overstayed string // the reason if it was ended before its deadline

	suspension *store.Suspension // nil: not suspended. What it points to does not change. Changes in the turn
	moved      *moved            // by its last move; nil if that is told, or moved nothing
	residency  *residency        // of an elastic slice

	mayBeLimited bool // the driver has limits on its cgroup, or will have (native.go)
}

// note is what a slice knows of one of its quota's devices besides the quota.
type note struct {
	recovered   uint64       // bytes released after exits that have been reported
	needed      uint64       // the quota in which all requests refused by the slice's own limit would have fitted
	allocations uint64       // already added to the host's count
	exits       map[int]exit // by pid: exited processes, until the driver's bytes for them are known
	sampled     time.Time    // time of the first sample by this enforcer; zero before
	samples     int          // number of them
}

// newQuota gives a new slice a quota without devices.
func (s *slice) newQuota() {
	s.quota = quota.New(quota.Options{Log: s.log, Owner: s, Lock: &s.mu, Deaths: s.e.deaths, Record: s.record()})
	s.memory = s.e.mover.Slice(mover.Slice{ID: s.id(), Owner: s, Quota: s.quota, Turn: s.turn, Elastic: s.request.Elastic})
}

// noted returns a copy of a device's note. Called with mu held.
func (s *slice) noted(d *quota.Device) note {
	if n := s.notes[d]; n != nil {
		return *n
	}
	return note{}
}

// note returns a device's note; never nil. Called with mu held.
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

// stored returns the slice's record. Called with mu held, or before the slice is registered.
func (s *slice) stored() store.Slice {
	r := store.Slice{
		Request: s.request, Generation: s.generation, Created: s.created,
		Deadline: s.rec.Deadline, Expired: s.rec.Phase == core.Expiring, Asked: s.rec.Asked,
		InitStart: s.group.Start, PIDNS: s.group.PIDNS, Leads: s.group.Leads,
		CgroupMount: s.group.Cgroup.Mount, CgroupRel: s.group.Cgroup.Rel, CgroupInode: s.group.Cgroup.Inode, CgroupV2: s.group.Cgroup.V2,
		Native: s.mayBeLimited, Suspended: s.suspension,
		Dir: s.dir,
	}
	for _, j := range s.group.Joined() {
		r.Joined = append(r.Joined, store.Joined{Process: store.Process{PID: j.PID, Start: j.Start}, UID: j.UID})
	}
	for _, p := range s.group.Remaining() {
		r.Survivors = append(r.Survivors, store.Process{PID: p.PID, Start: p.Start})
	}
	r.Request.Quotas, r.Request.TTL = s.rec.Quotas, s.rec.TTL
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

// storedLimit returns a device's record. Called with mu held, or before the device is in use.
func (s *slice) storedLimit(d *quota.Device) store.Limit {
	bytes := d.Granted()
	if s.record() {
		bytes, _ = quotaOn(s.rec.Quotas, d.UUID, d.Total)
	}
	return storedLimit(d, bytes, d.Highest)
}

// storedLimit returns a device's record with a limit in bytes. It has the highest limit so far only if that is more.
func storedLimit(d *quota.Device, bytes, highest uint64) store.Limit {
	if highest <= bytes {
		highest = 0
	}
	return store.Limit{Device: d.Name, Bytes: bytes, Total: d.Total, Most: highest}
}

func (s *slice) listen() error {
	place := attach.Place{Dir: filepath.Join(s.dir, bindName), Mode: 0o666, UID: -1, GID: -1}
	if s.request.OnHost() {
		place.Mode = 0o600
		if !s.e.options.Unprivileged {
			place.UID, place.GID = int(s.request.UID), int(s.request.GID)
		}
	}
	server, err := attach.Serve(place, s.pace, s.group.Has, s.answer, s.log)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = server
	return nil
}

// Damaged is called by the quota: nothing more can be charged, and processes continue. Called with mu held.
func (s *slice) Damaged() {
	s.damaged, s.overwritten = true, s.quota.Overwritten
	s.log.Error("the slice's ledger is damaged: a process of the slice overwrote it, or the slice is under attack; nothing more can be charged until the slice is released",
		"err", s.quota.Reason)
}

// Ending is called by the quota when a lane ends. Called with mu held.
func (s *slice) Ending(l *quota.Lane) {
	if s.quota.State == api.Active || s.quota.State == api.Expired {
		s.reportRefusals(l, time.Now())
	}
	if !l.Process.Alive() { // else it called execve, which frees its device memory
		s.exited(l.Process)
	}
}

// check compares the page with the enforcer's own copy.
func (s *slice) check() {
	if s.verify() && s.turn.TryTake() { // else at the next check
		s.reportUse()
		s.turn.Give()
	}
}

// verify does what check does without the turn, and reports whether core has to be told what the processes hold.
func (s *slice) verify() (tell bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reportRejected()
	switch s.quota.State {
	case api.Active:
		if err := s.quota.Verify(); err != nil {
			s.quota.Damage(err)
			return false
		}
		for _, p := range s.pools {
			p.reconcile(s)
		}
	case api.Expired: // nothing can be charged any more
	default:
		return false
	}
	s.reportCounts()
	s.checkNeeds()
	return s.beyond()
}

// running reports whether the slice has a living process, or stays without one. Of a session only the first process is checked.
func (s *slice) running() bool { return s.group.Alive() || s.stays() && s.group.Cgroup.Exists() }

// stays reports whether the slice outlives its processes, as that of a lease does (api.RegisterRequest.For): the lease service starts another broker
// in the same cgroup. While its processes are being ended, it does not.
func (s *slice) stays() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.request.For != nil && !s.ending && s.rec.Phase == core.Live
}

// leave drops the slice from memory without ending it. Called once, in the slice's turn if it is registered.
func (s *slice) leave() {
	s.mu.Lock()
	s.quota.State = quota.Left
	s.mu.Unlock()
	s.hangUp()
	s.mu.Lock()
	s.closeFiles()
	s.mu.Unlock()
	s.group.CloseRemaining()
	for _, p := range s.pools {
		p.part(s)
	}
}

func (s *slice) hangUp() {
	s.mu.Lock()
	server := s.server
	s.server = nil
	s.mu.Unlock()
	if server == nil {
		return
	}
	if err := server.Close(); err != nil {
		s.log.Error("attach socket not closed", "err", err)
	}
}

// closeFiles closes what the enforcer has open for the slice, except the attach socket. Called with mu held.
func (s *slice) closeFiles() {
	s.found, s.notes = nil, nil
	s.group.Close()
	err := s.quota.Leave()
	s.quota.Devices = nil
	if err != nil && !errors.Is(err, os.ErrClosed) {
		s.log.Error("slice not closed", "err", err)
	}
}

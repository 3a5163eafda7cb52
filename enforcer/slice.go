// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/attach"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/report"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// slice is one slice's life in this process. What is above mu does not change.
type slice struct {
	e          *Enforcer
	log        *slog.Logger
	request    api.RegisterRequest // quotas by UUID
	holder     *admission.Holder
	generation uint64
	created    time.Time
	dir        string
	initStart  uint64
	cgroup     cgroup.Path     // of a container
	identity   ledger.Identity // of its ledger, once there is one
	token      session.Token
	init       *process.Handle // if watchesFirst; nil if it was dead already when the enforcer restarted
	pool       *pool           // of which it is a member; nil if of none

	joined session.Members

	// turn orders what changes the slice: registering, devices, quotas, time, joining, releasing. What is stored of it, and what
	// the driver is told of it, changes in the turn only.
	turn *guard.Turn

	mu      guard.Mutex[guard.Slice]
	state   api.State
	reason  string
	strange bool // a process that is not of the slice was named in the log
	ledger  *ledger.Ledger
	noted   bool      // the store knows the ledger
	devices []*device // in the ledger's order
	server  *attach.Server

	slots
	lanes map[uint32]*lane
	byPID map[int]*lane

	closing  bool // it is being released: no process is let in any more
	executed bool // it is being looked whose image is another (exec.go)

	found       map[[16]byte]*found   // what the last samples did, by device; none for nothing
	adding      atomic.Bool           // a device in use is being added to the ledger
	frozen      string                // why nothing more is granted; "" if it is
	unsampled   map[[16]byte]struct{} // devices that have to be sampled before it is again, after a restart
	overwritten bool                  // its page was, and nothing is done about it yet

	refusals report.Refusals
	rejected report.Rejected

	quotas   []api.Quota // as they are now; request has those that it began with
	lowered  bool        // a quota is less than what is used, which admission still counts
	ttl      time.Duration
	deadline time.Duration // since boot; 0 is never
	ending   bool          // this enforcer sees to its end
	expired  bool          // it is known that its time is over
	asked    time.Duration // since boot: when its processes were asked to end; 0 if they were not

	remaining session.Remaining // of a session that is released, or who may have a ledger that was not found; changes in the turn, with mu held

	mayBeLimited bool // the driver has limits of its cgroup, or is going to (native.go)
}

// device is one device of a slice's ledger: the enforcer's own copy of what it wrote there.
type device struct {
	ledger.Device
	uuid    string
	account *ledger.Account
	pool    *pool  // whose quota counts as long as the slice has none of its own here; else nil
	most    uint64 // the highest of the limits before this one: on disk before this one is on the page
	told    uint64 // of what was given back for the dead: bytes

	exits     map[int]exit // by pid: processes that have exited, until the driver was asked what it holds for them
	inherited uint64       // what a former enforcer had charged beyond the lanes: no less is before that is sampled
	sampled   time.Time    // when it was first; zero if it was not by this enforcer

	suspended map[uint32]uint64 // by lane: what a checkpointed process is charged for; Limit is higher by it
	frozen    bool              // the page has 0 in Limit's place
}

// left is the state of a slice that goes on without this enforcer.
const left api.State = "left"

func (s *slice) id() string { return s.request.ID }

func (s *slice) record() bool { return s.request.Mode == api.Record }

// stored is the slice as the store keeps it. Called with mu held, or before anybody else knows the slice.
func (s *slice) stored() store.Slice {
	r := store.Slice{
		Request: s.request, Generation: s.generation, Created: s.created,
		Deadline: s.deadline, Expired: s.expired, Asked: s.asked,
		InitStart:   s.initStart,
		CgroupMount: s.cgroup.Mount, CgroupRel: s.cgroup.Rel, CgroupInode: s.cgroup.Inode, CgroupV2: s.cgroup.V2,
		Native: s.mayBeLimited,
		Dir:    s.dir,
		Joined: s.joined.Stored(), Survivors: s.remaining.Stored(),
	}
	r.Request.Quotas, r.Request.TTL = s.quotas, s.ttl
	if s.token != (session.Token{}) {
		r.TokenSum = s.token[:]
	}
	if s.noted {
		r.LedgerName, r.LedgerDev, r.LedgerInode = s.identity.Name, s.identity.Dev, s.identity.Inode
	}
	for _, d := range s.devices {
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
func (s *slice) storedLimit(d *device) store.Limit {
	bytes := d.given()
	if s.record() {
		bytes, _ = quotaOn(s.quotas, d.UUID, d.Total)
	}
	return store.Limit{Device: d.uuid, Bytes: bytes, Total: d.Total, Most: above(d.most, bytes)}
}

// above is a limit that was, for the store: 0 if it is not more than the one that is.
func above(most, limit uint64) uint64 {
	if most <= limit {
		return 0
	}
	return most
}

// describe makes the enforcer's copy of a device on which the slice may keep limit bytes; 0 is of one that others have.
func (s *slice) describe(uuid driver.UUID, limit, total uint64) *device {
	d := &device{
		Device: ledger.Device{UUID: uuid.Raw, Limit: limit, Quota: min(limit, total), Total: total},
		uuid:   uuid.String(), suspended: make(map[uint32]uint64),
	}
	if limit == ledger.NoLimit {
		d.pool = s.pool
	}
	if limit == 0 {
		d.Quota = total // it has no quota there: programs see the device, and nothing free
	}
	if s.record() {
		// Nothing is refused, so nothing else must differ for the program either.
		d.Limit, d.Quota = ledger.NoLimit, total
	}
	return d
}

// write puts a device of s.devices into the ledger. Called with mu held.
func (s *slice) write(index int) error {
	d := s.devices[index]
	account, err := s.ledger.OpenAccount(index, 0)
	if err != nil {
		return err
	}
	d.account, d.frozen = account, s.frozen != ""
	return account.SetDevice(d.onPage(), s.contextBytes(d))
}

// find the ledger's index of a device; -1 if it has it not. Called with mu held.
func (s *slice) find(raw [16]byte) int {
	for i, d := range s.devices {
		if d.UUID == raw {
			return i
		}
	}
	return -1
}

// listen opens the attach socket.
func (s *slice) listen() error {
	place := attach.Place{Dir: filepath.Join(s.dir, bindName), Mode: 0o666, UID: -1, GID: -1}
	if s.request.Session {
		place.Mode = 0o600
		if !s.e.options.Unprivileged {
			place.UID, place.GID = int(s.request.UID), int(s.request.GID)
		}
	}
	server, err := attach.Serve(place, s.isMember, s.answer, s.hear, s.log)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = server
	return nil
}

// damaged says that the page cannot be trusted any more. Nothing more may be charged; the processes and the host
// go on. Called with mu held.
func (s *slice) damaged(err error) {
	if s.state != api.Active {
		return
	}
	s.state, s.reason = api.Damaged, err.Error()
	// Not at a restart: a page that another version left need not be what this one expects.
	s.overwritten = s.server != nil && (errors.Is(err, ledger.ErrDamaged) || errors.Is(err, ledger.ErrBusy))
	s.ledger.SetClosed()
	s.log.Error("the slice's ledger is damaged: a process of the slice overwrote it, or the slice is under attack; nothing more can be charged until the slice is released", "err", err)
}

// check compares the page with the enforcer's own copy.
func (s *slice) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reportRejected()
	switch s.state {
	case api.Active:
		if err := s.verify(); err != nil {
			s.damaged(err)
			return
		}
		if s.pool != nil {
			s.pool.reconcile(s)
		}
	case api.Expired: // nothing is charged any more, so nothing can be charged wrongly
	default:
		return
	}
	if s.lowered && s.turn.TryTake() { // else a quota is being set, and has what it is set to
		s.recommit()
		s.turn.Give()
	}
	s.reportCounts(false)
}

// verify is called with mu held.
func (s *slice) verify() error {
	return verifyPage(s.ledger, s.record(), s.devices, s.figures)
}

// figures is called with mu held.
func (s *slice) figures(index int) ledger.Figures {
	return s.slots.figures(s.ledger, index)
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
	s.state = left
	s.mu.Unlock()
	s.hangUp()
	s.mu.Lock()
	s.let()
	s.mu.Unlock()
	s.closeRemaining()
	if s.pool != nil {
		s.pool.part(s)
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
	s.found = nil
	var errs []error
	for n, l := range s.lanes {
		s.e.deaths.Unwatch(l.process)
		errs = append(errs, l.process.Close())
		delete(s.lanes, n)
	}
	clear(s.byPID)
	s.closeJoined()
	if s.ledger != nil {
		errs = append(errs, s.ledger.Close())
		s.ledger = nil
	}
	s.devices = nil
	if s.init != nil {
		s.e.deaths.Unwatch(s.init)
		errs = append(errs, s.init.Close())
	}
	if err := errors.Join(errs...); err != nil && !errors.Is(err, os.ErrClosed) {
		s.log.Error("close a slice", "err", err)
	}
}

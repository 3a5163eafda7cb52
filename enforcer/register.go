// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/devices"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/members"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// Register makes a slice. When it returns without an error the slice is in the store and its processes can attach.
func (e *Enforcer) Register(ctx context.Context, r api.RegisterRequest) (api.RegisterReply, error) {
	return e.RegisterWithin(ctx, r, e.limitFor)
}

// RegisterWithin is Register within a user's limit; nil is none. Function limit may change the request. Its error is counted like others.
func (e *Enforcer) RegisterWithin(ctx context.Context, r api.RegisterRequest, limit func(context.Context, *api.RegisterRequest) (*admission.User, error)) (reply api.RegisterReply, err error) {
	begin := time.Now()
	user, err := limit(ctx, &r)
	if err == nil {
		reply, err = e.register(ctx, r, user)
	}
	var code api.Code
	if err != nil {
		code = api.From(err).Code
	}
	e.count(func(c Counter) { c.Registered(code, time.Since(begin)) })
	return reply, err
}

func (e *Enforcer) register(ctx context.Context, r api.RegisterRequest, limit *admission.User) (api.RegisterReply, error) {
	r.Quotas = append([]api.Quota(nil), r.Quotas...)
	if err := e.checkRequest(&r); err != nil {
		return api.RegisterReply{}, err
	}
	s, err := e.newSlice(ctx, r)
	if err != nil {
		return api.RegisterReply{}, err
	}
	s.turn.Wait() // not contended: the slice is not registered yet
	defer s.turn.Give()
	err = ctx.Err() // the caller is gone and would not release it
	if err == nil {
		err = e.makeWay(ctx, s)
	}
	if err == nil {
		err = e.admit(s, limit)
	}
	if err != nil {
		if !s.made {
			e.unclaim(s)
			s.leave()
		}
		return api.RegisterReply{}, err
	}
	killpoint.Pass("register.done")
	return api.RegisterReply{Slice: s.show(false), Dir: s.dir, Library: e.options.Library}, nil
}

// serve opens a slice to its processes, once its record is stored.
func (e *Enforcer) serve(s *slice) error {
	killpoint.Pass("register.stored")
	err := s.startNative()
	if err == nil {
		err = s.listen()
	}
	if err == nil {
		killpoint.Pass("register.listening")
		err = e.watchSlice(s)
	}
	return err
}

// newSlice identifies the slice's processes. It changes nothing outside the enforcer.
func (e *Enforcer) newSlice(ctx context.Context, r api.RegisterRequest) (*slice, error) {
	err := e.mayName(ctx, r.PID)
	if err == nil && r.Session { // before anything is read of a process that may be another user's
		err = e.mayBegin(ctx, r)
	}
	if err != nil {
		return nil, api.Errorf(api.CodeBadRequest, "slice %s: %v", r.ID, err)
	}
	init, err := process.Open(r.PID)
	if errors.Is(err, process.ErrDead) {
		return nil, api.Errorf(api.CodeBadRequest, "process %d, the first of slice %s, has exited", r.PID, r.ID)
	}
	if err != nil {
		return nil, err
	}
	its := e.shareOf(&r)
	log := its.log.With("slice", r.ID)
	s := &slice{
		e: e, log: log, pace: its.pace, group: e.newGroup(&r, init.Start, log), request: r, holder: newHolder(&r), created: time.Now().UTC(),
		desk: newDesk(), generation: e.nextGeneration(),
	}
	s.rec = s.newRecord(0)
	for _, name := range r.Pools {
		if p := e.findPool(name); p != nil { // core refuses the slice without it
			s.pools = append(s.pools, p)
		}
	}
	s.group.First = init
	s.newQuota()
	if r.Elastic {
		s.place(&store.Suspension{State: api.Suspended, Evicted: true})
	}
	s.beElastic()
	if r.Session {
		err = e.mayBegin(ctx, r)
	} else {
		s.group.PIDNS, s.group.Leads = init.PIDNS, init.NSPID == 1
		err = e.findCgroup(s, r.PID)
	}
	if err == nil && !init.Alive() {
		err = process.ErrDead // what was read may be another process's
	}
	if err != nil {
		s.leave()
		return nil, api.Errorf(api.CodeBadRequest, "slice %s: %v", r.ID, err)
	}
	s.dir = e.newSliceDir(s.generation)
	s.mayBeLimited = e.enforcesOn(s)
	if !s.group.WatchesFirst() {
		s.group.First = nil
		init.Close()
	}
	return s, nil
}

func (e *Enforcer) newGroup(r *api.RegisterRequest, start uint64, log *slog.Logger) *members.Group {
	return &members.Group{Index: &e.members, Log: log, ID: r.ID, Session: r.Session, PID: r.PID, Start: start, UID: r.UID}
}

// mayName returns an error if the caller's pid may mean another process to the enforcer. A hook inside a container that has the host's socket sends
// the pids of that container's own containers.
func (e *Enforcer) mayName(ctx context.Context, pid int) error {
	asker, known := e.caller(ctx)
	if !known {
		return errors.New("the kernel does not report the requesting process")
	}
	return asker.MayName(pid)
}

// findCgroup finds the cgroup of a container. It fails if the cgroup lies below another container's.
func (e *Enforcer) findCgroup(s *slice, pid int) error {
	membership, err := e.host.Membership(pid)
	if err != nil {
		return err
	}
	if s.group.Cgroup, err = e.host.Of(pid, membership); err != nil {
		return err
	}
	other, theirs := e.members.Over(pid, membership)
	if !theirs || other.ID == s.id() {
		return nil
	}
	return fmt.Errorf("its cgroup %s lies below that of slice %s, so that one cannot end without the other: choose another parent (docker run --cgroup-parent)",
		s.group.Cgroup, other.ID)
}

// nextGeneration returns a number higher than all generations of this boot, also after a restart: microseconds since boot, or the last one plus 1.
func (e *Enforcer) nextGeneration() uint64 {
	var next uint64
	e.book.Do(func(a *core.Accounts) { next = a.NextGeneration(uint64(sinceBoot().Microseconds())) })
	return next
}

// newRecord returns the record of the slice's request.
func (s *slice) newRecord(deadline time.Duration) core.Record {
	r := &s.request
	return core.Record{
		ID: r.ID, Generation: s.generation, Tenant: r.Tenant, UID: s.holder.UID, Pools: r.Pools, Quotas: r.Quotas, Unlimited: s.record(), Elastic: r.Elastic, Priority: r.Priority,
		Phase: core.Live, TTL: r.TTL, Deadline: deadline,
	}
}

// mayBegin returns why the caller may not begin a session with that process. A session takes the process and all its descendants out of the slice
// that they are in.
func (e *Enforcer) mayBegin(ctx context.Context, r api.RegisterRequest) error {
	if e.options.Caller == nil {
		return nil
	}
	asker, known := e.options.Caller(ctx)
	if !known {
		return errors.New("the kernel does not report the requesting process, and only a process of the session can begin it")
	}
	if err := owns(asker, r.PID); err != nil {
		return fmt.Errorf("%w: a session begins with one of your own processes: use `gpuslice run`", err)
	}
	if uid := asker.UID; uid != 0 && r.UID != uid {
		return fmt.Errorf("uid %d asks for a session of uid %d: users can begin only their own sessions", uid, r.UID)
	}
	return nil
}

// Tests replace these: their users' processes are root's, and kernels before Linux 6.7 do not report a cgroup deeper than a path can be long.
var (
	ownedBy      = process.OwnedBy
	membershipOf = (*cgroup.Host).Membership
)

// owns returns an error if the process is neither the caller nor its descendant, or runs with another user's rights. The calling function holds a
// Handle of the process, and checks afterwards that it is alive.
func owns(asker session.Asker, pid int) error {
	if err := asker.Owns(pid); err != nil {
		return err
	}
	if asker.UID != 0 && !ownedBy(pid, asker.UID) {
		return fmt.Errorf("process %d runs with another user's rights than uid %d's, as a setuid program does", pid, asker.UID)
	}
	return nil
}

// makeWay claims the slice's id and cgroup. It releases a slice that has them if its first process has exited: the engine has restarted the
// container before the former end was noticed.
func (e *Enforcer) makeWay(ctx context.Context, s *slice) error {
	for {
		other, busy, err := e.claim(s)
		switch {
		case other == nil || err != nil:
			return err
		case busy:
			if err := other.turn.Take(ctx); err != nil {
				return err
			}
			other.turn.Give()
		case other.id() != s.id():
			return api.Errorf(api.CodeExists, "slice %s: cgroup %s is slice %s's already", s.id(), s.group.Cgroup, other.id())
		// The first process decides, not the cgroup: after a restart that is the new one's.
		case other.stays() && other.running(), other.group.FirstLives():
			return api.Errorf(api.CodeExists, "slice %s exists, and its process %d is alive: release it first, or choose another id", s.id(), other.request.PID)
		case e.waitFor(other):
			err := e.release(other, core.CauseReplaced)
			other.turn.Give()
			if err != nil {
				return err
			}
		}
	}
}

// unclaim gives up the slice's claims. Released slices that waited for its cgroup are cleared.
func (e *Enforcer) unclaim(s *slice) {
	if e.registry.unclaim(s) {
		go e.emptied(s.group.Cgroup)
	}
}

// make makes the slice's ledger, directory and token, but not its record and socket.
func (s *slice) make() error {
	s.made = true
	for _, p := range s.pools {
		p.join(s)
	}
	killpoint.Pass("register.decided")
	if err := s.quota.Begin(); err != nil {
		return err
	}
	s.mu.Lock()
	s.turnGate()
	s.mu.Unlock()
	killpoint.Pass("register.ledger")
	if err := s.makeDir(); err != nil {
		return fmt.Errorf("make the slice's directory: %w", err)
	}
	if s.request.Session && s.e.options.Caller != nil { // else only the session's own program can make requests, and a token is useless
		uid, gid := int(s.request.UID), int(s.request.GID)
		if s.e.options.Unprivileged {
			uid, gid = -1, -1
		}
		var err error
		if s.token, err = session.NewToken(s.dir, s.id(), uid, gid); err != nil {
			return fmt.Errorf("make the session's token: %w", err)
		}
	}
	killpoint.Pass("register.dir")
	return nil
}

// foresee returns the known devices that the slice sees and its quotas cover, or none if the ledger cannot hold all. Other devices are added when a
// process reports that it uses them.
func (s *slice) foresee() []*quota.Device {
	return s.foreseeBy(s.allowed)
}

// foreseeBy is foresee with the limits that limitOn returns. Called with mu held, or before the slice is registered.
func (s *slice) foreseeBy(limitOn func(raw [16]byte, total uint64) (uint64, bool)) []*quota.Device {
	return s.e.foresee(s.quota, func(g *devices.Device) (uint64, bool) {
		if !sees(&s.request, g.UUID) || !s.foresees(g.Raw) {
			return 0, false
		}
		return limitOn(g.Raw, g.Total)
	})
}

// foresee returns the known devices that the quota's ledger lacks and that limitOn has a limit for, or nil if the ledger cannot hold all. Called
// with the quota's lock held, or before other goroutines can reach it.
func (e *Enforcer) foresee(q *quota.Quota, limitOn func(g *devices.Device) (uint64, bool)) []*quota.Device {
	if e.truth == nil {
		return nil
	}
	var devices []*quota.Device
	for _, g := range e.truth.All() {
		limit, ok := limitOn(g)
		uuid, err := driver.ParseUUID(g.UUID)
		if ok && limit > 0 && err == nil && q.Index(g.Raw) < 0 {
			devices = append(devices, q.Describe(uuid, limit, g.Total))
		}
	}
	if len(q.Devices)+len(devices) > ledger.Devices {
		return nil
	}
	return devices
}

// watchSlice has the slice released when its processes have exited, even if no request arrives.
func (e *Enforcer) watchSlice(s *slice) error {
	err := s.group.WatchFirst(func() {
		if !s.request.Session {
			e.cgroups.Recheck(s.group.Cgroup)
		}
		go e.ended(s)
	})
	if err != nil || s.request.Session {
		return err
	}
	if s.request.For != nil { // it stays without processes
		return e.cgroups.WatchDir(s.group.Cgroup, func() { go e.emptied(s.group.Cgroup) })
	}
	if err := e.watchCgroup(s.group.Cgroup); err != nil {
		return err
	}
	if s.group.WatchesFirst() && s.group.First == nil {
		e.cgroups.Recheck(s.group.Cgroup)
	}
	return nil
}

// watchCgroup has all slices of a cgroup end with it: at most one active slice, and those that were released before their processes exited.
func (e *Enforcer) watchCgroup(p cgroup.Path) error {
	err := e.cgroups.Watch(p, func() { go e.emptied(p) })
	if errors.Is(err, cgroup.ErrWatched) {
		return nil
	}
	return err
}

// ended releases the slice if none of its processes is left.
func (e *Enforcer) ended(s *slice) {
	if s.running() || !e.waitFor(s) {
		return
	}
	defer s.turn.Give()
	if s.running() {
		return
	}
	if err := e.release(s, core.CauseEnded); err != nil {
		s.log.Error("slice not released though its processes have exited", "err", err)
	}
}

// emptied is called when a cgroup has, or for a moment had, no process.
func (e *Enforcer) emptied(p cgroup.Path) {
	registered, released := e.ofCgroup(p)
	for _, s := range registered {
		e.ended(s)
	}
	for _, s := range released {
		e.clearReleased(s)
	}
	// A process has entered since (by exec, say), and the watch ended with its report.
	if populated, err := cgroup.Populated(p); e.used(p) && (populated || err != nil) {
		if err := e.watchCgroup(p); err != nil {
			e.log.Error("cgroup not watched: its slices are not released when their processes exit", "cgroup", p.String(), "err", err)
		}
	}
}

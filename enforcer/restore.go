// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/recovery"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// Variables, since tests replace them.
var (
	beforeWrite func(key string) error
	findIn      recovery.Find = ledger.Find
)

func (e *Enforcer) openStore() (err error) {
	o := &e.options
	e.store, err = store.Open(store.Options{RunDir: o.RunDir, StateDir: o.StateDir, Boot: e.boot, Log: e.log, Before: beforeWrite})
	return err
}

// restore takes up the slices of the store that are still alive, and drops the others.
func (e *Enforcer) restore() error {
	e.pages = recovery.New(e.log, findIn)
	defer func() {
		e.pages.Close()
		e.pages = nil
	}()
	records, released := e.store.Slices(), e.store.Released()
	pools := e.loadPools()
	for _, r := range slices.Concat(records, released) {
		e.pages.Want(ledger.Identity(r.Ledger), ownProcesses(r)...)
		e.book.Do(func(a *core.Accounts) { a.NextGeneration(r.Generation) })
	}
	for _, p := range pools {
		var own []func() ([]int, error)
		for _, r := range slices.Concat(records, released) {
			if slices.Contains(r.Request.Pools, p.name) {
				own = append(own, ownProcesses(r)...)
			}
		}
		e.pages.Want(p.quota.Identity, own...)
	}
	e.pages.Run()
	keep := make(map[string]bool)
	alive := make(map[*slice]store.Slice)
	for _, r := range records {
		s := e.revive(r)
		if s.running() {
			alive[s] = r
			keep[s.dir] = true
			continue
		}
		s.leave()
		if s.request.Session && e.pages.Found(s.quota.Identity) { // a process still has its ledger
			if err := e.store.Retire(r); err != nil {
				e.log.Error("release not persisted: trying again", "slice", r.Request.ID, "err", err)
			}
			released = append(released, r)
		} else if err := e.store.Forget(r.Request.ID, r.Generation); err != nil {
			e.log.Error("deleting the record of an ended slice failed: trying again", "slice", r.Request.ID, "err", err)
		}
		e.log.Info("slice ended while no enforcer ran", "slice", r.Request.ID, "generation", r.Generation)
		e.events.Append(sourceOf(&r.Request), api.Event{
			Kind: api.EventReleased, Slice: r.Request.ID, Generation: r.Generation,
			Container: r.Request.Container, Names: r.Request.Names, Tenant: r.Request.Tenant, Cause: core.CauseEnded,
		})
	}
	for _, r := range released {
		keep[r.Dir] = true
	}
	e.sweep(keep)
	// All slices are registered before any is opened, since all are needed to find the slice of a process.
	for s := range alive {
		e.book.Enter(s.holder, s.account(), s.poolHolders()...)
		e.know(s, s.generation)
		e.enter(s)
	}
	e.reopenPools(pools, released)
	for s, r := range alive {
		// A slice that cannot be served must not stop the others.
		err := e.findLedger(s, r)
		if s.recount(); err != nil {
			s.untaken(err)
		} else {
			s.takeUp(r)
			s.recallNeeds()
		}
		if err := e.watchSlice(s); err != nil {
			s.untaken(err)
		}
		if err := e.reopen(s); err != nil {
			s.log.Error("opening the attach socket failed: no process can attach until a retry succeeds", "err", err)
			e.deaf[s] = struct{}{}
		}
		s.turn.Give()
	}
	for _, r := range released {
		e.finish(r)
	}
	var cgroups []cgroup.Path
	for _, r := range slices.Concat(records, released) {
		cgroups = append(cgroups, cgroupOf(r))
	}
	e.reachNative(cgroups...)
	killpoint.Pass("restore.limited")
	e.logOvercommitted()
	if len(records) > 0 {
		e.log.Info("slices restored", "count", len(alive), "ended", len(records)-len(alive))
	}
	return nil
}

// ownProcesses returns functions that list a container's processes; nil for a session, which may have any.
func ownProcesses(r store.Slice) []func() ([]int, error) {
	if r.Request.Session {
		return nil
	}
	return []func() ([]int, error){func() ([]int, error) { return cgroup.PIDs(cgroupOf(r)) }}
}

// revive makes a slice from its record, without its ledger. It returns in the slice's turn, since what is watched may end at once.
func (e *Enforcer) revive(r store.Slice) *slice {
	its := e.shareOf(&r.Request)
	log := its.log.With("slice", r.Request.ID)
	s := &slice{
		e: e, log: log, pace: its.pace, group: e.newGroup(&r.Request, r.InitStart, log), request: r.Request, holder: newHolder(&r.Request), generation: r.Generation,
		created: r.Created, dir: r.Dir, desk: newDesk(),
	}
	if s.rec, s.rec.Asked = s.newRecord(r.Deadline), r.Asked; r.Expired {
		s.rec.Phase = core.Expiring
	}
	s.group.PIDNS, s.group.Leads, s.group.Cgroup = r.PIDNS, r.Leads, cgroupOf(r)
	if s.group.WatchesFirst() {
		s.group.First, _ = process.Again(r.Request.PID, r.InitStart)
	}
	for _, j := range r.Joined {
		if p, err := process.Again(j.PID, j.Start); err == nil {
			_ = s.group.Join(p, j.UID)
		}
	}
	s.newQuota()
	for _, name := range r.Request.Pools {
		if p := e.pools[name]; p != nil {
			s.pools = append(s.pools, p)
			p.join(s)
		}
	}
	restoreQuota(s.quota, r.Ledger, r.Damaged, r.Limits, func(_ driver.UUID, l store.Limit) uint64 { return l.Bytes })
	s.mayBeLimited = r.Native
	s.place(r.Suspended)
	s.beElastic()
	s.turn.Wait()
	copy(s.token[:], r.TokenSum)
	return s
}

// restoreQuota restores a quota from the store, without its ledger. limit returns the bytes that it may hold on a device.
func restoreQuota(q *quota.Quota, l store.Ledger, damaged string, limits []store.Limit, limit func(driver.UUID, store.Limit) uint64) {
	q.Identity, q.Stored = ledger.Identity(l), l.Inode != 0
	if damaged != "" {
		q.WasOverwritten(damaged)
	}
	for _, l := range limits {
		uuid, err := driver.ParseUUID(l.Device)
		if err != nil {
			continue
		}
		d := q.Describe(uuid, limit(uuid, l), l.Total)
		d.Highest = l.Most
		q.Devices = append(q.Devices, d)
	}
}

func cgroupOf(r store.Slice) cgroup.Path {
	return cgroup.Path{Mount: r.CgroupMount, Rel: r.CgroupRel, Inode: r.CgroupInode, V2: r.CgroupV2}
}

// closeLeft closes the page of an ended slice, if a process still has it: that would otherwise charge as before.
func (s *slice) closeLeft() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quota.Ledger = s.e.pages.Take(s.quota.Identity); s.quota.Ledger == nil {
		return false
	}
	s.quota.Close()
	return true
}

// finish completes a release that the former enforcer began: it closes the page, and clears what the slice left on the host once its processes have
// exited.
func (e *Enforcer) finish(r store.Slice) {
	s := e.revive(r)
	defer s.turn.Give()
	taken := e.used(s.group.Cgroup) // by a slice registered since
	found := s.closeLeft()
	s.findRemaining(r.Survivors)
	lingering := s.account()
	lingering.Phase, lingering.Left = core.Lingering, nil
	if found || (s.request.Session || s.e.truth != nil) && s.group.Lingers() {
		has := s.quota.Commitment()
		if s.isAway() {
			has = s.left()
		}
		lingering.Left = s.remainder(api.Active, has)
	}
	e.book.Enter(s.holder, lingering, s.poolHolders()...)
	e.know(s, s.generation)
	if !taken {
		s.storeNative(r, func() error { return e.store.Retire(s.storedNow()) })
		s.denyNative()
	}
	s.mu.Lock()
	s.closing = true
	s.quota.State = api.Released
	s.closeFiles()
	s.mu.Unlock()
	if !s.request.Session && s.group.Lingers() {
		if err := s.listen(); err != nil {
			// A process that cannot attach gets no memory.
			s.log.Error("attach socket of a released slice not opened", "err", err)
		}
	}
	e.clearOnceEmpty(s)
}

func (e *Enforcer) findLedger(s *slice, r store.Slice) error {
	for _, name := range s.request.Pools {
		if e.pools[name] == nil {
			return fmt.Errorf("its pool %s is gone", name)
		}
	}
	if s.quota.Ledger = s.e.pages.Take(s.quota.Identity); s.quota.Ledger != nil {
		s.adopt(r)
		return nil
	}
	if len(s.quota.Devices) == 0 { // it began without driver truth, and its quotas were granted all the same
		s.quota.Devices = s.foresee()
	}
	if s.quota.Stored {
		if err := s.lost(); err != nil {
			return err
		}
	}
	// No process has it mapped, so none has charged anything, or can.
	return s.quota.Begin()
}

// lost records the processes that may have the slice's missing ledger, and fails if there are any: what they charge would not count in a new one.
// They may hold as much as the slice may, and outlive it.
func (s *slice) lost() error {
	pids, err := s.e.pages.MayBeWith(s.quota.Identity, s.letIn)
	for _, pid := range pids[:min(len(pids), ledger.Slots)] {
		s.group.Remains(process.Open(pid))
	}
	return errors.Join(err, errLost(pids))
}

// letIn returns a function that reports whether a process, which may have any page mapped, may have attached to the slice.
func (s *slice) letIn() (func(pid int) bool, error) {
	if !s.request.Session {
		return inCgroup(s.group.Cgroup)
	}
	return func(pid int) bool { return slices.ContainsFunc(s.e.pages.Ancestors(pid), s.group.HasRoot) }, nil
}

func inCgroup(path cgroup.Path) (func(pid int) bool, error) {
	pids, err := cgroup.PIDs(path)
	return func(pid int) bool { return slices.Contains(pids, pid) }, err
}

// errLost returns an error if these processes may have a missing ledger; nil if there are none.
func errLost(pids []int) error {
	if len(pids) == 0 {
		return nil
	}
	return fmt.Errorf("reading the mappings of process %d timed out, and it may have the ledger (end it, or restart gpusliced to try again)", pids[0])
}

// untaken marks the slice damaged, for a reason that keeps it from being taken up. It ends like any other.
func (s *slice) untaken(err error) {
	s.log.Error("slice cannot be restored: no process can attach", "err", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quota.State, s.quota.Reason, s.damaged = api.Damaged, fmt.Sprintf("it could not be restored: %v", err), true
	s.tell(api.Event{Kind: api.EventDenied, Cause: s.quota.Reason})
}

// takeUp continues a slice that has its ledger where the former enforcer stopped.
func (s *slice) takeUp(r store.Slice) {
	s.goOn(r)
	if r.Native && s.e.truth == nil {
		s.log.Warn("the driver may keep limiting the slice to its former quota: without NVML that cannot be changed", "cgroup", s.group.Cgroup.String())
	}
	s.recallSuspension()
	s.resumeNative(r)
	killpoint.Pass("restore.ledger")
}

// reopen opens the slice's attach socket, and makes its directory again if it was removed.
func (e *Enforcer) reopen(s *slice) error {
	if _, err := os.Lstat(filepath.Join(s.dir, bindName)); errors.Is(err, os.ErrNotExist) {
		s.log.Error("slice's directory was removed: a container that has it bound cannot attach new processes", "dir", s.dir)
		e.removeSliceDir(s.dir)
		if err := s.makeDir(); err != nil {
			e.removeSliceDir(s.dir)
			return err
		}
	}
	// An earlier version made it under any umask, so its mode may keep the container's users from the interceptor.
	if err := os.Chmod(filepath.Join(s.dir, bindName), 0o755); err != nil {
		return err
	}
	if err := s.listen(); err != nil {
		return err
	}
	if err := s.serveJoined(); err != nil {
		s.log.Error("joined processes not served", "err", err)
	}
	killpoint.Pass("restore.listening")
	return nil
}

// listenLater retries the attach sockets that restore could not open.
func (e *Enforcer) listenLater() {
	for s := range e.deaf {
		if e.find(s.id()) != s {
			delete(e.deaf, s)
		} else if s.turn.TryTake() { // else at the next check
			if e.reopen(s) == nil {
				delete(e.deaf, s)
			}
			s.turn.Give()
		}
	}
}

// adopt takes up the ledger that the former enforcer left.
func (s *slice) adopt(r store.Slice) {
	// A session's process may have outlived its ancestors in the session, and a container's process may have been moved to another cgroup. A process
	// that has the page can still write its lane.
	claims := s.quota.Claims(func(p *process.Handle) bool { return s.group.Has(p) || s.e.pages.MayHold(s.quota.Identity, p.PID) })
	frozen := ""
	if s.e.truth != nil && s.e.options.Policy.Bypass == api.Refuse && !s.record() {
		frozen = "a process held memory past the ledger before the enforcer was restarted: no memory is granted until the devices are sampled"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, d := range s.quota.Devices { // before lanes are settled: the former enforcer reported these bytes
		if bytes := s.quota.Ledger.Recovered(i); bytes > 0 {
			s.note(d).recovered = bytes
		}
	}
	s.quota.Adopt(quota.Restart{Over: r.Expired, Changing: r.Changing, Frozen: frozen}, claims)
	for _, d := range s.quota.Devices {
		if d.Frozen && s.e.truth.At(d.UUID) != nil {
			if s.unsampled == nil {
				s.unsampled = make(map[[16]byte]struct{})
			}
			s.unsampled[d.UUID] = struct{}{}
		}
	}
}

// goOn completes changes of the slice's ledger that the former enforcer began.
func (s *slice) goOn(r store.Slice) {
	s.mu.Lock()
	if r.Expired && s.quota.State == api.Active {
		s.quota.Expire()
	}
	s.mu.Unlock()
	if !r.Changing {
		return
	}
	if err := s.put(); err != nil {
		s.log.Error("completed change of quotas not persisted: the next enforcer sets them again", "err", err)
	}
}

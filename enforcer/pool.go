// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// pool is a named group of slices under one common quota. It is one more ledger, in which each process of a member has a
// lane beside the one in its slice's: a charge must fit both (interceptor/charge.h). What is above mu does not change.
//
// Its lanes are by process, not by slice: a slice may be released while its processes live, and what they hold counts in
// the pool until they end. So the pool watches them by pidfds of its own.
type pool struct {
	e       *Enforcer
	log     *slog.Logger
	name    string
	created time.Time
	holder  *admission.Holder

	// turn orders what changes the pool: its quotas, its devices, its end. It is taken after a member's.
	turn *guard.Turn

	mu       guard.Mutex[guard.Pool] // taken after a slice's
	members  map[*slice]struct{}     // until they are cleared away
	ending   bool                    // it is being deleted: nobody becomes a member any more
	quotas   []api.Quota
	state    api.State
	reason   string
	ledger   *ledger.Ledger
	identity ledger.Identity
	noted    bool          // the store knows the ledger
	devices  []*poolDevice // in the ledger's order
	lowered  bool          // a quota is less than what is used, which admission still counts

	slots
	lanes map[uint32]*poolLane
	byPID map[int]*poolLane
}

// poolDevice is a device of the pool's ledger, and what the enforcer charges there for members.
type poolDevice struct {
	*device
	beyond map[*slice]uint64            // what the enforcer charges in the member's own ledger: the driver's excess
	short  map[*slice]map[int]shortfall // by pid: what a process charged to its slice, and not to the pool

	unheard map[*slice]struct{} // members of which this enforcer has not sampled yet what the former one had charged: inherited
}

// poolLane is a place in the pool's ledger that a process has.
type poolLane struct {
	number     uint32
	generation uint64
	process    *process.Handle
	lent       bool // by a former enforcer, as a slice's lane
}

func (e *Enforcer) newPool(name string, created time.Time, quotas []api.Quota) *pool {
	return &pool{
		e: e, log: e.log.With("pool", name), name: name, created: created, quotas: quotas, state: api.Active, turn: guard.NewTurn(),
		holder:  &admission.Holder{Name: "pool " + name, Pool: true},
		members: make(map[*slice]struct{}), lanes: make(map[uint32]*poolLane), byPID: make(map[int]*poolLane), slots: slots{next: 1},
	}
}

// commitment is what the pool is given of each device. Called with mu held, or before anybody knows the pool.
func (p *pool) commitment() map[string]uint64 { return promised(p.plain()) }

// plain is the devices, as what the pool's ledger has in common with a slice's sees them.
func (p *pool) plain() []*device {
	all := make([]*device, len(p.devices))
	for i, d := range p.devices {
		all[i] = d.device
	}
	return all
}

// recommit notes what the pool is given now. Of a quota that was lowered below what its members hold, that counts as long
// as it is more: it can be promised to nobody. Called with mu held.
func (p *pool) recommit() {
	has, had := p.commitment(), p.e.book.Has(p.holder)
	p.lowered = keepUsed(has, had, p.plain(), func(index int) uint64 {
		used := p.figures(index).Used
		return used - min(used, p.devices[index].away())
	})
	p.e.book.Set(p.holder, has)
}

// stored is what the store keeps of the pool for this boot. Called with mu held, or before anybody knows the pool.
func (p *pool) stored() store.PoolState {
	var r store.PoolState
	if p.noted {
		r.LedgerName, r.LedgerDev, r.LedgerInode = p.identity.Name, p.identity.Dev, p.identity.Inode
	}
	for _, d := range p.devices {
		r.Limits = append(r.Limits, d.stored())
	}
	return r
}

// stored is a device as the store keeps it. Called with mu held, or of a device that nobody else has.
func (d *poolDevice) stored() store.Limit {
	return store.Limit{Device: d.uuid, Bytes: d.given(), Total: d.Total, Most: above(d.most, d.given())}
}

// describe makes the enforcer's copy of a device; limit 0 is of one of which it cannot be given its quota.
func (p *pool) describe(uuid driver.UUID, limit, total uint64) *poolDevice {
	d := &poolDevice{
		device: &device{
			Device: ledger.Device{UUID: uuid.Raw, Limit: limit, Quota: min(limit, total), Total: total},
			uuid:   uuid.String(), suspended: make(map[uint32]uint64),
		},
		beyond: make(map[*slice]uint64), short: make(map[*slice]map[int]shortfall),
	}
	if limit == 0 {
		d.Quota = total
	}
	return d
}

// foresee is the devices that the pool's quotas cover, as far as they are known and the ledger can hold them. Others are added
// when a member's process uses them.
func (p *pool) foresee() []*poolDevice {
	return p.withForeseen(p.quotas)
}

// withForeseen is the devices of the ledger, and behind them those that these quotas cover beside, if it can hold them all.
// Called with mu held, or before anybody knows the pool.
func (p *pool) withForeseen(quotas []api.Quota) []*poolDevice {
	devices := slices.Clone(p.devices)
	if p.e.truth == nil {
		return devices
	}
	for _, known := range p.e.truth.devices {
		limit, ok := quotaOn(quotas, known.Raw, known.Total)
		uuid, err := driver.ParseUUID(known.UUID)
		if ok && limit > 0 && err == nil && p.find(known.Raw) < 0 {
			devices = append(devices, p.describe(uuid, limit, known.Total))
		}
	}
	if len(devices) > ledger.Devices {
		return slices.Clone(p.devices)
	}
	return devices
}

// begin makes a new ledger. Called with mu held, or before anybody knows the pool.
func (p *pool) begin() error {
	l, err := newLedger()
	if err != nil {
		return err
	}
	l.SetPool(p.name)
	p.ledger, p.identity, p.noted = l, l.Identity(), false
	for i := range p.devices {
		if err := p.write(i); err != nil {
			return err
		}
	}
	return nil
}

// write puts a device of p.devices into the ledger, or what has changed about it. Called with mu held.
func (p *pool) write(index int) error {
	d := p.devices[index]
	if d.account == nil {
		account, err := p.ledger.OpenAccount(index, 0)
		if err != nil {
			return err
		}
		d.account = account
	}
	return d.account.SetDevice(d.Device, 0)
}

// find the ledger's index of a device; -1 if it has it not. Called with mu held.
func (p *pool) find(raw [16]byte) int {
	for i, d := range p.devices {
		if d.UUID == raw {
			return i
		}
	}
	return -1
}

// covers says whether a member may use a device at all.
func (p *pool) covers(raw [16]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return covering(p.quotas, raw) != nil
}

// coversAll says why a member cannot have these quotas.
func (p *pool) coversAll(id string, quotas []api.Quota) error {
	for _, q := range quotas {
		uuid, err := driver.ParseUUID(q.Device)
		if err == nil && !p.covers(uuid.Raw) {
			refusal := api.Errorf(api.CodeNoDevice, "slice %s has a quota on device %s, where pool %s has none: a member may use what both have", id, q.Device, p.name)
			refusal.Device = q.Device
			return refusal
		}
	}
	return nil
}

// addDevice makes sure that the pool's ledger has a device, before a member's has it. Its error is a ledger.Status, or what
// kept it from the disk.
func (p *pool) addDevice(uuid driver.UUID, total uint64) error {
	if has, err := p.hasDevice(uuid.Raw); has || err != nil {
		return err
	}
	p.turn.Wait()
	defer p.turn.Give()
	if has, err := p.hasDevice(uuid.Raw); has || err != nil { // it came meanwhile
		return err
	}
	p.mu.Lock()
	limit, ok := quotaOn(p.quotas, uuid.Raw, total)
	index := len(p.devices)
	p.mu.Unlock()
	switch {
	case !ok:
		return ledger.StatusNoDevice
	case total == 0 || limit == 0:
		return ledger.StatusMalformed
	case index == ledger.Devices:
		return ledger.StatusFull
	}
	var denied *api.Event
	undo, err := p.e.book.Admit(p.holder, map[string]uint64{uuid.String(): min(limit, total)})
	if err != nil {
		undo = func() {}
		p.log.Warn("a member uses a device of which the pool can be given nothing", "device", uuid, "err", err)
		denied, limit = &api.Event{Kind: api.EventDenied, Pool: p.name, Device: uuid.String(), Requested: min(limit, total), Cause: err.Error()}, 0
	}
	d := p.describe(uuid, limit, total)
	p.mu.Lock()
	record := p.stored()
	p.mu.Unlock()
	record.Limits = append(record.Limits, d.stored())
	if err := p.e.store.PutPoolState(p.name, record); err != nil { // first, as for a slice
		undo()
		return err
	}
	killpoint.Pass("pool.device")
	if err := p.append(d); err != nil {
		undo()
		return err
	}
	if denied != nil {
		p.e.events.Append(*denied)
	}
	return nil
}

// hasDevice says whether the pool's ledger has a device, and why members get nothing if they do not.
func (p *pool) hasDevice(raw [16]byte) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.find(raw) >= 0, p.refusal()
}

// append puts a device that is stored behind the others.
func (p *pool) append(d *poolDevice) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refusal(); err != nil {
		return err
	}
	p.devices = append(p.devices, d)
	if err := p.write(len(p.devices) - 1); err != nil {
		p.devices = p.devices[:len(p.devices)-1]
		p.damaged(fmt.Errorf("device %s cannot be added: %w", d.uuid, err))
		return ledger.StatusClosed
	}
	return nil
}

// refusal is why members get nothing from the pool; nil if they do. Called with mu held.
func (p *pool) refusal() error { return refusalIn(p.state) }

// damaged says that the page cannot be trusted any more. Called with mu held.
func (p *pool) damaged(err error) {
	if p.state != api.Active {
		return
	}
	p.shut(err)
	if errors.Is(err, ledger.ErrDamaged) || errors.Is(err, ledger.ErrBusy) {
		p.tellOverwritten()
	} else {
		p.tellDenied(p.reason)
	}
}

// unfit is damaged at a restart: a page that another version left need not be what this one expects, so nobody is accused. Called
// with mu held.
func (p *pool) unfit(err error) {
	if p.state != api.Active {
		return
	}
	p.shut(err)
	p.tellDenied(p.reason)
}

// shut lets nothing more be charged. Called with mu held.
func (p *pool) shut(err error) {
	p.state, p.reason = api.Damaged, err.Error()
	if p.ledger != nil {
		p.ledger.SetClosed()
	}
	p.log.Error("the pool's ledger is damaged: a process of a member overwrote it, or the pool is under attack; nothing more can be charged by its members until they are gone and the pool is made anew", "err", err)
}

// check compares the page with the enforcer's own copy.
func (p *pool) check() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != api.Active {
		return
	}
	if err := p.verify(); err != nil {
		p.damaged(err)
		return
	}
	if p.lowered && p.turn.TryTake() { // else a quota is being set, and has what it is set to
		p.recommit()
		p.turn.Give()
	}
}

// verify is called with mu held.
func (p *pool) verify() error {
	return verifyPage(p.ledger, false, p.plain(), p.figures)
}

// figures is called with mu held.
func (p *pool) figures(index int) ledger.Figures {
	return p.slots.figures(p.ledger, index)
}

// leave lets go of the pool without ending it.
func (p *pool) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = left
	var errs []error
	for number, l := range p.lanes {
		p.e.deaths.Unwatch(l.process)
		errs = append(errs, l.process.Close())
		delete(p.lanes, number)
	}
	clear(p.byPID)
	if p.ledger != nil {
		errs = append(errs, p.ledger.Close())
		p.ledger = nil
	}
	if err := errors.Join(errs...); err != nil && !errors.Is(err, os.ErrClosed) {
		p.log.Error("close a pool", "err", err)
	}
}

// joinPool makes a slice a member of the pool that it names. Called before anybody knows the slice.
func (e *Enforcer) joinPool(s *slice) error {
	name := s.request.Pool
	if name == "" {
		return nil
	}
	p := e.findPool(name)
	if p == nil {
		return api.Errorf(api.CodeBadRequest, "there is no pool %s, which slice %s names: `gpuslice pool list` lists them, and `gpuslice pool create %s --vram SIZE` makes it", name, s.id(), name)
	}
	if err := p.coversAll(s.id(), s.quotas); err != nil {
		return err
	}
	if !p.join(s) {
		return noPool(name)
	}
	s.pool = p
	return nil
}

// quota is the bytes that the slice may keep on a device of total bytes, as far as that is its own affair; false if it may
// not use it. A member of a pool that has no quota of its own may keep what the pool has. Called with mu held, or before
// anybody knows the slice.
func (s *slice) quota(raw [16]byte, total uint64) (uint64, bool) {
	if s.pool != nil {
		if !s.pool.covers(raw) {
			return 0, false
		}
		if len(s.quotas) == 0 {
			return ledger.NoLimit, true
		}
	}
	return quotaOn(s.quotas, raw, total)
}

// foresees says whether the device may be one of the slice's from its beginning: where the slice is in a pool, the pool's
// ledger has it first.
func (s *slice) foresees(raw [16]byte) bool {
	if s.pool == nil {
		return true
	}
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return s.pool.find(raw) >= 0
}

// limitOn is the pool's limit on a device; 0 if it has it not.
func (p *pool) limitOn(raw [16]byte) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if index := p.find(raw); index >= 0 {
		return p.devices[index].given()
	}
	return 0
}

// mostOn is the highest limit that the pool ever had on a device; 0 if it has it not.
func (p *pool) mostOn(raw [16]byte) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if index := p.find(raw); index >= 0 {
		return p.devices[index].mostLimit()
	}
	return 0
}

// overLimit says whether the members hold more than they may on a device.
func (p *pool) overLimit(raw [16]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	index := p.find(raw)
	return index < 0 || p.state != api.Active || p.figures(index).Used > p.devices[index].Limit
}

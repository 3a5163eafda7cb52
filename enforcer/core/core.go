// SPDX-License-Identifier: Apache-2.0

// Package core decides what every slice and pool of a host may hold of its devices. It is a state machine: a Command or a Fact goes in, Effects come
// out. It does no I/O, takes no lock, starts no goroutine and reads no clock. One goroutine owns a Core; adapters carry out the effects.
//
// A holder is a slice or a pool. Its Record is stored; the fields beside the Record are lost with the daemon. A Record has three enumerations: Phase
// is the stage of a slice's life, Residence the place of its memory, Trust the state of its ledger. At most one operation is pending
// for a holder. An operation passes these steps, and each waits for one fact:
//
//	Register    Make → Store → Listen → Reply
//	Change      Store → Limit → Reply
//	Suspend     Store (leaving) → MoveOut → Store (away) → Reply
//	Release     Store (lingering) → Close → Reply; at Empty: Forget
//
// The bytes that are granted of a device are computed from the holders (counts, poolCounts). The sums in grant.go cache them: beside 10,000 slices
// one is registered and ended in 0.1 ms with the cache, and in 95 ms without (BenchmarkRegister).
//
// Six rules hold:
//
//  1. A record is in force once it is stored. Until its operation ends, a holder counts for the larger of the present and the next record.
//  2. Room is given away only when the store knows that it is free.
//  3. A write of something that has happened is repeated at each Tick until it succeeds.
//  4. Every effect may be carried out twice.
//  5. Restore is New with the store's records; facts say the rest.
//  6. An effect has a key, the holder, and a deadline. It never delays effects of another key.
//
// Adapters turn quotas into bytes of devices, know the processes of a slice (Empty, Attach), and compare with the memory that the driver and the
// host really have free (MoveOut and MoveIn fail without it).
package core

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

// Config has the operator's settings, and the host's devices.
type Config struct {
	Limits  refusal.Limits
	Devices []refusal.Device // nil without driver truth: nothing is refused for what others have
	MaxTTL  time.Duration    // of a slice; 0 is unlimited
	Grace   time.Duration    // from SIGTERM to SIGKILL
	Elastic Elastic
}

// Elastic has the operator's settings for elastic slices.
type Elastic struct {
	Off         string        // the reason why no slice can be elastic or suspended; "" if slices can
	Overcommit  uint64        // thousandths of a device that elastic slices may be promised together
	MinResident time.Duration // a slice is not idle for so long after a call
	Quantum     time.Duration // one that is not idle stays for so long after its return
	Asking      time.Duration // for which a slice counts as waiting after its last AskReturn
	Obstacle    time.Duration // before another attempt to evict a slice that could not be moved
	Patience    time.Duration // a slice that cannot be moved for so long, while others wait, is ended; 0 is never
	MaxPriority int           // of a slice that is no session
}

// holder is a slice or a pool.
type holder struct {
	Record
	who     *refusal.Holder
	user    *refusal.User // of a session with a limit
	pools   []*holder     // of a slice
	members []*holder     // of a pool, until they are forgotten
	pending *operation
	queue   []Command // that wait for pending
	removed bool      // no longer in grants

	counted  Bytes // in the sums of grant.go
	promised Bytes

	page              uint64 // Op of the last change of its ledger or move of its memory; 0 if that was a change that failed
	used              Bytes  // as reported since page; nil if nothing was
	native            Bytes  // as NativeLimit had it last
	signalled, killed bool   // its processes, by End

	empty        bool
	cause        string // of its release
	damage       string // to be stored
	excess       string
	expiryReason string // why it expires before its deadline: it blocked others for too long

	active, returned           time.Duration // its last call, and its last return to its devices
	waitingSince, lastAsked    time.Duration // the first AskReturn since its eviction, and the last; waitingSince is 0 if no process waits
	rested                     bool          // at waitingSince it had made no call for restedAfter quanta
	moveFailedAt, restFailedAt time.Duration // the last failed move, and the last failed move of Left; 0 is never
	evictions                  uint64
	waited                     time.Duration // for all returns so far
	lacks                      Bytes         // that its devices lacked at the last try to return it, though they are granted to nobody
	blockedSince               time.Duration // since then its own processes have prevented its move; 0 if they do not
	moveFailure                string        // why the last move failed, or the return is not possible yet
}

func (h *holder) ref() Ref { return Ref{h.Kind, h.ID, h.Generation} }

// evictable reports whether the memory of a slice may ever be evicted.
func (h *holder) evictable() bool { return h.Kind == Slice && h.Elastic && h.Phase == Live }

// Core is the state of a host. Each of its layers uses those below it: evictions, operations, grants.
type Core struct{ evictions }

// grants knows the holders, and computes what is granted to them.
type grants struct {
	config  Config
	devices map[string]refusal.Device // nil without driver truth

	holders    []*holder          // by generation
	slices     map[string]*holder // by id, without those that linger
	pools      map[string]*holder // by name
	of         map[*refusal.Holder]*holder
	users      map[uint32][]*holder
	sums       map[string]*sum // by device
	serveAgain bool            // a slice began to wait, or room may have become free

	now            time.Duration
	lastGeneration uint64
}

// operations begins and ends the holders' pending operations.
type operations struct {
	grants
	awaited map[uint64]*holder // by Op
	retries []*holder          // whose write is repeated at the next Tick
	ops     uint64             // the last Op
	out     []Effect
}

// evictions makes room, and serves the slices that wait for it.
type evictions struct {
	operations
	waiters []*holder // with a process that waits for their return
}

// New returns the state of a host without slices and pools.
func New(config Config) *Core {
	c := new(Core)
	c.grants, c.awaited = newGrants(config), make(map[uint64]*holder)
	return c
}

func newGrants(config Config) grants {
	c := grants{
		config: config, sums: make(map[string]*sum),
		slices: make(map[string]*holder), pools: make(map[string]*holder), users: make(map[uint32][]*holder),
		of: make(map[*refusal.Holder]*holder),
	}
	if config.Devices != nil {
		c.devices = make(map[string]refusal.Device)
		for _, d := range config.Devices {
			c.devices[d.UUID] = d
		}
	}
	return c
}

// Take returns the effects since it was called last.
func (c *operations) Take() []Effect {
	out := c.out
	c.out = nil
	return out
}

func (c *operations) emit(e ...Effect) { c.out = append(c.out, e...) }

// answer replies to a command on a slice or pool; nil if there is none.
func (c *operations) answer(h *holder, client uint64, err error) {
	if client == 0 {
		return
	}
	r := Reply{Client: client, Err: err}
	if h != nil {
		r.After = h.Generation
	}
	c.emit(r)
}

// Do carries out a command, or has it wait.
func (c *Core) Do(cmd Command) {
	c.dispatch(cmd)
	c.serveWaiters()
}

// maxQueue bounds the commands that wait for one operation.
const maxQueue = 64

func (c *Core) dispatch(cmd Command) {
	h := c.busy(cmd)
	switch {
	case h == nil:
		if err := c.run(cmd); err != nil {
			c.answer(c.find(cmd.target()), cmd.client(), err)
		}
	case len(h.queue) >= maxQueue:
		c.answer(h, cmd.client(), api.Errorf(api.CodeBusy, "%d requests wait for %s: try again later", maxQueue, h.title()))
	default:
		h.queue = append(h.queue, cmd)
	}
}

// busy returns a holder that the command has to wait for; nil if there is none.
func (c *Core) busy(cmd Command) *holder {
	switch cmd.(type) {
	case Attach, AskReturn:
		return nil
	}
	if h := c.find(cmd.target()); h != nil && h.pending != nil {
		return h
	}
	if r, ok := cmd.(Register); ok {
		for _, name := range r.Slice.Pools {
			if p := c.pools[name]; p != nil && p.pending != nil {
				return p
			}
		}
	}
	return nil
}

// run returns an error if a command is refused. Other commands are answered when their operations end.
func (c *Core) run(cmd Command) error {
	switch cmd := cmd.(type) {
	case Register:
		return c.register(cmd)
	case Change:
		return c.change(cmd)
	case UseDevice:
		return c.useDevice(cmd)
	case Attach:
		return c.attach(cmd)
	case AskReturn:
		c.askReturn(cmd.ID)
	case Release:
		return c.release(cmd)
	case Suspend:
		return c.suspend(cmd)
	case Resume:
		return c.resume(cmd)
	case CreatePool:
		return c.createPool(cmd)
	case ChangePool:
		return c.changePool(cmd)
	case DeletePool:
		return c.deletePool(cmd)
	}
	return nil
}

// Note takes a fact.
func (c *Core) Note(fact Fact) {
	switch f := fact.(type) {
	case Made:
		c.done(f.Op, making, Moved{Err: f.Err})
	case Stored:
		c.done(f.Op, storing, Moved{Err: f.Err})
	case Opened:
		c.done(f.Op, opening, Moved{Err: f.Err})
	case Limited:
		c.done(f.Op, limiting, Moved{Err: f.Err})
	case Moved:
		c.done(f.Op, moving, f)
	case Used:
		c.noteUsed(f)
	case Empty:
		c.note(f.Generation, func(h *holder) { h.empty = h.Kind == Slice })
	case Signalled:
		c.note(f.Generation, func(h *holder) { h.signalled = true })
	case Tampered:
		c.note(f.Generation, func(h *holder) { h.damage = f.Why })
	case Excess:
		c.note(f.Generation, func(h *holder) {
			if h.Kind == Slice {
				h.excess = f.Why
			}
		})
	case Tick:
		c.tick(f.Now)
	}
	c.serveWaiters()
}

// note calls what for the holder of a generation, if it is known, and acts on the result.
func (c *Core) note(generation uint64, what func(*holder)) {
	if i, ok := c.index(generation); ok {
		h := c.holders[i]
		what(h)
		c.settle(h)
	}
}

// noteUsed takes figures that were read after the last change of the ledger; older ones may be too low by now.
func (c *Core) noteUsed(f Used) {
	c.note(f.Generation, func(h *holder) {
		if f.Active {
			h.active = c.now
		}
		if f.Op != 0 && f.Op == h.page {
			h.used = f.Bytes
		}
	})
}

// settle begins the next operation of a holder without a pending one: first for facts, then for the commands that wait.
func (c *Core) settle(h *holder) {
	for h.pending == nil && (len(h.queue) > 0 || !h.removed && c.due(h)) {
		if !h.removed && c.due(h) {
			c.handle(h)
			continue
		}
		cmd := h.queue[0]
		h.queue = h.queue[1:]
		c.dispatch(cmd)
	}
	if !h.removed {
		c.limitNative(h, &h.Record)
	}
}

func (c *grants) index(generation uint64) (int, bool) {
	return slices.BinarySearchFunc(c.holders, generation, func(h *holder, g uint64) int { return cmp.Compare(h.Generation, g) })
}

// find returns a slice that does not linger, or a pool; nil if there is none.
func (c *grants) find(kind Kind, id string) *holder {
	if kind == Pool {
		return c.pools[id]
	}
	return c.slices[id]
}

// title names a holder in a sentence.
func (h *holder) title() string {
	if h.Kind == Pool {
		return "pool " + h.ID
	}
	return "slice " + h.ID
}

// enter makes a holder known.
func (c *grants) enter(h *holder) {
	i, _ := c.index(h.Generation)
	c.holders = slices.Insert(c.holders, i, h)
	c.lastGeneration = max(c.lastGeneration, h.Generation)
	c.of[h.who] = h
	switch {
	case h.Kind == Pool:
		c.pools[h.ID] = h
	case h.Phase != Lingering:
		c.slices[h.ID] = h
	}
	for _, p := range h.pools {
		p.members = append(p.members, h)
	}
	if h.UID != nil {
		c.users[*h.UID] = append(c.users[*h.UID], h)
	}
	c.count(h)
}

// drop forgets a holder, and has adapters do the same.
func (c *operations) drop(h *holder) {
	c.remove(h)
	if len(h.native) > 0 {
		c.emit(NativeLimit{Ref: h.ref()})
	}
	c.emit(HangUp{h.ref()})
}

// remove forgets a holder.
func (c *grants) remove(h *holder) {
	h.pending, h.removed = nil, true
	delete(c.of, h.who)
	if i, known := c.index(h.Generation); known {
		c.holders = slices.Delete(c.holders, i, i+1)
	}
	if h.Kind == Pool {
		delete(c.pools, h.ID)
	} else if c.slices[h.ID] == h {
		delete(c.slices, h.ID)
	}
	isHolder := func(other *holder) bool { return other == h }
	for _, p := range h.pools {
		p.members = slices.DeleteFunc(p.members, isHolder)
	}
	if h.UID != nil {
		if c.users[*h.UID] = slices.DeleteFunc(c.users[*h.UID], isHolder); len(c.users[*h.UID]) == 0 {
			delete(c.users, *h.UID)
		}
	}
	c.count(h)
}

// newHolder returns a holder that is not known yet. A nil name takes the names of the record.
func newHolder(r *Record, name *refusal.Holder) *holder {
	if name == nil {
		name = &refusal.Holder{Name: cmp.Or(r.Name, r.ID), Tenant: r.Tenant, UID: r.UID}
		if r.Kind == Pool {
			name.Name, name.Pool, name.Private = "pool "+r.ID, r.ID, r.Private
		}
	}
	return &holder{Record: *r, who: name}
}

// nextGeneration returns a number above that of every record that the core had.
func (c *grants) nextGeneration() uint64 {
	c.lastGeneration = max(c.lastGeneration+1, uint64(c.now.Microseconds()))
	return c.lastGeneration
}

// total returns the bytes of a device; NoLimit if they are unknown.
func (c *grants) total(uuid string) uint64 {
	if d, known := c.devices[uuid]; known {
		return d.Total
	}
	return NoLimit
}

// limitNative has the driver's own limits follow a record.
func (c *operations) limitNative(h *holder, r *Record) {
	if h.Kind == Pool {
		for _, m := range h.members {
			c.limitNative(m, &m.Record)
		}
		return
	}
	if !r.Native || r.Unlimited || r.Phase == Admitted {
		return
	}
	limits := make(Bytes)
	for uuid, limit := range r.Limits {
		switch {
		case r.closed() || r.Trust == Frozen:
			limit = 0
		case r.Residence == Away:
			limit = r.Left[uuid]
		case limit == NoLimit:
			limit = h.poolLimit(uuid)
		}
		limits[uuid] = min(limit, c.total(uuid))
	}
	if h.native == nil || !maps.Equal(h.native, limits) {
		h.native = limits
		c.emit(NativeLimit{h.ref(), limits})
	}
}

// SPDX-License-Identifier: Apache-2.0

package core

import (
	"maps"
	"math"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

// Accounts is a Core for a caller that restores holders by itself (Enter, Set), and reports what slices do all at a time (Observe). It is not safe for use by several goroutines.
type Accounts struct{ Core }

// NewAccounts returns Accounts without holders.
func NewAccounts(config Config) *Accounts {
	a := new(Accounts)
	a.grants, a.awaited = newGrants(config), make(map[uint64]*holder)
	return a
}

// find returns a holder, which may be unknown.
func (a *Accounts) find(who *refusal.Holder) *holder {
	if h := a.of[who]; h != nil {
		return h
	}
	return &holder{who: who}
}

// Enter makes a holder known, with a record in force, and returns its generation. It refuses nothing. All of the holder's pools are known.
func (a *Accounts) Enter(who *refusal.Holder, r Record, pools ...*refusal.Holder) uint64 {
	h := a.newHolder(who, r, pools)
	a.enter(h)
	if r.Phase == Expiring && r.Asked == 0 {
		a.emit(End{Ref: h.ref()})
	}
	return h.Generation
}

func (a *Accounts) newHolder(who *refusal.Holder, r Record, pools []*refusal.Holder) *holder {
	if r.UID = who.UID; r.Generation == 0 {
		r.Generation = a.nextGeneration()
	}
	h := &holder{Record: r, who: who, active: a.now, returned: a.now}
	for _, p := range pools {
		h.pools = append(h.pools, a.of[p])
	}
	return h
}

// Set notes the record of a restored holder, of which no command or fact is under way. It returns the Op with which Used reports what the holder holds.
func (a *Accounts) Set(who *refusal.Holder, r Record) (op uint64) {
	h := a.of[who]
	r.Generation, r.UID = h.Generation, h.UID
	a.ops++
	h.Record, h.page = r, a.ops
	a.count(h)
	return h.page
}

// Has returns the bytes that a holder counts for; with pools, those of a slice's pools, too.
func (a *Accounts) Has(who *refusal.Holder, pools bool) Bytes {
	h, has := a.find(who), make(Bytes)
	maps.Copy(has, h.counted)
	if pools {
		for _, p := range h.pools {
			maps.Copy(has, p.counted)
		}
	}
	return has
}

// IsAway reports whether all members of an elastic pool are off their devices.
func (a *Accounts) IsAway(who *refusal.Holder) bool { return a.isAway(a.find(who)) }

// Activity is what an elastic slice's processes have done since it was observed last.
type Activity struct {
	Holder *refusal.Holder
	Active bool // they called the driver, or are in a call
	Asks   bool // one waits for the slice's return
}

// Observe notes what elastic slices have done until now, and returns the slices that wait and have room.
func (a *Accounts) Observe(all []Activity) {
	for _, act := range all {
		h := a.of[act.Holder]
		if h == nil {
			continue
		}
		if act.Active {
			h.active = a.now
		}
		if act.Asks {
			a.askReturn(h.ID)
		}
	}
	a.serveAgain = true
	a.serveWaiters()
}

// Waiting is what users see of an elastic slice's turns.
type Waiting struct {
	Evictions uint64
	Since     time.Duration // since boot: a process waits since then; 0 if none does
	Waited    time.Duration // in all
	Idle      time.Duration // since the last call
	Obstacle  string        // why the last move failed, or the return is not possible yet
	Leaves    bool          // nobody can have its room yet
}

// Waiting returns what is known of an elastic slice's turns.
func (a *Accounts) Waiting(who *refusal.Holder) Waiting {
	h := a.find(who)
	w := Waiting{Evictions: h.evictions, Since: h.waitingSince, Waited: h.waited, Idle: a.now - h.active, Obstacle: h.moveFailure, Leaves: h.Residence == Leaving}
	if w.Since != 0 {
		w.Waited += a.now - w.Since
	}
	return w
}

// Idle returns the bytes of a device that resident elastic slices and pools count for which made no call for a time.
func (a *Accounts) Idle(uuid string, after time.Duration) (bytes uint64) {
	for _, u := range a.candidates(want{busy: true, priority: math.MaxInt}, a.config.Elastic.Quantum) {
		if !u.away && u.idle >= after {
			bytes += u.h.counted[uuid]
		}
	}
	return bytes
}

// NextGeneration returns a number above that of every record that was known, and no less than least.
func (a *Accounts) NextGeneration(least uint64) uint64 {
	a.lastGeneration = max(a.lastGeneration+1, least)
	return a.lastGeneration
}

// At notes the time since boot.
func (a *Accounts) At(now time.Duration) { a.now = now }

// Due returns the time until the next Tick is due, at most the given one.
func (a *Accounts) Due(most time.Duration) time.Duration {
	for _, h := range a.holders {
		at := h.Deadline
		if h.Phase == Expiring && h.Asked != 0 {
			at = h.Asked + a.config.Grace
		}
		if at > a.now { // else it is being done
			most = min(most, at-a.now)
		}
	}
	return most
}

// Overstay has a slice expire at the next Tick: others waited in vain for it to be moved.
func (a *Accounts) Overstay(generation uint64, why string) {
	if i, known := a.index(generation); known {
		a.holders[i].expiryReason = why
	}
}

// Sessions returns the number of a user's sessions.
func (a *Accounts) Sessions(uid uint32) int { return len(a.users[uid]) }

// Left returns the most bytes of a device that a user's sessions could be granted, the bytes that they have, and the most that one more
// would be granted. limit is nil if the user has none.
func (a *Accounts) Left(uid uint32, limit *refusal.User, uuid string) (maxBytes, has, left uint64) {
	ask := a.ask(&holder{who: &refusal.Holder{UID: &uid}}, uuid, 0, nil)
	maxBytes, left = a.config.Limits.Left(ask)
	for _, h := range a.users[uid] {
		has += h.counted[uuid]
	}
	if limit == nil {
		return maxBytes, has, left
	}
	bound := limit.MaxVRAM.Of(ask.Device.Total)
	maxBytes, left = min(maxBytes, bound), min(left, bound-min(bound, has))
	if limit.CheckSessions(len(a.users[uid])) != nil {
		left = 0
	}
	return maxBytes, has, left
}

// Sum is what is granted of a device.
type Sum struct {
	Granted  uint64            // to all holders, in bytes
	Promised uint64            // to elastic holders
	Tenants  map[string]uint64 // to the holders that the bound of a tenant counts, by tenant
}

// On returns what is granted of a device.
func (a *Accounts) On(uuid string) Sum {
	s := a.on(uuid)
	return Sum{s.all, s.promised, maps.Clone(s.tenants)}
}

// Holders calls f with each holder that has bytes of a device or is promised some.
func (a *Accounts) Holders(uuid string, f func(who *refusal.Holder, has, promised uint64)) {
	for _, h := range a.holders {
		if has, promised := h.counted[uuid], h.promised[uuid]; has > 0 || promised > 0 {
			f(h.who, has, promised)
		}
	}
}

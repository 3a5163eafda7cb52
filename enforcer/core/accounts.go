// SPDX-License-Identifier: Apache-2.0

package core

import (
	"maps"
	"math"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

// Accounts is a Core for a caller that restores holders by itself (Enter, Set), and chooses when slices are evicted (Observe, Victims). It is not safe for use by several goroutines.
type Accounts struct{ Core }

// NewAccounts returns Accounts without holders.
func NewAccounts(config Config) *Accounts {
	a := new(Accounts)
	a.grants, a.awaited = newGrants(config), make(map[uint64]*holder)
	return a
}

// Want is a grant that a holder lacks, on all devices.
type Want struct {
	Holder   *refusal.Holder
	Bytes    Bytes
	Quotas   []api.Quota   // of a session, where the devices are unknown
	User     *refusal.User // with the limit that applies; nil if there is none
	Priority int
	Busy     bool // slices that are not idle may be evicted for it, too
}

func (w *want) exported() *Want {
	return &Want{Holder: w.h.who, Bytes: w.bytes, Quotas: w.quotas, User: w.user, Priority: w.priority, Busy: w.busy}
}

func (a *Accounts) want(w *Want) want {
	return want{h: a.find(w.Holder), bytes: w.Bytes, quotas: w.Quotas, user: w.User, priority: w.Priority, busy: w.Busy}
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
	return h.Generation
}

func (a *Accounts) newHolder(who *refusal.Holder, r Record, pools []*refusal.Holder) *holder {
	if r.UID = who.UID; r.Generation == 0 {
		r.Generation = a.nextGeneration()
	}
	h := &holder{Record: r, who: who}
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

// Needs returns the bytes that a slice's return takes from others, or its pools' if none of their members is on its devices.
func (a *Accounts) Needs(who *refusal.Holder) Bytes {
	bytes := make(Bytes)
	for _, w := range a.wantsToReturn(a.find(who)) {
		maps.Copy(bytes, w.bytes)
	}
	return bytes
}

// WantOn returns the grant for a slice's return that lacks room on a device.
func (a *Accounts) WantOn(who *refusal.Holder, uuid string, user *refusal.User) *Want {
	h := a.find(who)
	w := want{h: h, bytes: a.present(&h.Record), quotas: h.Quotas, user: user, priority: h.Priority}
	if p := h.poolOn(uuid); p != nil {
		w = want{h: p, bytes: a.poolPresent(p), quotas: p.Quotas, priority: h.Priority}
	}
	return w.exported()
}

// IsAway reports whether all members of an elastic pool are off their devices.
func (a *Accounts) IsAway(who *refusal.Holder) bool { return a.isAway(a.find(who)) }

// Activity is what is known of an elastic slice's calls and moves: times since boot, 0 is never.
type Activity struct {
	Active, Returned  time.Duration // when it made a call, and came back
	Obstructed, Stuck time.Duration // when a move failed, and when the move of the rest did
	Fixed             bool          // it is being moved, or its state forbids that
}

// Observe notes the time since boot, and the activity of slices.
func (a *Accounts) Observe(now time.Duration, all map[*refusal.Holder]Activity) {
	a.now = now
	for who, act := range all {
		if h := a.of[who]; h != nil {
			h.active, h.returned, h.moveFailedAt, h.restFailedAt, h.immovable = act.Active, act.Returned, act.Obstructed, act.Stuck, act.Fixed
		}
	}
}

// Victim is a slice to evict, or the members of an elastic pool.
type Victim struct {
	Slices []*refusal.Holder
	Away   bool  // they are in host memory, and move what they left on devices
	Busy   bool  // they are not idle
	Stay   Bytes // that they may leave on devices
}

// Victims returns the slices to evict for a want, and whether evicting is enough. No victims and enough means that there is room for it. lacks are
// bytes of a device that it lacks though they are granted to nobody.
func (a *Accounts) Victims(of *Want, quantum time.Duration, device string, lacks uint64) (victims []Victim, enough bool) {
	w := a.want(of)
	candidates := a.candidates(w, quantum)
	chosen, enough := a.chooseUnits(w, candidates)
	if !enough {
		return nil, false
	}
	for i, u := range chosen {
		stay := Bytes{}
		if i == len(chosen)-1 {
			stay = a.bytesToStay(w, u.h, chosen[:i])
		}
		victims = append(victims, u.victim(stay))
	}
	if len(victims) > 0 || lacks == 0 {
		return victims, true
	}
	for _, u := range candidates {
		if n := u.h.counted[device]; n > 0 && lacks > 0 {
			victims, lacks = append(victims, u.victim(Bytes{})), lacks-min(lacks, n)
		}
	}
	return victims, lacks == 0
}

func (u *unit) victim(stay Bytes) Victim {
	v := Victim{Away: u.away, Busy: u.busy, Stay: stay}
	for _, h := range u.slices {
		v.Slices = append(v.Slices, h.who)
	}
	return v
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

// CheckTime ends a slice if its time is over.
func (a *Accounts) CheckTime(generation uint64) { a.note(generation, func(*holder) {}) }

// Overstay has a slice expire at the next CheckTime: others waited in vain for it to be moved.
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

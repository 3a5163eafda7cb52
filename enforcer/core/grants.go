// SPDX-License-Identifier: Apache-2.0

package core

import (
	"maps"
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

// Grants decides what holders are granted, from noted bytes, since the caller has the records. It is not safe for use by several goroutines.
type Grants struct {
	grants
	of map[*refusal.Holder]*holder
}

// NewGrants returns Grants in which nothing is granted.
func NewGrants(config Config) *Grants {
	return &Grants{newGrants(config), make(map[*refusal.Holder]*holder)}
}

// find returns a holder, which may be unknown.
func (g *Grants) find(who *refusal.Holder) *holder {
	if h := g.of[who]; h != nil {
		return h
	}
	return &holder{who: who}
}

// known makes a holder known. It counts for its noted bytes, as a lingering slice does.
func (g *Grants) known(who *refusal.Holder) *holder {
	h := g.of[who]
	if h == nil {
		h = &holder{Record: Record{Generation: g.nextGeneration(), Phase: Lingering}, who: who}
		g.of[who] = h
		g.enter(h)
	}
	return h
}

// Ask is a holder's request.
type Ask struct {
	Holder *refusal.Holder
	Bytes  Bytes
	Quotas []api.Quota   // of a session, where the devices are unknown
	User   *refusal.User // with the limit that applies; nil if there is none
}

func (g *Grants) want(a Ask) want {
	return want{h: g.find(a.Holder), bytes: a.Bytes, quotas: a.Quotas, user: a.User}
}

// Check returns why a request cannot be granted, on all devices: an *api.Error.
func (g *Grants) Check(a Ask) error { return g.check(g.want(a), nil) }

// CheckPromise returns why a request cannot be promised.
func (g *Grants) CheckPromise(a Ask) error { return g.checkPromise(g.find(a.Holder), a.Bytes, a.User) }

// Set notes the bytes that a holder has, and none on other devices.
func (g *Grants) Set(who *refusal.Holder, has Bytes) {
	h := g.known(who)
	h.Left = has.without0()
	g.count(h)
}

// Has returns the bytes that a holder has.
func (g *Grants) Has(who *refusal.Holder) Bytes {
	has := make(Bytes)
	maps.Copy(has, g.find(who).counted)
	return has
}

// Promise notes what an elastic holder is promised.
func (g *Grants) Promise(who *refusal.Holder, wants Bytes) {
	h := g.known(who)
	h.Elastic, h.Limits = true, maps.Clone(wants)
	g.count(h)
}

// Note notes a session's request: it counts for its user until Drop.
func (g *Grants) Note(who *refusal.Holder, quotas []api.Quota) {
	if who.UID == nil {
		return
	}
	h := g.known(who)
	if h.Quotas = quotas; h.UID == nil {
		h.UID = who.UID
		g.users[*who.UID] = append(g.users[*who.UID], h)
	}
}

// Drop forgets a holder.
func (g *Grants) Drop(who *refusal.Holder) {
	if h := g.of[who]; h != nil {
		g.remove(h)
		delete(g.of, who)
	}
}

// Sessions returns the number of a user's sessions.
func (g *Grants) Sessions(uid uint32) int { return len(g.users[uid]) }

// Left returns the most bytes of a device that a user's sessions could be granted, the bytes that they have, and the most that one more
// would be granted. limit is nil if the user has none.
func (g *Grants) Left(uid uint32, limit *refusal.User, uuid string) (most, has, left uint64) {
	ask := g.ask(&holder{who: &refusal.Holder{UID: &uid}}, uuid, 0, nil)
	most, left = g.config.Limits.Left(ask)
	for _, h := range g.users[uid] {
		has += h.counted[uuid]
	}
	if limit == nil {
		return most, has, left
	}
	bound := limit.MaxVRAM.Of(ask.Device.Total)
	most, left = min(most, bound), min(left, bound-min(bound, has))
	if limit.CheckSessions(len(g.users[uid])) != nil {
		left = 0
	}
	return most, has, left
}

// Which returns the holders that have to be evicted for a request, by their places in may. The last ones of may are left out if possible. It returns
// false if all of them are not enough.
func (g *Grants) Which(a Ask, may []*refusal.Holder) (which []int, enough bool) {
	var units []unit
	for _, other := range may {
		units = append(units, unit{h: g.find(other)})
	}
	chosen, enough := g.which(g.want(a), units)
	for _, u := range chosen {
		which = append(which, slices.Index(may, u.h.who))
	}
	return which, enough
}

// Beside returns the bytes that a holder may keep on its devices with the request of another granted and all of gone evicted, less the margin of a
// move.
func (g *Grants) Beside(a Ask, goes *refusal.Holder, gone []*refusal.Holder) Bytes {
	var units []unit
	for _, other := range gone {
		units = append(units, unit{h: g.find(other)})
	}
	return g.beside(g.want(a), g.find(goes), units)
}

// Sum is what is granted of a device.
type Sum struct {
	Granted  uint64            // to all holders, in bytes
	Promised uint64            // to elastic holders
	Tenants  map[string]uint64 // to the holders that the bound of a tenant counts, by tenant
}

// On returns what is granted of a device.
func (g *Grants) On(uuid string) Sum {
	s := g.on(uuid)
	return Sum{s.all, s.promised, maps.Clone(s.tenants)}
}

// Holders calls f with each holder that has bytes of a device or is promised some.
func (g *Grants) Holders(uuid string, f func(who *refusal.Holder, has, promised uint64)) {
	for _, h := range g.holders {
		if has, promised := h.counted[uuid], h.promised[uuid]; has > 0 || promised > 0 {
			f(h.who, has, promised)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// gib is in bytes; each of the two devices has 80 of them.
const gib = 1 << 30

func hostOf(tenants map[string]api.Share) *Accounts {
	c := Config{Limits: refusal.Limits{Tenants: tenants}, Elastic: Elastic{Quantum: time.Minute, Asking: time.Minute}}
	for _, uuid := range []string{"a", "b"} {
		c.Devices = append(c.Devices, refusal.Device{UUID: uuid, Shown: uuid, Total: 80 * gib})
	}
	a := NewAccounts(c)
	a.At(time.Hour)
	return a
}

func TestOnlyUsefulVictimsAreChosen(t *testing.T) {
	alice, bob := uint32(5001), uint32(5002)
	tenants := map[string]api.Share{"physics": {Bytes: 30 * gib}}
	of := func(name string, uid *uint32, tenant string) *refusal.Holder {
		return &refusal.Holder{Name: name, UID: uid, Tenant: tenant}
	}
	small, large, other := of("small", nil, ""), of("large", nil, ""), of("other", nil, "")
	hers, his, her, physics, too := of("hers", &alice, ""), of("his", &bob, ""), of("her", &alice, ""), of("physics", nil, "physics"), of("too", nil, "physics")
	for name, c := range map[string]struct {
		has    map[*refusal.Holder]uint64 // of the first device; 8 GiB of the second have all
		h      *refusal.Holder
		bytes  uint64
		limit  *refusal.User
		may    []*refusal.Holder
		which  []int
		enough bool
	}{
		"there is room":                   {map[*refusal.Holder]uint64{large: 40}, other, 40, nil, []*refusal.Holder{large}, nil, true},
		"one is enough":                   {map[*refusal.Holder]uint64{small: 10, large: 60}, other, 20, nil, []*refusal.Holder{small, large}, []int{0}, true},
		"the first is not, the second is": {map[*refusal.Holder]uint64{small: 10, large: 60}, other, 60, nil, []*refusal.Holder{small, large}, []int{1}, true},
		"both are":                        {map[*refusal.Holder]uint64{small: 10, large: 60}, other, 75, nil, []*refusal.Holder{small, large}, []int{0, 1}, true},
		"all are not":                     {map[*refusal.Holder]uint64{small: 10, large: 60, hers: 10}, other, 75, nil, []*refusal.Holder{small, large}, nil, false},
		"it is her own limit":             {map[*refusal.Holder]uint64{hers: 10, his: 10}, her, 10, &refusal.User{UID: alice, MaxVRAM: api.Share{Bytes: 15 * gib}, MaxSessions: 9}, []*refusal.Holder{his, hers}, []int{1}, true},
		"and hers may not go":             {map[*refusal.Holder]uint64{hers: 10, his: 10}, her, 10, &refusal.User{UID: alice, MaxVRAM: api.Share{Bytes: 15 * gib}, MaxSessions: 9}, []*refusal.Holder{his}, nil, false},
		"it is the tenant's":              {map[*refusal.Holder]uint64{physics: 20, large: 20}, too, 20, nil, []*refusal.Holder{large, physics}, []int{1}, true},
		"it is more than the device":      {map[*refusal.Holder]uint64{large: 20}, other, 81, nil, []*refusal.Holder{large}, nil, false},
	} {
		b := hostOf(tenants)
		for h, bytes := range c.has {
			b.elastic(h, Bytes{"a": bytes * gib, "b": gib}, slices.Index(c.may, h))
		}
		w := want{h: b.find(c.h), bytes: Bytes{"a": c.bytes * gib}, user: c.limit}
		these, enough := b.chooseUnits(w, b.candidates(w, 0))
		var which []int
		for _, u := range these {
			which = append(which, slices.Index(c.may, u.h.who))
		}
		if !slices.Equal(which, c.which) || enough != c.enough {
			t.Errorf("%s: %v, %v", name, which, enough)
		}
	}
}

// elastic enters a slice, which is elastic and has been idle unless idle is negative: for longer if idle is less.
func (a *Accounts) elastic(who *refusal.Holder, limits Bytes, idle int) {
	a.Enter(who, Record{ID: who.Name, Tenant: who.Tenant, Limits: limits, Elastic: idle >= 0, Phase: Live})
	a.find(who).active = time.Duration(1 + idle)
}

func TestVictimKeepsTheMemoryThatStillFits(t *testing.T) {
	alice := uint32(5001)
	bounded := &refusal.Holder{Name: "bounded", Tenant: "physics"}
	a, b, s := &refusal.Holder{Name: "a"}, &refusal.Holder{Name: "b"}, &refusal.Holder{Name: "s", UID: &alice}
	t1 := &refusal.Holder{Name: "t1", Tenant: "physics"}
	for _, c := range []struct {
		name        string
		has         map[*refusal.Holder]uint64 // GiB
		who         *refusal.Holder
		wants, left uint64
		limit       *refusal.User
		goes        []*refusal.Holder // the last one may leave some
	}{
		{"two", map[*refusal.Holder]uint64{a: 45}, b, 45, 35, nil, []*refusal.Holder{a}},
		{"beside an ordinary one", map[*refusal.Holder]uint64{a: 45, s: 20}, b, 45, 15, nil, []*refusal.Holder{a}},
		{"others go, too", map[*refusal.Holder]uint64{a: 45, s: 30}, b, 60, 20, nil, []*refusal.Holder{s, a}},
		{"it had some", map[*refusal.Holder]uint64{a: 45, b: 20}, b, 45, 35, nil, []*refusal.Holder{a}},
		{"the tenant's bound is full", map[*refusal.Holder]uint64{t1: 20}, bounded, 20, 0, nil, []*refusal.Holder{t1}},
		{"hers is", map[*refusal.Holder]uint64{s: 40}, &refusal.Holder{Name: "her", UID: &alice}, 40, 0, &refusal.User{UID: alice, MaxVRAM: api.Share{Bytes: 50 * gib}, MaxSessions: 9}, []*refusal.Holder{s}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := hostOf(map[string]api.Share{"physics": {Bytes: 30 * gib}})
			for h, bytes := range c.has {
				all.elastic(h, Bytes{"a": bytes * gib}, slices.Index(c.goes, h))
			}
			w := want{h: all.find(c.who), bytes: Bytes{"a": c.wants * gib}, user: c.limit}
			these, enough := all.chooseUnits(w, all.candidates(w, 0))
			if !enough || len(these) != len(c.goes) {
				t.Fatalf("%+v, %v", these, enough)
			}
			last := len(these) - 1
			expect.Equal(t, all.bytesToStay(w, these[last].h, these[:last])["a"], max(c.left*gib, stayMargin)-stayMargin)
		})
	}
}

func TestWaitersReturnByPriorityThenRest(t *testing.T) {
	a := hostOf(nil)
	var all []*refusal.Holder
	for _, name := range []string{"first", "second", "rested", "prior"} {
		h := &refusal.Holder{Name: name}
		r := Record{ID: name, Limits: Bytes{"a": 60 * gib}, Elastic: true, Phase: Live, Residence: Away}
		if name == "prior" {
			r.Priority = 1
		}
		a.Enter(h, r)
		all = append(all, h)
	}
	a.find(all[2]).active = time.Hour - restedAfter*time.Minute
	busy := &refusal.Holder{Name: "busy"}
	a.Enter(busy, Record{ID: "busy", Limits: Bytes{"a": 60 * gib}, Phase: Live})
	for i, h := range all {
		a.At(time.Hour + time.Duration(i)*time.Second)
		a.Observe([]Activity{{Holder: h, Asks: true}})
	}
	must.Len(t, a.Take(), 0, "effects while there is no room")
	var order []string
	for last := busy; ; last = a.slices[order[len(order)-1]].who {
		a.endSlice(a.find(last), CauseAsked, 0)
		a.Note(Empty{a.find(last).Generation})
		for effects := a.Take(); len(effects) > 0; effects = a.Take() {
			for _, e := range effects {
				if move, is := e.(MoveIn); is {
					order = append(order, move.ID)
				}
				a.Note(answerTo(e))
			}
		}
		if len(order) == len(all) {
			break
		}
	}
	must.Equal(t, strings.Join(order, " "), "prior rested first second", "order of the returns")
}

// Another program holds what was granted to nobody.
func TestRoomThatADeviceLacksIsMade(t *testing.T) {
	a := hostOf(nil)
	waits, idle := &refusal.Holder{Name: "waits"}, &refusal.Holder{Name: "idle"}
	a.Enter(waits, Record{ID: "waits", Limits: Bytes{"a": 40 * gib}, Elastic: true, Phase: Live, Residence: Away})
	a.elastic(idle, Bytes{"a": 20 * gib}, 0)
	a.Observe([]Activity{{Holder: waits, Asks: true}})
	var moves []string
	for n := range 40 {
		for _, e := range a.Take() {
			switch e := e.(type) {
			case MoveIn:
				moves = append(moves, "in")
				f := Moved{Op: e.Op}
				if a.find(idle).Residence != Away {
					f.At, f.Err = Away, &api.Error{Code: api.CodeQuotaExceeded, Device: "a", Requested: 40 * gib, Limit: 80 * gib, Current: 55 * gib}
				}
				a.Note(f)
			case MoveOut:
				moves = append(moves, "out "+e.ID)
				a.Note(answerTo(e))
			default:
				a.Note(answerTo(e))
			}
		}
		a.At(time.Hour + time.Duration(n)*returnRetryDelay/4)
		a.Observe(nil)
	}
	must.Equal(t, strings.Join(moves, ", "), "in, out idle, in", "moves")
}

// A member that returned while another is leaving would keep the pool on its devices.
func TestAnEvictedPoolMakesRoomForAnEarlierWaiter(t *testing.T) {
	a := hostOf(nil)
	pool, waits := &refusal.Holder{Name: "pool", Pool: "p"}, &refusal.Holder{Name: "waits"}
	a.Enter(pool, Record{Kind: Pool, ID: "p", Limits: Bytes{"a": 60 * gib}, Elastic: true, Phase: Live})
	members := []*refusal.Holder{{Name: "first"}, {Name: "second"}}
	for _, m := range members {
		a.Enter(m, Record{ID: m.Name, Pools: []string{"p"}, Limits: Bytes{"a": NoLimit}, Elastic: true, Phase: Live}, pool)
		a.find(m).active = time.Hour - time.Minute
	}
	a.Enter(waits, Record{ID: "waits", Limits: Bytes{"a": 60 * gib}, Elastic: true, Phase: Live, Residence: Away})
	a.Observe([]Activity{{Holder: waits, Asks: true}})
	a.At(time.Hour + time.Second)
	for effects := a.Take(); len(effects) > 0; effects = a.Take() {
		for _, e := range effects {
			if move, is := e.(MoveIn); is {
				must.Equal(t, move.ID, "waits", "the first to return")
				return
			}
			a.Note(answerTo(e))
			a.Observe([]Activity{{Holder: members[0], Asks: true}, {Holder: members[1], Asks: true}})
		}
	}
	t.Fatal("nobody returns")
}

// A pool counts where it had a quota before, as long as its members hold memory there.
func TestPoolsWithACommonDeviceNeedRoomTogether(t *testing.T) {
	a := hostOf(nil)
	p, q, m := &refusal.Holder{Name: "p", Pool: "p"}, &refusal.Holder{Name: "q", Pool: "q"}, &refusal.Holder{Name: "m"}
	a.Enter(p, Record{Kind: Pool, ID: "p", Limits: Bytes{"a": gib}, Kept: Bytes{"b": 50 * gib}, Elastic: true, Phase: Live})
	a.Enter(q, Record{Kind: Pool, ID: "q", Limits: Bytes{"b": 40 * gib}, Elastic: true, Phase: Live})
	a.Enter(m, Record{ID: "m", Pools: []string{"p", "q"}, Limits: Bytes{"a": NoLimit, "b": NoLimit}, Elastic: true, Phase: Live, Residence: Away}, p, q)
	a.Observe([]Activity{{Holder: m, Asks: true}})
	must.Len(t, a.Take(), 0, "effects without room for both")
}

// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/test/expect"
)

func TestOnlyUsefulVictimsAreChosen(t *testing.T) {
	alice, bob := uint32(5001), uint32(5002)
	tenants := map[string]api.Share{"physics": {Bytes: 30 * gib}}
	of := func(name string, uid *uint32, tenant string) *Holder {
		return &Holder{Name: name, UID: uid, Tenant: tenant}
	}
	small, large, other := of("small", nil, ""), of("large", nil, ""), of("other", nil, "")
	hers, his, her, physics, too := of("hers", &alice, ""), of("his", &bob, ""), of("her", &alice, ""), of("physics", nil, "physics"), of("too", nil, "physics")
	for name, c := range map[string]struct {
		has    map[*Holder]uint64 // of the first device; 8 GiB of the second have all
		h      *Holder
		bytes  uint64
		limit  *User
		may    []*Holder
		which  []int
		enough bool
	}{
		"there is room":                   {map[*Holder]uint64{large: 40}, other, 40, nil, []*Holder{large}, nil, true},
		"one is enough":                   {map[*Holder]uint64{small: 10, large: 60}, other, 20, nil, []*Holder{small, large}, []int{0}, true},
		"the first is not, the second is": {map[*Holder]uint64{small: 10, large: 60}, other, 60, nil, []*Holder{small, large}, []int{1}, true},
		"both are":                        {map[*Holder]uint64{small: 10, large: 60}, other, 75, nil, []*Holder{small, large}, []int{0, 1}, true},
		"all are not":                     {map[*Holder]uint64{small: 10, large: 60, hers: 10}, other, 75, nil, []*Holder{small, large}, nil, false},
		"it is her own limit":             {map[*Holder]uint64{hers: 10, his: 10}, her, 10, &User{UID: alice, MaxVRAM: api.Share{Bytes: 15 * gib}, MaxSessions: 9}, []*Holder{his, hers}, []int{1}, true},
		"and hers may not go":             {map[*Holder]uint64{hers: 10, his: 10}, her, 10, &User{UID: alice, MaxVRAM: api.Share{Bytes: 15 * gib}, MaxSessions: 9}, []*Holder{his}, nil, false},
		"it is the tenant's":              {map[*Holder]uint64{physics: 20, large: 20}, too, 20, nil, []*Holder{large, physics}, []int{1}, true},
		"it is more than the device":      {map[*Holder]uint64{large: 20}, other, 81, nil, []*Holder{large}, nil, false},
	} {
		b := newBook(Limits{Tenants: tenants})
		for h, bytes := range c.has {
			b.elastic(h, core.Bytes{gpu0: bytes * gib, gpu1: gib}, slices.Index(c.may, h))
		}
		before := fmt.Sprint(b.Granted(gpu0).Bytes, b.Granted(gpu1).Bytes, b.Has(large, false))
		these, enough := b.victims(&core.Want{Holder: c.h, Bytes: core.Bytes{gpu0: c.bytes * gib}, User: c.limit})
		var which []int
		for _, v := range these {
			which = append(which, slices.Index(c.may, v.Slices[0]))
		}
		if !slices.Equal(which, c.which) || enough != c.enough {
			t.Errorf("%s: %v, %v", name, which, enough)
		}
		if after := fmt.Sprint(b.Granted(gpu0).Bytes, b.Granted(gpu1).Bytes, b.Has(large, false)); after != before {
			t.Errorf("%s: it was %s and is %s", name, before, after)
		}
	}
}

// elastic enters a slice, which is elastic and has been idle unless idle is negative: for longer if idle is less.
func (b *book) elastic(h *Holder, limits core.Bytes, idle int) {
	r := record(h, limits)
	r.Elastic = idle >= 0
	b.Enter(h, r)
	b.Do(func(a *core.Accounts) {
		a.Observe(time.Hour, map[*Holder]core.Activity{h: {Active: time.Duration(1 + idle), Returned: 1}})
	})
}

func (b *book) victims(w *core.Want) (these []core.Victim, enough bool) {
	b.Do(func(a *core.Accounts) { these, enough = a.Victims(w, 0, "", 0) })
	return these, enough
}

// margin is how much less may stay on a device than there is room for.
const margin = 128 << 20

func TestVictimKeepsTheMemoryThatStillFits(t *testing.T) {
	alice := uint32(5001)
	bounded := &Holder{Name: "bounded", Tenant: "physics"}
	a, b, s := &Holder{Name: "a"}, &Holder{Name: "b"}, &Holder{Name: "s", UID: &alice}
	t1 := &Holder{Name: "t1", Tenant: "physics"}
	for _, c := range []struct {
		name        string
		has         map[*Holder]uint64 // GiB
		who         *Holder
		wants, left uint64
		limit       *User
		goes        []*Holder // the last one may leave some
	}{
		{"two", map[*Holder]uint64{a: 45}, b, 45, 35, nil, []*Holder{a}},
		{"beside an ordinary one", map[*Holder]uint64{a: 45, s: 20}, b, 45, 15, nil, []*Holder{a}},
		{"others go, too", map[*Holder]uint64{a: 45, s: 30}, b, 60, 20, nil, []*Holder{s, a}},
		{"it had some", map[*Holder]uint64{a: 45, b: 20}, b, 45, 35, nil, []*Holder{a}},
		{"the tenant's bound is full", map[*Holder]uint64{t1: 20}, bounded, 20, 0, nil, []*Holder{t1}},
		{"hers is", map[*Holder]uint64{s: 40}, &Holder{Name: "her", UID: &alice}, 40, 0, &User{UID: alice, MaxVRAM: api.Share{Bytes: 50 * gib}, MaxSessions: 9}, []*Holder{s}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := newBook(Limits{Tenants: map[string]api.Share{"physics": {Bytes: 30 * gib}}})
			for h, bytes := range c.has {
				all.elastic(h, core.Bytes{gpu0: bytes * gib}, slices.Index(c.goes, h))
			}
			before := all.Granted(gpu0).Bytes
			these, enough := all.victims(&core.Want{Holder: c.who, Bytes: core.Bytes{gpu0: c.wants * gib}, User: c.limit})
			if !enough || len(these) != len(c.goes) {
				t.Fatalf("%+v, %v", these, enough)
			}
			expect.Equal(t, these[len(these)-1].Stay[gpu0], max(c.left*gib, margin)-margin)
			expect.Equal(t, all.Granted(gpu0).Bytes, before)
		})
	}
}

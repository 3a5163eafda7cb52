// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
)

func TestWhoHasToGoIsNobodyWhoseGoingChangesNothing(t *testing.T) {
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
			b.Set(h, map[string]uint64{gpu0: bytes * gib, gpu1: gib})
			b.Note(h, nil)
		}
		before := fmt.Sprint(b.Granted(gpu0).Bytes, b.Granted(gpu1).Bytes, maps.Clone(b.Has(large)))
		which, enough := b.Which(Ask{Holder: c.h, Bytes: map[string]uint64{gpu0: c.bytes * gib}, User: c.limit}, c.may)
		if !slices.Equal(which, c.which) || enough != c.enough {
			t.Errorf("%s: %v, %v", name, which, enough)
		}
		if after := fmt.Sprint(b.Granted(gpu0).Bytes, b.Granted(gpu1).Bytes, maps.Clone(b.Has(large))); after != before {
			t.Errorf("%s: it was %s and is %s", name, before, after)
		}
	}
}

// margin is how much less may stay on a device than there is room for.
const margin = 128 << 20

func TestWhatGoesKeepsWhatThereIsRoomFor(t *testing.T) {
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
		goes        *Holder
		gone        []*Holder
	}{
		{"two", map[*Holder]uint64{a: 45}, b, 45, 35, nil, a, nil},
		{"beside an ordinary one", map[*Holder]uint64{a: 45, s: 20}, b, 45, 15, nil, a, nil},
		{"not more than it has", map[*Holder]uint64{a: 45, s: 20}, b, 10, 45, nil, a, nil},
		{"others have to go, too", map[*Holder]uint64{a: 45, s: 30}, b, 60, 0, nil, a, nil},
		{"others go, too", map[*Holder]uint64{a: 45, s: 30}, b, 60, 20, nil, a, []*Holder{s}},
		{"it had some", map[*Holder]uint64{a: 45, b: 20}, b, 45, 35, nil, a, nil},
		{"the tenant's bound is full", map[*Holder]uint64{t1: 20}, bounded, 20, 0, nil, t1, nil},
		{"hers is", map[*Holder]uint64{s: 40}, &Holder{Name: "her", UID: &alice}, 40, 0, &User{UID: alice, MaxVRAM: api.Share{Bytes: 50 * gib}, MaxSessions: 9}, s, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			book := newBook(Limits{Tenants: map[string]api.Share{"physics": {Bytes: 30 * gib}}})
			for h, bytes := range c.has {
				book.Set(h, map[string]uint64{gpu0: bytes * gib})
				book.Note(h, nil)
			}
			before := book.Granted(gpu0).Bytes
			left := book.Beside(Ask{Holder: c.who, Bytes: map[string]uint64{gpu0: c.wants * gib}, User: c.limit}, c.goes, c.gone)
			expect.Equal(t, left[gpu0], max(c.left*gib, margin)-margin)
			expect.Equal(t, book.Granted(gpu0).Bytes, before)
		})
	}
}

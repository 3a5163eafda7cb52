// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/gpuslice/gpuslice/enforcer/api"
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
		which, enough := b.Which(c.h, map[string]uint64{gpu0: c.bytes * gib}, nil, c.limit, c.may)
		if !slices.Equal(which, c.which) || enough != c.enough {
			t.Errorf("%s: %v, %v", name, which, enough)
		}
		if after := fmt.Sprint(b.Granted(gpu0).Bytes, b.Granted(gpu1).Bytes, maps.Clone(b.Has(large))); after != before {
			t.Errorf("%s: it was %s and is %s", name, before, after)
		}
	}
}

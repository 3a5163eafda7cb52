// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"maps"
	"slices"

	"github.com/gpuslice/gpuslice/api"
)

// Which says which of those who may would have to have nothing, so that h can be granted what it wants within its user's limit, as Begin would: by
// their places in may, where who is to go first comes first. It is nobody if h can be granted that as things are; and it is not enough if
// nobody of them had anything, for what is then returned false. Nothing changes.
func (b *Book) Which(h *Holder, wants map[string]uint64, quotas []api.Quota, limit *User, may []*Holder) (which []int, enough bool) {
	trial := b.clone()
	fits := func() bool {
		had := trial.Has(h)
		defer trial.Set(h, had)
		return trial.Begin(h, wants, quotas, limit) == nil
	}
	had := make(map[int]map[string]uint64)
	for i := 0; i < len(may) && !fits(); i++ {
		if has := trial.Has(may[i]); len(has) > 0 {
			had[i], which = has, append(which, i)
			trial.Set(may[i], nil)
		}
	}
	if !fits() {
		return nil, false
	}
	for _, i := range slices.Backward(slices.Clone(which)) { // who is to go last need not, perhaps, now that others have
		trial.Set(may[i], had[i])
		if fits() {
			which = slices.DeleteFunc(which, func(j int) bool { return j == i })
		} else {
			trial.Set(may[i], nil)
		}
	}
	return which, true
}

// Beside is how much of what one holder has there is room for, by device, once h was granted what it wants, as Begin would; nothing if that is refused
// unless all of it goes. Nothing changes.
func (b *Book) Beside(h *Holder, wants map[string]uint64, quotas []api.Quota, limit *User, goes *Holder) map[string]uint64 {
	trial := b.clone()
	room := trial.Has(goes)
	trial.Set(goes, nil)
	if trial.Begin(h, wants, quotas, limit) != nil {
		return map[string]uint64{}
	}
	for uuid, had := range room {
		if free := trial.Granted(uuid).Free; free != nil {
			room[uuid] = min(had, *free)
		}
	}
	trial = b.clone()
	if trial.Set(goes, room); trial.Begin(h, wants, quotas, limit) != nil { // a user's or a tenant's bound stands in the way
		return map[string]uint64{}
	}
	return room
}

// clone is a Book of its own, in which stands what stands in this one.
func (b *Book) clone() *Book {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.empty()
	c.sessions = maps.Clone(b.sessions)
	for uuid, g := range b.granted {
		c.granted[uuid] = &granted{sum: g.sum, tenants: maps.Clone(g.tenants), holders: maps.Clone(g.holders)}
	}
	return c
}

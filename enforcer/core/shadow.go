// SPDX-License-Identifier: Apache-2.0

//go:build shadow

package core

import (
	"maps"
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

// Shadow decides beside package admission, of the same holders. It is not safe for use by several goroutines.
type Shadow struct {
	c  *Core
	of map[*refusal.Holder]*holder
}

// NewShadow returns a Shadow in which nothing is granted.
func NewShadow(limits refusal.Limits, devices []refusal.Device) *Shadow {
	return &Shadow{New(Config{Limits: limits, Devices: devices}), make(map[*refusal.Holder]*holder)}
}

// holder counts for what Set says, as a slice that lingers does.
func (s *Shadow) holder(who *refusal.Holder) *holder {
	h := s.of[who]
	if h == nil {
		h = &holder{Record: Record{ID: who.Name, Generation: s.c.nextGeneration(), Phase: Lingering}, who: who}
		s.of[who] = h
		s.c.enter(h)
	}
	return h
}

func (s *Shadow) want(who *refusal.Holder, wants map[string]uint64, quotas []api.Quota, user *refusal.User) want {
	return want{h: s.holder(who), bytes: wants, quotas: quotas, user: user}
}

// Check returns why a holder cannot be granted what it wants.
func (s *Shadow) Check(who *refusal.Holder, wants map[string]uint64, quotas []api.Quota, user *refusal.User) error {
	return s.c.check(s.want(who, wants, quotas, user), nil)
}

// CheckPromise returns why a holder cannot be promised what it wants.
func (s *Shadow) CheckPromise(who *refusal.Holder, wants map[string]uint64, overcommit uint64, user *refusal.User) error {
	s.c.config.Elastic.Overcommit = overcommit
	return s.c.checkPromise(s.holder(who), wants, user)
}

// Set notes what a holder has.
func (s *Shadow) Set(who *refusal.Holder, has map[string]uint64) {
	h := s.holder(who)
	h.Left = maps.Clone(has)
	s.c.count(h)
}

// Has returns what a holder has.
func (s *Shadow) Has(who *refusal.Holder) map[string]uint64 { return s.holder(who).counted.without0() }

// Promise notes what a holder is promised.
func (s *Shadow) Promise(who *refusal.Holder, wants map[string]uint64) {
	h := s.holder(who)
	h.Elastic, h.Limits = true, maps.Clone(wants)
	s.c.count(h)
}

// Note notes what a session asks for.
func (s *Shadow) Note(who *refusal.Holder, quotas []api.Quota) {
	h := s.holder(who)
	if h.Quotas = quotas; who.UID != nil && h.UID == nil {
		h.UID = who.UID
		s.c.users[*who.UID] = append(s.c.users[*who.UID], h)
	}
}

// Drop forgets a holder.
func (s *Shadow) Drop(who *refusal.Holder) {
	s.c.drop(s.holder(who))
	s.c.Take()
	delete(s.of, who)
}

// Which returns which holders would have to have nothing, by their places in may.
func (s *Shadow) Which(who *refusal.Holder, wants map[string]uint64, quotas []api.Quota, user *refusal.User, may []*refusal.Holder) (which []int, enough bool) {
	var units []unit
	for _, other := range may {
		units = append(units, unit{h: s.holder(other)})
	}
	chosen, enough := s.c.which(s.want(who, wants, quotas, user), units)
	for _, u := range chosen {
		which = append(which, slices.IndexFunc(may, func(other *refusal.Holder) bool { return other == u.h.who }))
	}
	return which, enough
}

// Beside returns how much of what a holder has there is room for, less the margin of a move.
func (s *Shadow) Beside(who *refusal.Holder, wants map[string]uint64, quotas []api.Quota, user *refusal.User, goes *refusal.Holder) map[string]uint64 {
	return s.c.beside(s.want(who, wants, quotas, user), s.holder(goes))
}

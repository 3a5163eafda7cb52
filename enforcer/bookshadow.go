// SPDX-License-Identifier: Apache-2.0

//go:build shadow

package enforcer

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/core"
)

// book has package core decide beside the book of admission. A difference panics.
type book struct {
	*admission.Book
	mu   sync.Mutex // held over both decisions
	core *core.Shadow
}

func openBook(limits admission.Limits, devices []admission.Device) *book {
	return &book{Book: admission.New(limits, devices), core: core.NewShadow(limits, devices)}
}

// same panics if the two differ.
func same[T any](what string, h *admission.Holder, core, book T, equal func(T, T) bool) {
	if !equal(core, book) {
		panic(fmt.Sprintf("shadow: %s of %+v: core has %v, and admission %v", what, *h, core, book))
	}
}

func sameError(a, b error) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := api.From(a), api.From(b)
	return *x == *y
}

func sameBytes(a, b map[string]uint64) bool {
	none := func(_ string, n uint64) bool { return n == 0 }
	a, b = maps.Clone(a), maps.Clone(b)
	maps.DeleteFunc(a, none)
	maps.DeleteFunc(b, none)
	return maps.Equal(a, b)
}

// follow has the core count what the book says, and compares. Called with mu held.
func (b *book) follow(what string, h *admission.Holder, has map[string]uint64) {
	b.core.Set(h, has)
	same(what, h, b.core.Has(h), b.Book.Has(h), sameBytes)
}

// raised is what a holder has once it was granted what it wants.
func raised(had, wants map[string]uint64) map[string]uint64 {
	for uuid, bytes := range wants {
		had[uuid] = max(had[uuid], bytes)
	}
	return had
}

func (b *book) Begin(h *admission.Holder, wants map[string]uint64, quotas []api.Quota, limit *admission.User) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	decided, had := b.core.Check(h, wants, quotas, limit), b.core.Has(h)
	err := b.Book.Begin(h, wants, quotas, limit)
	same("Begin", h, decided, err, sameError)
	if err == nil {
		b.core.Note(h, quotas)
		b.follow("Begin", h, raised(had, wants))
	}
	return err
}

func (b *book) Admit(h *admission.Holder, wants map[string]uint64) (undo func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	decided, had := b.core.Check(h, wants, nil, nil), b.core.Has(h)
	putBack, err := b.Book.Admit(h, wants)
	same("Admit", h, decided, err, sameError)
	if err != nil {
		return nil, err
	}
	b.follow("Admit", h, raised(maps.Clone(had), wants))
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		putBack()
		has := b.core.Has(h)
		for uuid := range wants {
			has[uuid] = had[uuid]
		}
		b.follow("undo", h, has)
	}, nil
}

func (b *book) Note(h *admission.Holder, quotas []api.Quota) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Book.Note(h, quotas)
	b.core.Note(h, quotas)
}

func (b *book) Set(h *admission.Holder, has map[string]uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Book.Set(h, has)
	b.follow("Set", h, has)
}

func (b *book) Drop(h *admission.Holder) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Book.Drop(h)
	b.core.Drop(h)
}

func (b *book) Promise(h *admission.Holder, wants map[string]uint64, overcommit uint64, limit *admission.User) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	decided := b.core.CheckPromise(h, wants, overcommit, limit)
	err := b.Book.Promise(h, wants, overcommit, limit)
	same("Promise", h, decided, err, sameError)
	if err == nil {
		b.core.Promise(h, wants)
	}
	return err
}

func (b *book) NotePromise(h *admission.Holder, wants map[string]uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Book.NotePromise(h, wants)
	b.core.Promise(h, wants)
}

func (b *book) Which(h *admission.Holder, wants map[string]uint64, quotas []api.Quota, limit *admission.User, may []*admission.Holder) (which []int, enough bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	decided, enoughToo := b.core.Which(h, wants, quotas, limit, may)
	which, enough = b.Book.Which(h, wants, quotas, limit, may)
	same("Which", h, enoughToo, enough, func(x, y bool) bool { return x == y })
	same("Which", h, decided, which, slices.Equal)
	return which, enough
}

func (b *book) Beside(h *admission.Holder, wants map[string]uint64, quotas []api.Quota, limit *admission.User, goes *admission.Holder) map[string]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	stays := b.Book.Beside(h, wants, quotas, limit, goes)
	less := maps.Clone(stays)
	for uuid, bytes := range less {
		less[uuid] = bytes - min(bytes, stayMargin)
	}
	same("Beside", h, b.core.Beside(h, wants, quotas, limit, goes), less, sameBytes)
	return stays
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/quota"
)

// The memory needs of a slice are its peaks, its refusals, and the holders of memory at the last reported refusal. The regular check and the end of a
// process update them.

// maxHolders is the number of processes that a refusal names, the largest first.
const maxHolders = 16

// keep keeps the refusal of an event as the slice's last one. A mere count does not replace a described refusal. needed is the highest quota
// that one of the event's refusals required. Called with mu held.
func (s *slice) keep(e api.Event, d *quota.Device, needed uint64) {
	if e.Requested == 0 && s.refused != nil && s.refused.Requested > 0 {
		return
	}
	r := &api.Refusal{
		Time: time.Now().UTC(), Device: e.Device, PID: e.PID, Command: e.Command, Call: e.Call, Requested: e.Requested, Pool: e.Pool, Limit: e.Limit,
	}
	if d.Frozen {
		r.Frozen = s.quota.Frozen
	}
	s.refused, s.needsChanged = r, true
	if e.Requested == 0 {
		return
	}
	r.Used, r.Overhead = *e.Used, *e.Overhead
	r.Needed = min(r.Used+r.Overhead+r.Requested, maxBytes)
	if e.Pool != "" {
		s.poolOn(d.UUID).holdersOn(d.UUID, r)
		return
	}
	if r.Frozen == "" {
		n := s.note(d)
		n.needed = max(n.needed, r.Needed, needed)
	}
	f := s.found[d.UUID]
	for l := range s.quota.Lanes() {
		h := holder(s.quota, s.quota.Index(d.UUID), l)
		h.Overhead += f.chargedFor(l.Process, l)
		add(r, h)
	}
	if f != nil {
		for pid, u := range f.processes {
			if s.quota.Of(pid) == nil {
				add(r, api.Holder{PID: pid, Overhead: u.charged})
			}
		}
	}
}

// holdersOn adds the holders of the pool's memory to a refusal.
func (p *pool) holdersOn(raw [16]byte, r *api.Refusal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	index := p.quota.Index(raw)
	if index < 0 || p.quota.Ledger == nil {
		return
	}
	for l := range p.quota.Lanes() {
		h := holder(p.quota, index, l)
		h.Slice = l.Slice
		add(r, h)
	}
}

// holder returns what a lane holds, by its page. Called with the quota's lock held.
func holder(q *quota.Quota, index int, l *quota.Lane) api.Holder {
	held := min(q.Held(index, l), maxBytes)
	overhead := min(held, q.Ledger.Context(index, l.Number))
	return api.Holder{PID: l.Process.PID, Command: l.Refusals.Command, Used: held - overhead, Overhead: overhead}
}

// add adds a process to a refusal, if it is among the largest of up to 4096.
func add(r *api.Refusal, h api.Holder) {
	bytes := h.Used + h.Overhead
	if bytes == 0 {
		return
	}
	at, _ := slices.BinarySearchFunc(r.Holders, h, func(a, b api.Holder) int {
		return cmp.Or(cmp.Compare(b.Used+b.Overhead, a.Used+a.Overhead), cmp.Compare(a.PID, b.PID))
	})
	if at < maxHolders {
		r.Holders = slices.Insert(r.Holders, at, h)
	}
	if len(r.Holders) > maxHolders {
		h = r.Holders[maxHolders]
		r.Holders = r.Holders[:maxHolders]
		bytes = h.Used + h.Overhead
	} else if at < maxHolders {
		return
	}
	r.MoreCount++
	r.MoreBytes += bytes
}

// run returns the slice's needs so far. Called with mu held.
func (s *slice) run() api.Run {
	r := s.request
	run := api.Run{
		Slice: r.ID, Container: r.Container, Names: r.Names, Tenant: r.Tenant, UID: s.holder.UID, Began: s.created, Devices: []api.RunUse{}, Refusal: s.refused,
	}
	if s.quota.Ledger == nil {
		return run
	}
	for i, d := range s.quota.Devices {
		f, _ := s.quota.Shown(i)
		use := api.RunUse{
			Device: d.Name, Limit: s.limit(d), Peak: min(f.Peak, d.Total), Allocations: f.Allocations, Refusals: f.Refusals, Needed: s.noted(d).needed,
		}
		if p := s.poolOn(d.UUID); p != nil {
			use.Pool = p.name
		}
		run.Devices = append(run.Devices, use)
	}
	return run
}

// countAllocations counts the allocations since the last call. Called with mu held.
func (s *slice) countAllocations(index int, f ledger.Figures) {
	n := s.note(s.quota.Devices[index])
	if f.Allocations > n.allocations {
		grown := min(f.Allocations-n.allocations, math.MaxUint32) // a process can write any figure
		s.e.count(func(c Counter) { c.Allocated(grown) })
	}
	n.allocations = f.Allocations
}

// checkNeeds updates the needs in the regular check, after the page was verified. Called with mu held.
func (s *slice) checkNeeds() {
	for i, d := range s.quota.Devices {
		s.countAllocations(i, d.Seen)
	}
	s.noteNeeds()
}

// noteNeeds puts changed needs into the history. Called with mu held.
func (s *slice) noteNeeds() {
	if s.needsChanged {
		s.needsChanged = false
		s.e.history.Put(sourceOf(&s.request), s.run())
	}
}

// endNeeds notes the slice's last figures and refusals. Called with mu held, while the ledger exists.
func (s *slice) endNeeds() {
	run := s.run()
	if s.quota.Ledger == nil { // lost at a restart
		if kept, known := s.e.history.Of(s.id(), s.created); known {
			run = kept
		}
	}
	used := run.Refusal != nil
	for i, d := range run.Devices {
		used = used || d.Peak > 0 || d.Refusals > 0
		if s.quota.Ledger != nil {
			s.countAllocations(i, ledger.Figures{Allocations: d.Allocations})
		}
	}
	if used {
		now := time.Now().UTC()
		run.Ended = &now
		s.e.history.Put(sourceOf(&s.request), run)
	}
}

// recallNeeds restores needs that the former enforcer knew and the ledger lacks.
func (s *slice) recallNeeds() {
	s.mu.Lock()
	defer s.mu.Unlock()
	run, kept := s.e.history.Of(s.id(), s.created)
	if kept {
		s.refused = run.Refusal
	}
	for i, d := range s.quota.Devices {
		if s.quota.Ledger == nil {
			break
		}
		n := s.note(d)
		f, _ := s.quota.Shown(i)
		n.allocations = f.Allocations // counted by the former enforcer
		for _, use := range run.Devices {
			if use.Device == d.Name {
				n.needed = use.Needed
			}
		}
	}
}

// History returns the needs of all active slices and of the last ended ones, by their beginning.
func (e *Enforcer) History(context.Context) ([]api.Run, error) {
	began := make(map[string]time.Time)
	var running []api.Run
	for _, s := range e.all() {
		s.mu.Lock()
		running = append(running, s.run())
		s.mu.Unlock()
		began[s.id()] = s.created
	}
	runs := slices.DeleteFunc(e.history.All(), func(r api.Run) bool { return r.Began.Equal(began[r.Slice]) }) // still active
	runs = append(runs, running...)
	slices.SortFunc(runs, func(a, b api.Run) int { return cmp.Or(a.Began.Compare(b.Began), cmp.Compare(a.Slice, b.Slice)) })
	return runs, nil
}

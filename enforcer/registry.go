// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"maps"
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/members"
)

// registry has all slices and pools. Operations on one hold its turn. An operation with the turn of a registered slice takes no other slice's, so turns
// cannot deadlock. A slice that is being registered is not found here, but its id and cgroup are claimed.
type registry struct {
	members members.Index // of the registered slices

	mu       guard.Mutex[guard.Registry] // guards all below
	slices   map[string]*slice           // by id
	elastic  map[*slice]struct{}         // those of slices that are elastic
	pools    map[string]*pool            // by name
	released map[*slice]struct{}         // those with living processes

	ids    map[string]*slice      // claimed by slices being registered
	places map[cgroup.Path]*slice // claimed by those, and by one being cleared
	closed bool
}

func newRegistry() registry {
	return registry{
		slices: make(map[string]*slice), elastic: make(map[*slice]struct{}), pools: make(map[string]*pool), released: make(map[*slice]struct{}),
		ids: make(map[string]*slice), places: make(map[cgroup.Path]*slice),
	}
}

// close reports whether the registry was open.
func (r *registry) close() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := !r.closed
	r.closed = true
	return was
}

func (r *registry) isClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

// all returns the registered slices, in no order.
func (r *registry) all() []*slice {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.AppendSeq(make([]*slice, 0, len(r.slices)), maps.Values(r.slices))
}

// elasticOnes returns the registered elastic slices, in no order.
func (r *registry) elasticOnes() []*slice {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.elastic))
}

// allReleased returns the released slices with processes.
func (r *registry) allReleased() []*slice {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.released))
}

// allOfAnyKind returns those, the registered ones, and those being registered.
func (r *registry) allOfAnyKind() []*slice {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[*slice]struct{}, len(r.slices)+len(r.released)+len(r.ids))
	maps.Copy(all, r.released)
	for _, s := range r.slices {
		all[s] = struct{}{}
	}
	for _, s := range r.ids {
		all[s] = struct{}{}
	}
	return slices.Collect(maps.Keys(all))
}

// of returns the registered slice of a group; nil if there is none. Called with mu held.
func (r *registry) of(g *members.Group) *slice {
	if g != nil && r.slices[g.ID] != nil && r.slices[g.ID].group == g {
		return r.slices[g.ID]
	}
	return nil
}

// owner returns the slice to which a process belongs now.
func (r *registry) owner(pid int) *slice {
	g := r.members.Owner(pid)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(g)
}

func (r *registry) find(id string) *slice {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.slices[id]
}

// turnOf finds a slice by id and takes its turn.
func (r *registry) turnOf(ctx context.Context, id string) (*slice, error) {
	for {
		r.mu.Lock()
		s, closed := r.slices[id], r.closed
		r.mu.Unlock()
		switch {
		case closed:
			return nil, ErrClosed
		case s == nil:
			return nil, noSlice(id)
		}
		if err := s.turn.Take(ctx); err != nil {
			return nil, err
		}
		if r.has(s) {
			return s, nil
		}
		s.turn.Give() // released in between; another slice may have its id
	}
}

// waitFor takes a slice's turn. If the slice is no longer registered, it gives the turn back and returns false.
func (r *registry) waitFor(s *slice) bool {
	s.turn.Wait()
	if r.has(s) {
		return true
	}
	s.turn.Give()
	return false
}

func (r *registry) has(s *slice) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.closed && r.slices[s.id()] == s
}

// waitForReleased is waitFor for a released slice with processes.
func (r *registry) waitForReleased(s *slice) bool {
	s.turn.Wait()
	r.mu.Lock()
	_, known := r.released[s]
	known = known && !r.closed
	r.mu.Unlock()
	if !known {
		s.turn.Give()
	}
	return known
}

// claim claims the id and the cgroup of a slice that is being registered. If another slice has one of them, it returns that; busy means that the other
// is being registered, or cleared, until its turn ends.
func (r *registry) claim(s *slice) (other *slice, busy bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, false, ErrClosed
	}
	if !s.request.Session {
		if other := r.places[s.group.Cgroup]; other != nil {
			return other, true, nil
		}
		if other := r.of(r.members.At(s.group.Cgroup)); other != nil && other.id() != s.id() {
			return other, false, nil
		}
	}
	if other := r.ids[s.id()]; other != nil {
		return other, true, nil
	}
	if other := r.slices[s.id()]; other != nil {
		return other, false, nil
	}
	r.ids[s.id()] = s
	if !s.request.Session {
		r.places[s.group.Cgroup] = s
	}
	return nil, false, nil
}

// enter registers a slice and drops its claims; strike removes it.
func (r *registry) enter(s *slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slices[s.id()] = s
	if s.residency != nil {
		r.elastic[s] = struct{}{}
	}
	r.members.Add(s.group)
	r.drop(s)
}

func (r *registry) strike(s *slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.slices[s.id()] == s {
		delete(r.slices, s.id())
	}
	delete(r.elastic, s)
	r.members.Remove(s.group)
}

// drop drops a slice's claims. Called with mu held.
func (r *registry) drop(s *slice) {
	if r.ids[s.id()] == s {
		delete(r.ids, s.id())
	}
	if r.places[s.group.Cgroup] == s {
		delete(r.places, s.group.Cgroup)
	}
}

// unclaim is drop. It reports whether a released slice of the cgroup may wait to be cleared.
func (r *registry) unclaim(s *slice) (kept bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(s)
	for other := range r.released {
		kept = kept || !s.request.Session && other != s && other.group.Cgroup == s.group.Cgroup
	}
	return kept
}

// linger notes that a released slice has processes, and reports whether that was known.
func (r *registry) linger(s *slice) (known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known = r.released[s]
	r.released[s] = struct{}{}
	return known
}

// vacate prepares the clearing of a released slice, and claims its cgroup until unclaim, if no other slice has it. It returns false if another slice
// is being registered there: clearing then follows after that.
func (r *registry) vacate(s *slice) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if other := r.places[s.group.Cgroup]; !s.request.Session && other != nil && other != s {
		r.released[s] = struct{}{}
		return false
	}
	delete(r.released, s)
	r.members.Remove(s.group)
	if !s.request.Session && !r.uses(s.group.Cgroup) {
		r.places[s.group.Cgroup] = s
	}
	return true
}

// claims reports whether the slice has claimed its cgroup.
func (r *registry) claims(s *slice) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.places[s.group.Cgroup] == s
}

// forget removes a slice when the enforcer is closed, and reports whether it was there.
func (r *registry) forget(s *slice) (was bool) {
	r.mu.Lock()
	_, released := r.released[s]
	was = released || r.slices[s.id()] == s
	delete(r.released, s)
	r.mu.Unlock()
	r.strike(s)
	return was
}

// uses reports whether a cgroup has a slice, released or not. Called with mu held.
func (r *registry) uses(p cgroup.Path) bool {
	for s := range r.released {
		if s.group.Cgroup == p {
			return true
		}
	}
	return r.members.At(p) != nil
}

// used is uses without mu held.
func (r *registry) used(p cgroup.Path) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.uses(p)
}

// ofCgroup returns a cgroup's slices, and its released ones with processes.
func (r *registry) ofCgroup(p cgroup.Path) (registered, released []*slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.released {
		if s.group.Cgroup == p {
			released = append(released, s)
		}
	}
	if s := r.of(r.members.At(p)); s != nil {
		return []*slice{s}, released
	}
	for _, s := range r.slices { // another cgroup has the path now
		if s.group.Cgroup == p {
			registered = append(registered, s)
		}
	}
	return registered, released
}

// oldestTurn returns the oldest operation that has a turn; 0 if there is none.
func (r *registry) oldestTurn() (oldest uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	add := func(t *guard.Turn) {
		if n := t.Taken(); n != 0 && (oldest == 0 || n < oldest) {
			oldest = n
		}
	}
	for _, all := range []map[string]*slice{r.slices, r.ids} {
		for _, s := range all {
			add(s.turn)
		}
	}
	for s := range r.released {
		add(s.turn)
	}
	for _, p := range r.pools {
		add(p.turn)
	}
	return oldest
}

// noSlice is the error for an unknown id.
func noSlice(id string) error { return api.Errorf(api.CodeNotFound, "there is no slice %.255s", id) }

func (r *registry) findPool(name string) *pool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pools[name]
}

// allPools returns the pools, in no order.
func (r *registry) allPools() []*pool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.AppendSeq(make([]*pool, 0, len(r.pools)), maps.Values(r.pools))
}

// turnOfPool finds a pool by name and takes its turn.
func (r *registry) turnOfPool(ctx context.Context, name string) (*pool, error) {
	for {
		r.mu.Lock()
		p, closed := r.pools[name], r.closed
		r.mu.Unlock()
		switch {
		case closed:
			return nil, ErrClosed
		case p == nil:
			return nil, noPool(name)
		}
		if err := p.turn.Take(ctx); err != nil {
			return nil, err
		}
		r.mu.Lock()
		is := !r.closed && r.pools[name] == p
		r.mu.Unlock()
		if is {
			return p, nil
		}
		p.turn.Give()
	}
}

func (r *registry) enterPool(p *pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pools[p.name] = p
}

func (r *registry) strikePool(p *pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pools[p.name] == p {
		delete(r.pools, p.name)
	}
}

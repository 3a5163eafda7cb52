// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"maps"
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// registry has all slices and pools. What is done with one of them is done in its turn. Who has the turn of a slice that others can
// find here takes no other slice's: so nobody waits for somebody who waits for him. A slice that is being registered is not found,
// but its id and its cgroup are claimed.
type registry struct {
	mu       guard.Mutex[guard.Registry] // guards all
	slices   map[string]*slice           // by id
	byCgroup map[cgroup.Path]*slice      // those of containers, by where: of two, the later
	byPIDNS  map[uint64]*slice           // those of containers whose first process is the first one of its pid namespace, by that
	sessions map[*slice]struct{}         // the others
	pools    map[string]*pool            // by name
	released map[*slice]struct{}         // with processes that are alive

	ids    map[string]*slice      // claimed by slices that are being registered
	places map[cgroup.Path]*slice // claimed by those, and by one that is being cleared away
	names  map[string]*pool       // claimed by pools that are being created
	closed bool
}

func newRegistry() registry {
	return registry{
		slices: make(map[string]*slice), byCgroup: make(map[cgroup.Path]*slice), byPIDNS: make(map[uint64]*slice), sessions: make(map[*slice]struct{}), pools: make(map[string]*pool),
		released: make(map[*slice]struct{}), ids: make(map[string]*slice), places: make(map[cgroup.Path]*slice), names: make(map[string]*pool),
	}
}

// close says whether it was open.
func (r *registry) close() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := !r.closed
	r.closed = true
	return was
}

// all slices, in no order.
func (r *registry) all() []*slice {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.AppendSeq(make([]*slice, 0, len(r.slices)), maps.Values(r.slices))
}

// allReleased are those that are released and have processes.
func (r *registry) allReleased() []*slice {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.released))
}

// allOfAnyKind are those, all that are registered, and all that are being.
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

func (r *registry) find(id string) *slice {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.slices[id]
}

// turnOf takes the turn of the slice of that id.
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
		s.turn.Give() // it was released meanwhile, and another may have its id
	}
}

// waitFor takes a slice's turn, and says whether the slice is registered still; if not, it has not taken it.
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

// waitForReleased is waitFor for one that is released and has, or had, processes.
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

// claim has the id and the cgroup of a slice that is being registered be nobody else's. If one is, other has it; busy says that it
// is being registered as well, or cleared away, which ends with its turn.
func (r *registry) claim(s *slice) (other *slice, busy bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, false, ErrClosed
	}
	if !s.request.Session {
		if other := r.places[s.cgroup]; other != nil {
			return other, true, nil
		}
		if other := r.byCgroup[where(s.cgroup)]; other != nil && other.cgroup == s.cgroup && other.id() != s.id() {
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
		r.places[s.cgroup] = s
	}
	return nil, false, nil
}

// enter puts a slice into the registry, in place of what it has claimed; strike takes it out.
func (r *registry) enter(s *slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slices[s.id()] = s
	if s.request.Session {
		r.sessions[s] = struct{}{}
	} else {
		r.byCgroup[where(s.cgroup)] = s
		if s.leads {
			r.byPIDNS[s.pidNS] = s
		}
	}
	r.drop(s)
}

func (r *registry) strike(s *slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.slices[s.id()] == s {
		delete(r.slices, s.id())
	}
	delete(r.sessions, s)
	if at := where(s.cgroup); r.byCgroup[at] == s {
		delete(r.byCgroup, at)
	}
	if r.byPIDNS[s.pidNS] == s {
		delete(r.byPIDNS, s.pidNS)
	}
}

// drop gives up what a slice has claimed. Called with mu held.
func (r *registry) drop(s *slice) {
	if r.ids[s.id()] == s {
		delete(r.ids, s.id())
	}
	if r.places[s.cgroup] == s {
		delete(r.places, s.cgroup)
	}
}

// unclaim is drop, and says whether somebody was kept from being cleared away meanwhile.
func (r *registry) unclaim(s *slice) (kept bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(s)
	for other := range r.released {
		kept = kept || !s.request.Session && other != s && other.cgroup == s.cgroup
	}
	return kept
}

// linger notes that a released slice has processes, and says whether that was known.
func (r *registry) linger(s *slice) (known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known = r.released[s]
	r.released[s] = struct{}{}
	return known
}

// vacate is for a released slice that is about to be cleared away. It says no if another one is being registered in its cgroup: then the
// slice stays, and is cleared away after that. last says that nobody else has the cgroup, which is the slice's until unclaim.
func (r *registry) vacate(s *slice) (last, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.request.Session {
		delete(r.released, s)
		return false, true
	}
	if other := r.places[s.cgroup]; other != nil && other != s {
		r.released[s] = struct{}{}
		return false, false
	}
	delete(r.released, s)
	if r.uses(s.cgroup) {
		return false, true
	}
	r.places[s.cgroup] = s
	return true, true
}

// forget takes a slice out when the enforcer is closed, and says whether it was in.
func (r *registry) forget(s *slice) (was bool) {
	r.mu.Lock()
	_, released := r.released[s]
	was = released || r.slices[s.id()] == s
	delete(r.released, s)
	r.mu.Unlock()
	r.strike(s)
	return was
}

// where is a cgroup's path, whichever cgroup has it: /proc/PID/cgroup says no more.
func where(p cgroup.Path) cgroup.Path { return cgroup.Path{Mount: p.Mount, Rel: p.Rel} }

// uses says whether there is a slice of a cgroup, released or not. Called with mu held.
func (r *registry) uses(p cgroup.Path) bool {
	for s := range r.released {
		if s.cgroup == p {
			return true
		}
	}
	s := r.byCgroup[where(p)]
	return s != nil && s.cgroup == p
}

// used is uses for who does not hold mu.
func (r *registry) used(p cgroup.Path) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.uses(p)
}

// ofCgroup are the slices of a container, and those that are released and have processes.
func (r *registry) ofCgroup(p cgroup.Path) (registered, released []*slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.released {
		if s.cgroup == p {
			released = append(released, s)
		}
	}
	if s := r.byCgroup[where(p)]; s != nil && s.cgroup == p {
		return []*slice{s}, released
	}
	for _, s := range r.slices { // another cgroup has the path by now
		if s.cgroup == p {
			registered = append(registered, s)
		}
	}
	return registered, released
}

// oldestTurn is the oldest of the operations that have a turn; 0 if none has.
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
	for _, all := range []map[string]*pool{r.pools, r.names} {
		for _, p := range all {
			add(p.turn)
		}
	}
	return oldest
}

// noSlice is the answer about an id that no slice has.
func noSlice(id string) error { return api.Errorf(api.CodeNotFound, "there is no slice %.255s", id) }

func (r *registry) findPool(name string) *pool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pools[name]
}

// allPools is in no order.
func (r *registry) allPools() []*pool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.AppendSeq(make([]*pool, 0, len(r.pools)), maps.Values(r.pools))
}

// turnOfPool takes the turn of the pool of that name.
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

// claimPool has the name of a pool that is being created be nobody else's. If one has it, other is that; made says that it is not one that
// is being created, too.
func (r *registry) claimPool(p *pool) (other *pool, made bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, false, ErrClosed
	case r.pools[p.name] != nil:
		return r.pools[p.name], true, nil
	case r.names[p.name] != nil:
		return r.names[p.name], false, nil
	case len(r.pools)+len(r.names) >= api.MaxPools:
		return nil, false, api.Errorf(api.CodeBadRequest, "pool %s: there are %d pools, and no more are accepted: delete one", p.name, api.MaxPools)
	}
	r.names[p.name] = p
	return nil, false, nil
}

// enterPool puts a pool into the registry, or only gives up its name.
func (r *registry) enterPool(p *pool, made bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, p.name)
	if made {
		r.pools[p.name] = p
	}
}

func (r *registry) strikePool(p *pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pools, p.name)
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// CreatePool makes a pool. When it returns without an error the pool is on disk, and slices can become members. Repeating the same request returns
// the existing pool, so it can be retried. Later changes by SetPool stay.
func (e *Enforcer) CreatePool(ctx context.Context, name string, r api.PoolRequest) (api.Pool, error) {
	r, err := e.checkPool(name, r)
	if err != nil {
		return api.Pool{}, err
	}
	if e.options.Unprivileged {
		return api.Pool{}, api.Errorf(api.CodeBadRequest, "pool %s: this enforcer runs without privileges and serves one session", name)
	}
	if err := ctx.Err(); err != nil {
		return api.Pool{}, err
	}
	p := e.newPool(name, time.Now().UTC(), r)
	p.turn.Wait() // not contended: the pool is not registered yet
	defer p.turn.Give()
	for {
		other, made, err := e.claimPool(p)
		if err != nil {
			return api.Pool{}, err
		}
		if other == nil {
			break
		}
		if err := other.turn.Take(ctx); err != nil {
			return api.Pool{}, err
		}
		made = made && e.findPool(name) == other // else it was deleted in between
		other.turn.Give()
		if made {
			return other.again(r)
		}
	}
	err = e.makePool(p)
	e.enterPool(p, err == nil)
	if err != nil {
		return api.Pool{}, err
	}
	p.log.Info("pool created")
	shown := p.show()
	p.tell(api.EventPoolCreated, shown.Devices)
	return shown, nil
}

// again is CreatePool for an existing pool.
func (p *pool) again(r api.PoolRequest) (api.Pool, error) {
	asked := p.asked
	var what string
	switch {
	case !slices.Equal(asked.Quotas, r.Quotas):
		what = "quotas"
	case asked.Tenant != r.Tenant:
		what = "tenant"
	case asked.TTL != r.TTL:
		what = "ttl"
	case asked.Label != r.Label:
		what = "label"
	case asked.Elastic != r.Elastic:
		what = "elastic"
	case asked.Priority != r.Priority:
		what = "priority"
	case asked.ByGrant != r.ByGrant:
		what = "by_grant"
	default:
		return p.show(), nil
	}
	return api.Pool{}, api.Errorf(api.CodeExists, "pool %s exists already, and the request differs in %s: `gpuslice pool set` changes quotas; nothing else can be changed", p.name, what)
}

// makePool makes and stores a new pool.
func (e *Enforcer) makePool(p *pool) error {
	p.quota.Devices = p.foresee(p.quotas)
	wants := p.quota.Commitment()
	if err := e.roomForContexts("pool "+p.name, wants); err != nil {
		return err
	}
	if p.asked.Elastic && !e.movesElastic() {
		return api.Errorf(api.CodeBadRequest, "pool %s cannot be elastic: without NVML free device memory is unknown (%s)", p.name, e.options.NoTruth)
	}
	if err := p.begin(p.quotas, wants); err != nil {
		return err
	}
	err := p.quota.Begin()
	killpoint.Pass("pool.ledger")
	if err == nil {
		err = e.store.PutPoolState(p.name, p.stored())
	}
	if err == nil {
		err = e.store.PutPool(p.lasting(p.quotas))
	}
	if err != nil {
		e.book.Drop(p.holder)
		p.leave()
		return err
	}
	p.settled()
	killpoint.Pass("pool.stored")
	return nil
}

// SetPool replaces a pool's quotas on the devices of the request. When it returns without an error no charge that read an older limit can take
// effect. Members keep what they hold beyond a lowered limit.
func (e *Enforcer) SetPool(ctx context.Context, name string, r api.PoolRequest) (api.Pool, error) {
	r, err := e.checkPool(name, r)
	if err != nil {
		return api.Pool{}, err
	}
	if r.Tenant != "" || r.TTL != 0 || r.Label != "" || r.Elastic || r.ByGrant {
		return api.Pool{}, api.Errorf(api.CodeBadRequest, "pool %s: its quotas can be changed, and nothing else about it: create another pool", name)
	}
	p, err := e.turnOfPool(ctx, name)
	if err != nil {
		return api.Pool{}, err
	}
	defer p.turn.Give()
	before := p.show()
	if err := p.set(r.Quotas); err != nil {
		return api.Pool{}, err
	}
	p.followNative()
	for _, s := range p.allMembers() {
		s.setContexts() // capped by the pool's quota
	}
	p.log.Info("pool changed")
	shown := p.show()
	changed := slices.DeleteFunc(slices.Clone(shown.Devices), func(u api.PoolUse) bool {
		return slices.ContainsFunc(before.Devices, func(was api.PoolUse) bool { return was.Device == u.Device && was.Limit == u.Limit })
	})
	if len(changed) > 0 || !slices.Equal(before.Quotas, shown.Quotas) {
		p.tell(api.EventPoolChanged, changed)
	}
	return shown, nil
}

// set changes the pool's quotas. Called in the pool's turn.
func (p *pool) set(quotas []api.Quota) error {
	merged, devices, r, err := p.wants(quotas)
	if err != nil {
		return err
	}
	wants := make(map[string]uint64)
	for _, l := range r.Limits {
		wants[l.Device] = min(l.Bytes, l.Total)
	}
	if err := p.e.roomForContexts("pool "+p.name, wants); err != nil {
		return err
	}
	if err := p.begin(merged, wants); err != nil {
		return err
	}
	defer p.settled()
	// Stored first: the highest limits, then the quotas, from which a restart writes the page.
	err = p.e.store.PutPoolState(p.name, r)
	if err == nil {
		err = p.e.store.PutPool(p.lasting(merged))
	}
	if err != nil {
		p.mu.Lock()
		r = p.stored()
		p.mu.Unlock()
		return errors.Join(err, p.e.store.PutPoolState(p.name, r))
	}
	killpoint.Pass("pool.set.stored")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quotas, p.quota.Devices = merged, devices
	if p.quota.Ledger == nil {
		return ErrClosed
	}
	for i, d := range p.quota.Devices {
		d.SetLimit(r.Limits[i].Bytes, d.HighestLimit())
		if err := p.quota.Write(i); err != nil {
			p.quota.Damage(err)
			return err
		}
		killpoint.Pass("pool.set.written")
	}
	return nil
}

// wants returns the pool with these quotas: all of its quotas, its devices, and what is stored of it.
func (p *pool) wants(quotas []api.Quota) (merged []api.Quota, devices []*quota.Device, r store.PoolState, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.quota.State {
	case api.Active:
	case api.Damaged:
		return nil, nil, r, api.Errorf(api.CodeBadRequest, "pool %s is damaged (%s): delete it once its members have ended, and create it again", p.name, p.quota.Reason)
	default:
		return nil, nil, r, ErrClosed
	}
	merged = replaceQuotas(p.quotas, quotas)
	if len(merged) > api.MaxQuotas {
		return nil, nil, r, api.Errorf(api.CodeBadRequest, "pool %s would have %d quotas: up to %d are accepted", p.name, len(merged), api.MaxQuotas)
	}
	if len(merged) > len(p.quotas) {
		for s := range p.members {
			if len(s.pools) > 1 { // which may have, or now get, a quota there
				return nil, nil, r, api.Errorf(api.CodeBadRequest, "pool %s has a member that is in other pools, too (%s): end that member before you add a quota on another device", p.name, s.holder.Name)
			}
		}
	}
	devices, r = append(slices.Clone(p.quota.Devices), p.foresee(merged)...), p.stored()
	r.Limits = nil
	for _, d := range devices {
		limit, _ := quotaOn(merged, d.UUID, d.Total)
		r.Limits = append(r.Limits, storedLimit(d, limit, d.HighestLimit()))
	}
	return merged, devices, r, nil
}

// replaceQuotas replaces the quota on each device of the replacements, or adds it.
func replaceQuotas(quotas, replacements []api.Quota) []api.Quota {
	merged := slices.Clone(quotas)
	for _, q := range replacements {
		i := slices.IndexFunc(merged, func(old api.Quota) bool { return old.Device == q.Device })
		if i < 0 {
			merged = append(merged, q)
		} else {
			merged[i] = q
		}
	}
	return merged
}

// DeletePool deletes a pool without members, since members must not lose their quota. Members that ended unnoticed are released first.
func (e *Enforcer) DeletePool(ctx context.Context, name string) (api.Pool, error) {
	if err := api.CheckPoolName(name); err != nil {
		return api.Pool{}, err
	}
	if p := e.findPool(name); p != nil {
		for _, s := range p.allMembers() { // in their turns, which come before the pool's
			if !process.Exists(s.request.PID) {
				e.ended(s)
				e.clearReleased(s)
			}
		}
	}
	p, err := e.turnOfPool(ctx, name)
	if err != nil {
		return api.Pool{}, err
	}
	defer p.turn.Give()
	members, shown := p.allMembers(), p.show()
	switch {
	case len(members) > 0:
		return api.Pool{}, api.Errorf(api.CodeRunning, "pool %s has %d members (%s): end them first", name, len(members), some(members))
	case shown.ProcessCount > 0:
		return api.Pool{}, api.Errorf(api.CodeRunning, "processes of slices that were released are still in pool %s (%d): end them first", name, shown.ProcessCount)
	}
	if err := e.store.DeletePool(name); err != nil {
		return api.Pool{}, err
	}
	killpoint.Pass("pool.deleted")
	e.strikePool(p)
	e.book.Drop(p.holder)
	p.leave()
	p.log.Info("pool deleted")
	p.tell(api.EventPoolDeleted, nil)
	shown.State = api.Released
	return shown, nil
}

// allMembers returns the pool's slices, including those released and not cleared yet.
func (p *pool) allMembers() []*slice {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.members))
}

// some returns the names of a few of the members.
func some(members []*slice) string {
	var names []string
	for _, s := range members {
		names = append(names, s.holder.Name)
	}
	slices.Sort(names)
	const few = 3
	if len(names) > few {
		return strings.Join(names[:few], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}

// checkPool validates a request, and returns it with devices as UUIDs.
func (e *Enforcer) checkPool(name string, r api.PoolRequest) (api.PoolRequest, error) {
	if err := api.CheckPoolName(name); err != nil {
		return r, err
	}
	if err := r.Validate(); err != nil {
		return r, err
	}
	r.Quotas = slices.Clone(r.Quotas)
	for i, q := range r.Quotas {
		device, err := e.resolve(q.Device)
		if err != nil {
			return r, err
		}
		if slices.ContainsFunc(r.Quotas[:i], func(q api.Quota) bool { return q.Device == device }) {
			return r, api.Errorf(api.CodeBadRequest, "device %s has two quotas: one is accepted", device)
		}
		r.Quotas[i].Device = device
	}
	return r, nil
}

func noPool(name string) error {
	return api.Errorf(api.CodeNotFound, "there is no pool %.64q: `gpuslice pool list` lists them", name)
}

// Pools shows all pools, by name.
func (e *Enforcer) Pools(context.Context) ([]api.Pool, error) {
	shown := []api.Pool{}
	for _, p := range e.allPools() {
		shown = append(shown, p.show())
	}
	slices.SortFunc(shown, func(a, b api.Pool) int { return cmp.Compare(a.Name, b.Name) })
	return shown, nil
}

// Pool shows one pool.
func (e *Enforcer) Pool(_ context.Context, name string) (api.Pool, error) {
	if p := e.findPool(name); p != nil {
		return p.show(), nil
	}
	return api.Pool{}, noPool(name)
}

// tell appends an event of the pool for each device; one without a device if there is none, since no process has used any yet.
func (p *pool) tell(kind api.EventKind, uses []api.PoolUse) {
	e := api.Event{Kind: kind, Pool: p.name}
	if len(uses) == 0 {
		p.e.events.Append(sourceOperator, e)
	}
	for _, u := range uses {
		e.Device, e.Limit, e.Used, e.Overhead = u.Device, &u.Limit, &u.Used, &u.Overhead
		p.e.events.Append(sourceOperator, e)
	}
}

// tellOverwritten reports that a member's process has overwritten the page. It is unknown which, so none is killed under any policy. Called with mu
// held.
func (p *pool) tellOverwritten() {
	action := p.e.options.Policy.Bypass
	if action == api.Kill {
		action = api.Refuse
	}
	p.e.events.Append(sourceOperator, api.Event{Kind: api.EventBypass, Pool: p.name, Cause: api.BypassOverwritten, Action: action})
	p.e.count(func(c Counter) { c.Bypassed(string(action)) })
}

func (p *pool) tellDenied(why string) {
	p.e.events.Append(sourceOperator, api.Event{Kind: api.EventDenied, Pool: p.name, Cause: why})
}

func (p *pool) show() api.Pool {
	shown := api.Pool{
		Name: p.name, Tenant: p.asked.Tenant, TTL: p.asked.TTL, Label: p.asked.Label, Created: p.created, Devices: []api.PoolUse{}, Members: []string{},
		Elastic: p.asked.Elastic, Priority: p.asked.Priority, ByGrant: p.asked.ByGrant,
	}
	for _, s := range p.e.all() {
		if slices.Contains(s.pools, p) {
			shown.Members = append(shown.Members, s.id())
		}
	}
	slices.Sort(shown.Members)
	p.mu.Lock()
	defer p.mu.Unlock()
	shown.Quotas, shown.State, shown.Reason, shown.ProcessCount = slices.Clone(p.quotas), p.quota.State, p.quota.Reason, p.quota.Count()
	if p.quota.State == quota.Left {
		shown.State = api.Active
	}
	if shown.State == api.Active {
		p.e.book.Do(func(a *core.Accounts) {
			if a.IsAway(p.holder) {
				shown.State = api.Evicted
			}
		})
	}
	if p.quota.Ledger == nil {
		return shown
	}
	for i, d := range p.quota.Devices {
		shown.Devices = append(shown.Devices, p.showDevice(i, d))
	}
	return shown
}

// showDevice returns the pool's use of a device. Called with mu held.
func (p *pool) showDevice(index int, d *quota.Device) api.PoolUse {
	f, overhead := p.quota.Shown(index)
	use := api.PoolUse{
		Device: d.Name, Index: -1, Limit: d.Granted(), Used: f.Used - overhead, Overhead: overhead,
		Peak: f.Peak, Refusals: f.Refusals, Recovered: f.Recovered,
	}
	if g := p.e.gpuOf(d.Name); g != nil {
		use.Index, use.Name = g.Index, g.Name
	}
	return use
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
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
	if e.isClosed() {
		return api.Pool{}, ErrClosed
	}
	p := e.newPool(name, time.Now().UTC(), r)
	p.turn.Wait() // no other goroutine has the pool yet
	defer p.turn.Give()
	p.quota.Devices = p.foresee(p.quotas)
	limits := p.quota.Limits()
	if err := e.roomForContexts("pool "+name, limits); err != nil {
		return api.Pool{}, err
	}
	err = e.command(p, func(client uint64) core.Command {
		return core.CreatePool{Client: client, Holder: p.holder, Pool: core.Record{
			ID: name, Tenant: r.Tenant, Private: r.ByGrant, Quotas: r.Quotas, Limits: limits, Elastic: r.Elastic, Priority: r.Priority,
		}}
	})
	if errors.Is(err, api.ErrExists) {
		if other := e.findPool(name); other != nil {
			return other.createdBy(r)
		}
	}
	if err != nil {
		return api.Pool{}, err
	}
	p.log.Info("pool created")
	return p.show(), nil
}

// createdBy is CreatePool for an existing pool.
func (p *pool) createdBy(r api.PoolRequest) (api.Pool, error) {
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
	if err := p.set(r.Quotas); err != nil {
		return api.Pool{}, err
	}
	p.followNative()
	for _, s := range p.allMembers() {
		s.setContexts() // capped by the pool's quota
	}
	p.log.Info("pool changed")
	return p.show(), nil
}

// set changes the pool's quotas. Called in the pool's turn.
func (p *pool) set(quotas []api.Quota) error {
	merged, limits, err := p.wants(quotas)
	if err != nil {
		return err
	}
	if err := p.e.roomForContexts("pool "+p.name, limits); err != nil {
		return err
	}
	defer p.reportUse()
	return p.e.command(p, func(client uint64) core.Command {
		return core.ChangePool{Client: client, ID: p.name, Quotas: merged, Limits: limits}
	})
}

// wants returns all quotas of the pool once these replace some, and its limits by them.
func (p *pool) wants(quotas []api.Quota) (merged []api.Quota, limits core.Bytes, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quota.State == quota.Left {
		return nil, nil, ErrClosed
	}
	merged = replaceQuotas(p.quotas, quotas)
	if len(merged) > api.MaxQuotas {
		return nil, nil, api.Errorf(api.CodeBadRequest, "pool %s would have %d quotas: up to %d are accepted", p.name, len(merged), api.MaxQuotas)
	}
	limits = make(core.Bytes)
	for _, d := range append(slices.Clone(p.quota.Devices), p.foresee(merged)...) {
		limit, _ := quotaOn(merged, d.UUID, d.Total)
		limits[d.Name] = limit
	}
	return merged, limits, nil
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
	shown := p.show()
	switch names := p.memberNames(); {
	case len(names) > 0: // core does not know those that are being registered
		return api.Pool{}, api.Errorf(api.CodeRunning, "pool %s has %d members (%s): end them first", name, len(names), core.Few(names))
	case shown.ProcessCount > 0:
		return api.Pool{}, api.Errorf(api.CodeRunning, "processes of slices that were released are still in pool %s (%d): end them first", name, shown.ProcessCount)
	}
	err = e.ask(p, func(client uint64) core.Command { return core.DeletePool{Client: client, ID: name} })
	if err != nil {
		return api.Pool{}, err
	}
	p.log.Info("pool deleted")
	shown.State = api.Released
	return shown, nil
}

// allMembers returns the pool's slices, including those released and not cleared yet.
func (p *pool) allMembers() []*slice {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.members))
}

func (p *pool) memberNames() (names []string) {
	for _, s := range p.allMembers() {
		names = append(names, s.holder.Name)
	}
	return names
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
		device, err := e.truth.Resolve(q.Device)
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

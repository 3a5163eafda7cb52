// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"maps"
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/quota"
)

// This file carries out core's effects on slices and pools. Each is called in the turn of its slice or pool.

// devicesBy returns a quota's devices in the ledger's order, and then those of limits that it lacks, with their limits. Called with its lock held.
func (e *Enforcer) devicesBy(q *quota.Quota, limits core.Bytes, totals map[[16]byte]uint64, limitOn func(*quota.Device) uint64) []*quota.Device {
	all := slices.Clone(q.Devices)
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		uuid, err := driver.ParseUUID(name)
		if err != nil || q.Index(uuid.Raw) >= 0 {
			continue
		}
		total := totals[uuid.Raw]
		if g := e.gpuOf(name); g != nil {
			total = g.Total
		}
		all = append(all, q.Describe(uuid, limitOn(q.Describe(uuid, 0, total)), total))
	}
	return all
}

// writeLimits writes the limits of devices to a quota's ledger, and returns those that were added or have another limit. Called with its lock held.
func writeLimits(q *quota.Quota, devices []*quota.Device, limitOn func(*quota.Device) (limit, highest uint64)) (changed []string, err error) {
	for i, d := range devices {
		limit, highest := limitOn(d)
		switch {
		case i == len(q.Devices):
			if err := q.Add(d); err != nil {
				return changed, err
			}
			killpoint.Pass("device.added")
		case limit == d.Granted():
			continue
		default:
			d.SetLimit(limit, highest)
			if err := q.Write(i); err != nil {
				q.Damage(err)
				return changed, err
			}
			killpoint.Pass("set.limited")
		}
		changed = append(changed, d.Name)
	}
	return changed, nil
}

// carryOut is of adapter.
func (s *slice) carryOut(effect core.Effect) core.Fact {
	switch x := effect.(type) {
	case core.Make:
		return core.Made{Op: x.Op, Err: s.make()}
	case core.Store:
		if x.Record.Phase == core.Lingering {
			s.retire()
			return core.Stored{Op: x.Op}
		}
		if x.Place {
			return core.Stored{Op: x.Op, Err: s.storePlace(&x.Record)}
		}
		return core.Stored{Op: x.Op, Err: s.storeRecord(&x.Record)}
	case core.Listen:
		s.e.enter(s)
		return core.Opened{Op: x.Op, Err: s.e.serve(s)}
	case core.Forget:
		if s.closing {
			s.clear()
		}
		return core.Stored{Op: x.Op}
	case core.HangUp:
		if !s.closing {
			s.fail()
		}
		s.e.strike(s)
		for _, p := range s.pools {
			p.part(s) // core knows the slice no longer: the pool may be deleted
		}
		s.e.unclaim(s)
	case core.Limit:
		s.op = x.Op
		return core.Limited{Op: x.Op, Err: s.setLimits(x.Limits)}
	case core.Close:
		switch s.op = x.Op; {
		case s.closing:
			s.close()
		case s.rec.Phase == core.Expiring:
			s.expireQuota()
		} // else the quota has closed the ledger, which is damaged
		return core.Limited{Op: x.Op}
	case core.MoveOut, core.MoveIn:
		return s.carryOutMove(effect)
	case core.End:
		s.e.ends.Go(func() { s.e.end(s, x.Kill) })
	case core.Emit:
		switch x.Event.Kind {
		case api.EventReleased:
			return s.tellReleased(x.Event)
		case api.EventSuspended, api.EventEvicted, api.EventResumed, api.EventReturned:
			s.tellMoved(x.Event)
		default:
			s.emit(x.Event)
		}
	}
	return nil
}

// storeRecord stores a record. A slice expires though that cannot be written: the next enforcer finds its deadline.
func (s *slice) storeRecord(r *core.Record) error {
	s.mu.Lock()
	was := s.rec
	if r.Elastic != s.request.Elastic || r.Tenant != s.holder.Tenant {
		s.mu.Unlock()
		return api.Errorf(api.CodeBusy, "pool %s was created while slice %s was registered: try again", s.request.Pools, s.id())
	}
	s.rec, s.changed = *r, nil
	after, adds := s.stored(), false
	for i, d := range s.devices(r.Limits) {
		if i == len(after.Limits) {
			after.Limits, adds = append(after.Limits, s.storedLimit(d)), true
		} else if limit := s.limitBy(r, d); limit != d.Granted() {
			after.Limits[i], after.Changing = storedLimit(d, limit, s.highestLimit(d)), true
		}
	}
	s.rec = was
	s.mu.Unlock()
	switch err := s.e.store.PutSlice(after); {
	case err == nil:
	case r.Phase == core.Expiring:
		s.log.Error("expiry not stored: the next enforcer expires the slice again", "err", err)
	case r.Trust == core.Damaged: // that has happened
		s.log.Error("damage of the slice not persisted: the next enforcer may not detect it", "err", err)
	default:
		return err
	}
	switch {
	case !s.e.has(s): // it is being registered
	case r.Phase == core.Expiring:
		killpoint.Pass("expire.marked")
	case adds && slices.Equal(r.Quotas, was.Quotas):
		killpoint.Pass("device.stored")
	default:
		killpoint.Pass("set.stored")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rec = *r
	return nil
}

// devices returns the slice's devices in the ledger's order, and then those that the ledger lacks. Called with mu held.
func (s *slice) devices(limits core.Bytes) []*quota.Device {
	return s.e.devicesBy(s.quota, limits, s.totals, func(d *quota.Device) uint64 {
		return s.limitBy(&core.Record{Quotas: s.rec.Quotas, Limits: limits}, d)
	})
}

// limitBy returns the slice's limit on a device by a record. A device without a limit in the record keeps its own. Called with mu held.
func (s *slice) limitBy(r *core.Record, d *quota.Device) uint64 {
	if r.Limits[d.Name] == 0 || d.Granted() > 0 && s.record() {
		return d.Granted()
	}
	limit, _ := s.allowedBy(r.Quotas, d.UUID, d.Total)
	return limit
}

// setLimits writes the limits to the ledger.
func (s *slice) setLimits(limits core.Bytes) error {
	s.mu.Lock()
	err := s.refusal()
	if err == nil {
		r := core.Record{Quotas: s.rec.Quotas, Limits: limits}
		s.changed, err = writeLimits(s.quota, s.devices(limits), func(d *quota.Device) (uint64, uint64) { return s.limitBy(&r, d), s.highestLimit(d) })
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := s.put(); err != nil {
		s.log.Error("completed change of quotas not persisted: the next enforcer sets them again", "err", err)
	}
	return nil
}

// expireQuota closes the ledger of an expired slice.
func (s *slice) expireQuota() {
	s.mu.Lock()
	ttl, active := s.rec.TTL, s.quota.State == api.Active
	if active {
		s.reportCounts()
		s.quota.Expire()
	}
	s.mu.Unlock()
	s.log.Info("slice expired: charges closed, SIGTERM follows", "ttl", ttl, "grace", s.e.options.Grace)
	if active {
		s.denyNative()
	}
	killpoint.Pass("expire.closed")
}

// emit appends an event of the slice; one of changed quotas for each device with another limit.
func (s *slice) emit(event api.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case event.Kind == api.EventExpired && s.overstayed != "": // told by endForOthers
	case event.Kind == api.EventDenied && event.Device == "": // told where the damage was found
	case event.Kind == api.EventExpired && event.Cause != "":
		s.overstayed = event.Cause
		s.log.Warn("elastic slice ended: it cannot be moved", "why", event.Cause)
		s.tell(event)
		s.e.checkTime()
	case event.Kind == api.EventRegistered:
		r := &s.request
		s.log.Info("slice registered", "pid", r.PID, "cgroup", s.group.Cgroup.String(), "tenant", r.Tenant, "pool", r.Pools.String(), "mode", r.Mode)
		event.PID = r.PID
		s.tell(event)
		if event.TTL > 0 {
			s.e.checkTime()
		}
	case event.Kind == api.EventChanged && event.Cause == changedQuota && len(s.changed) > 0:
		for i, d := range s.quota.Devices {
			if slices.Contains(s.changed, d.Name) {
				u := s.showDevice(i, d)
				s.log.Info("slice's quota changed", "device", d.Name, "bytes", u.Limit)
				event.Device, event.Limit, event.Used, event.Overhead = d.Name, &u.Limit, &u.Used, &u.Overhead
				s.tell(event)
			}
		}
	default:
		if event.Cause == changedTTL {
			s.log.Info("slice's time to live changed", "ttl", event.TTL)
		}
		s.tell(event)
	}
}

// carryOut is of adapter.
func (p *pool) carryOut(effect core.Effect) core.Fact {
	switch x := effect.(type) {
	case core.Make:
		p.generation = x.Generation
		err := p.quota.Begin()
		killpoint.Pass("pool.ledger")
		return core.Made{Op: x.Op, Err: err}
	case core.Store:
		if x.Place {
			p.setKept(x.Record.Kept)
			return core.Stored{Op: x.Op}
		}
		err := p.put(&x.Record)
		killpoint.Pass("pool.stored")
		return core.Stored{Op: x.Op, Err: err}
	case core.Limit:
		p.op = x.Op
		return core.Limited{Op: x.Op, Err: p.limit(x.Limits)}
	case core.Close: // the quota has closed the ledger
		return core.Limited{Op: x.Op}
	case core.Forget:
		err := p.e.store.DeletePool(p.name)
		killpoint.Pass("pool.deleted")
		return core.Stored{Op: x.Op, Err: err}
	case core.HangUp:
		p.e.strikePool(p)
		p.leave()
	case core.Emit:
		p.emit(x.Event)
	}
	return nil
}

// put stores a record of the pool: the highest limits first, then the quotas, from which a restart writes the page.
func (p *pool) put(r *core.Record) error {
	known := p.e.findPool(p.name) == p
	p.mu.Lock()
	p.changed = nil
	before, after, changed := p.stored(), p.stored(), !known || !slices.Equal(r.Quotas, p.quotas)
	for i, d := range p.devices(r.Limits) {
		if limit := p.limitBy(r, d); i == len(after.Limits) {
			after.Limits = append(after.Limits, storedLimit(d, limit, 0))
		} else if limit != d.Granted() {
			after.Limits[i] = storedLimit(d, limit, d.HighestLimit())
		}
	}
	p.mu.Unlock()
	err := p.e.store.PutPoolState(p.name, after)
	if err == nil && changed {
		err = p.e.store.PutPool(p.lasting(r.Quotas))
	}
	if err != nil && known {
		err = errors.Join(err, p.e.store.PutPoolState(p.name, before))
	}
	switch {
	case err == nil:
	case r.Trust == core.Damaged: // that has happened
		p.log.Error("damage of the pool not persisted: the next enforcer may not detect it", "err", err)
	default:
		return err
	}
	p.setKept(r.Kept)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quotas = r.Quotas
	return nil
}

// limit writes the limits to the ledger.
func (p *pool) limit(limits core.Bytes) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quota.Ledger == nil {
		return ErrClosed
	}
	r := core.Record{Quotas: p.quotas, Limits: limits}
	changed, err := writeLimits(p.quota, p.devices(limits), func(d *quota.Device) (uint64, uint64) { return p.limitBy(&r, d), d.HighestLimit() })
	p.changed = changed
	killpoint.Pass("pool.limited")
	return err
}

// devices returns the pool's devices in the ledger's order, and then those that the ledger lacks. Called with mu held.
func (p *pool) devices(limits core.Bytes) []*quota.Device {
	return p.e.devicesBy(p.quota, limits, p.totals, func(d *quota.Device) uint64 {
		return p.limitBy(&core.Record{Quotas: p.quotas, Limits: limits}, d)
	})
}

// limitBy returns the pool's limit on a device by a record: its quota there, or 0 if it could not be granted.
func (p *pool) limitBy(r *core.Record, d *quota.Device) uint64 {
	if r.Limits[d.Name] == 0 {
		return 0
	}
	limit, _ := quotaOn(r.Quotas, d.UUID, d.Total)
	return limit
}

// emit appends an event of the pool, with its use of the devices that changed.
func (p *pool) emit(event api.Event) {
	shown := p.show()
	switch event.Kind {
	case api.EventPoolCreated:
		p.e.enterPool(p)
		p.tell(event.Kind, shown.Devices)
	case api.EventPoolChanged:
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		p.tell(event.Kind, slices.DeleteFunc(shown.Devices, func(u api.PoolUse) bool { return !slices.Contains(changed, u.Device) }))
	case api.EventPoolDeleted:
		p.tell(event.Kind, nil)
	case api.EventDenied:
		if event.Device != "" {
			p.e.events.Append(sourceOperator, event)
		}
	}
}

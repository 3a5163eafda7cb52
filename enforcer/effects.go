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

// carryOut is of adapter.
func (s *slice) carryOut(effect core.Effect) core.Fact {
	switch x := effect.(type) {
	case core.Store:
		return core.Stored{Op: x.Op, Err: s.storeRecord(&x.Record)}
	case core.Limit:
		return core.Limited{Op: x.Op, Err: s.setLimits(x.Limits)}
	case core.Close:
		s.expireQuota()
		return core.Limited{Op: x.Op}
	case core.Emit:
		s.emit(x.Event)
	}
	return nil // End: (*Enforcer).end signals the processes, which takes longer than a turn may
}

// storeRecord stores a record. That of an expired slice is owed by the store if it cannot be written: the slice expires all the same.
func (s *slice) storeRecord(r *core.Record) error {
	s.mu.Lock()
	was := s.rec
	s.rec, s.changed = *r, nil
	after, adds := s.stored(), false
	for i, d := range s.devices(r.Limits) {
		if i == len(after.Limits) {
			after.Limits, adds = append(after.Limits, s.storedLimit(d)), true
		} else if limit, changes := s.limitBy(r, d); changes {
			after.Limits[i], after.Changing = storedLimit(d, limit, s.highestLimit(d)), true
		}
	}
	s.rec = was
	s.mu.Unlock()
	err := s.e.store.PutSlice(after)
	if err != nil && r.Phase == core.Expiring {
		s.log.Error("expiry not stored: the next enforcer expires the slice again", "err", err)
	} else if err != nil {
		return err
	}
	switch {
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
		limit, _ := s.limitBy(&core.Record{Quotas: s.rec.Quotas, Limits: limits}, d)
		return limit
	})
}

// limitBy returns the slice's limit on a device by a record, and whether that differs from the present one. A device without a limit in the record keeps
// its own. Called with mu held.
func (s *slice) limitBy(r *core.Record, d *quota.Device) (limit uint64, changes bool) {
	limit = d.Granted()
	if bytes, has := r.Limits[d.Name]; has && bytes > 0 {
		limit, _ = s.allowedBy(r.Quotas, d.UUID, d.Total)
	}
	return limit, limit != d.Granted() && !s.record()
}

// setLimits writes the limits to the ledger.
func (s *slice) setLimits(limits core.Bytes) error {
	s.mu.Lock()
	err := s.setLimitsNow(limits)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := s.put(); err != nil {
		s.log.Error("completed change of quotas not persisted: the next enforcer sets them again", "err", err)
	}
	return nil
}

// setLimitsNow is setLimits with mu held, without the store.
func (s *slice) setLimitsNow(limits core.Bytes) error {
	if err := s.refusal(); err != nil {
		return err
	}
	r := core.Record{Quotas: s.rec.Quotas, Limits: limits}
	for i, d := range s.devices(limits) {
		before := d.Granted()
		switch limit, changes := s.limitBy(&r, d); {
		case i == len(s.quota.Devices):
			if err := s.quota.Add(d); err != nil {
				return err
			}
		case !changes:
			continue
		default:
			d.SetLimit(limit, s.highestLimit(d))
			if err := s.quota.Write(i); err != nil {
				s.quota.Damage(err)
				return err
			}
			killpoint.Pass("set.limited")
			s.log.Info("slice's quota changed", "device", d.Name, "bytes", limit, "before", before)
		}
		s.changed = append(s.changed, d.Name)
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
	case event.Kind == api.EventChanged && event.Cause == changedQuota && len(s.changed) > 0:
		for i, d := range s.quota.Devices {
			if slices.Contains(s.changed, d.Name) {
				u := s.showDevice(i, d)
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
		err := p.put(&x.Record)
		killpoint.Pass("pool.stored")
		return core.Stored{Op: x.Op, Err: err}
	case core.Limit:
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
	if err != nil {
		return err
	}
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
	now := core.Record{Quotas: p.quotas, Limits: limits}
	for i, d := range p.devices(limits) {
		limit := p.limitBy(&now, d)
		switch {
		case i == len(p.quota.Devices):
			if err := p.quota.Add(d); err != nil {
				return err
			}
		case limit == d.Granted():
			continue
		default:
			d.SetLimit(limit, d.HighestLimit())
			if err := p.quota.Write(i); err != nil {
				p.quota.Damage(err)
				return err
			}
		}
		p.changed = append(p.changed, d.Name)
		killpoint.Pass("pool.limited")
	}
	return nil
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

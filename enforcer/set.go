// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// Kinds of change, in events.
const (
	changedQuota = "quota"
	changedTTL   = "ttl"
)

// Change sets other quotas, or another time to live, of an active slice. When it returns, all of it is in force and on disk, or none of it.
//
// No charge for which a new limit has no room can take effect after that, on any device. Memory beyond a lowered limit stays charged.
func (e *Enforcer) Change(ctx context.Context, id string, r api.ChangeRequest) (api.Slice, error) {
	if err := api.CheckID(id); err != nil {
		return api.Slice{}, err
	}
	if err := r.Validate(); err != nil {
		return api.Slice{}, err
	}
	s, err := e.turnOf(ctx, id)
	if err != nil {
		return api.Slice{}, err
	}
	defer s.turn.Give()
	if err := s.set(r); err != nil {
		return api.Slice{}, err
	}
	e.reachNative(s.group.Cgroup)
	e.checkLeases()
	return s.show(false), nil
}

// Renew sets the time to live of a slice, counted from now. An expired slice is not renewed, since its processes are being ended.
func (e *Enforcer) Renew(ctx context.Context, id string, r api.RenewRequest) (api.Slice, error) {
	if err := r.Validate(); err != nil {
		return api.Slice{}, err
	}
	return e.Change(ctx, id, api.ChangeRequest{TTL: r.TTL})
}

// set applies a request. Called in the slice's turn.
func (s *slice) set(r api.ChangeRequest) error {
	c, err := s.wants(r)
	if err != nil {
		return err
	}
	if err := s.apply(c); err != nil {
		return err
	}
	if r.TTL != nil {
		s.log.Info("slice's time to live changed", "ttl", c.ttl)
		s.tell(api.Event{Kind: api.EventChanged, Cause: changedTTL, TTL: c.ttl})
	}
	return nil
}

// change is a slice's new state under other quotas, or another time to live.
type change struct {
	quotas        []api.Quota
	limits        map[*quota.Device]uint64 // of devices whose limits change
	added         []*quota.Device          // without a process that uses them yet
	ttl, deadline time.Duration
	record        store.Slice // the slice's new record
}

// wants returns the change that a request makes, and changes nothing.
func (s *slice) wants(r api.ChangeRequest) (c change, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unchangeable(len(r.Quotas)+len(r.Drop) > 0); err != nil {
		return c, err
	}
	c.ttl, c.deadline = s.ttl, s.deadline
	if r.TTL != nil {
		if c.ttl, err = core.Lifetime(s.id(), *r.TTL, s.e.options.MaxTTL); err != nil {
			return c, err
		}
		c.deadline = s.e.until(c.ttl)
	}
	kept, err := s.without(r.Drop)
	if err != nil {
		return c, err
	}
	if c.quotas, err = s.merge(kept, r.Quotas); err != nil {
		return c, err
	}
	if c.limits, err = s.limitsBy(c.quotas); err != nil {
		return c, err
	}
	c.added = s.foreseeBy(func(raw [16]byte, total uint64) (uint64, bool) {
		if now, then := covering(s.quotas, raw), covering(c.quotas, raw); now != nil && then != nil && *now == *then {
			return 0, false // the request changes nothing there
		}
		return quotaOn(c.quotas, raw, total)
	})
	c.record = s.stored()
	c.record.Request.Quotas, c.record.Request.TTL, c.record.Deadline = c.quotas, c.ttl, c.deadline
	c.record.Changing = len(c.limits) > 0
	for i, d := range s.quota.Devices {
		if limit, changed := c.limits[d]; changed {
			c.record.Limits[i] = storedLimit(d, limit, s.highestLimit(d))
		}
	}
	for _, d := range c.added {
		c.record.Limits = append(c.record.Limits, s.storedLimit(d))
	}
	return c, nil
}

// unchangeable returns why the slice, or its quotas, cannot be changed. Called with mu held.
func (s *slice) unchangeable(quotas bool) error {
	switch {
	case s.quota.State == quota.Left:
		return ErrClosed
	case s.expired || s.timeIsOver():
		return api.Errorf(api.CodeExpired, "slice %s has expired, and its processes are being ended: it cannot be changed", s.id())
	case s.quota.State != api.Active:
		return api.Errorf(api.CodeBadRequest, "slice %s is %s, and gets no more memory: it cannot be changed", s.id(), s.quota.State)
	case quotas && s.suspension != nil:
		return s.unsuspended()
	case quotas && s.record():
		return api.Errorf(api.CodeBadRequest, "slice %s only records: it has no limit to change, and its mode cannot be changed", s.id())
	}
	return nil
}

// without returns the slice's quotas without its own on these devices. Called with mu held.
func (s *slice) without(devices []string) ([]api.Quota, error) {
	kept := slices.Clone(s.quotas)
	for _, device := range devices {
		name, err := s.e.resolve(device)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(kept, func(q api.Quota) bool { return q.Device == name })
		switch {
		case i < 0:
			return nil, api.Errorf(api.CodeBadRequest, "slice %s has no quota of its own on device %s", s.id(), s.e.gpuOf(name).called(name))
		case !slices.ContainsFunc(kept, func(q api.Quota) bool { return q.Device == api.AllDevices }):
			return nil, api.Errorf(api.CodeBadRequest, "slice %s has no quota for all devices to replace the one on device %s: set that one", s.id(), s.e.gpuOf(name).called(name))
		}
		kept = slices.Delete(kept, i, i+1)
	}
	return kept, nil
}

// merge replaces kept quotas, or adds to them. Called with mu held.
func (s *slice) merge(kept, quotas []api.Quota) ([]api.Quota, error) {
	merged := slices.Clone(kept)
	seen := make(map[string]bool)
	for _, q := range quotas {
		name, err := s.e.resolve(q.Device)
		if err != nil {
			return nil, err
		}
		if name != api.AllDevices && !sees(&s.request, name) {
			return nil, s.e.unseen(&s.request, q.Device, name)
		}
		if seen[name] {
			return nil, api.Errorf(api.CodeBadRequest, "device %s has two quotas: one is accepted", name)
		}
		seen[name] = true
		i := slices.IndexFunc(kept, func(old api.Quota) bool { return old.Device == name })
		switch {
		case i >= 0:
		case name != api.AllDevices || len(kept) == 0: // it had only its pool's
			i = len(merged)
			merged = append(merged, api.Quota{})
		case len(kept) == 1: // the only quota is meant, on any device
			i, name = 0, kept[0].Device
		default:
			var names []string
			for _, old := range kept {
				names = append(names, old.Device)
			}
			return nil, api.Errorf(api.CodeBadRequest, "slice %s has a quota on each of %s, and none for all devices: name the device", s.id(), strings.Join(names, ", "))
		}
		merged[i] = api.Quota{Device: name, Bytes: q.Bytes, Percent: q.Percent}
	}
	if seen[api.AllDevices] && !s.usesAll(merged) {
		return nil, api.Errorf(api.CodeBadRequest, "slice %s has its own quota on each device that it sees, so one for all devices would change nothing: name the device, or all of them (--device all)", s.id())
	}
	if s.counts() && len(quotas) > 0 {
		if err := s.e.book.CheckSize(s.holder.Name, quotas); err != nil {
			return nil, err
		}
	}
	if len(quotas) > 0 {
		if err := s.poolsCover(merged); err != nil {
			return nil, err
		}
	}
	if len(merged) > api.MaxQuotas {
		return nil, api.Errorf(api.CodeBadRequest, "slice %s would have %d quotas: up to %d are accepted", s.id(), len(merged), api.MaxQuotas)
	}
	return merged, nil
}

// usesAll reports whether the quota on all devices applies to a known device that the slice sees. It is true if none is known. Called with mu held.
func (s *slice) usesAll(quotas []api.Quota) bool {
	uses, known := false, false
	device := func(raw [16]byte) {
		q := covering(quotas, raw)
		uses, known = uses || q == nil || q.Device == api.AllDevices, true
	}
	for _, d := range s.quota.Devices {
		device(d.UUID)
	}
	if s.e.truth != nil {
		for _, g := range s.e.truth.devices {
			if sees(&s.request, g.UUID) {
				device(g.Raw)
			}
		}
	}
	return uses || !known
}

// apply stores a change and puts it in force. After a restart between the two the page is set from the store. Added devices that no process uses yet
// are granted at once, as at registration. Called in the slice's turn.
func (s *slice) apply(c change) error {
	wants := quota.Commitment(c.added)
	for d, limit := range c.limits {
		wants[d.Name] = min(limit, d.Total)
	}
	if !s.record() {
		if err := s.e.roomForContexts("slice "+s.id(), wants); err != nil {
			return err
		}
	}
	var limit *admission.User // of what an elastic slice may be promised
	if s.request.Elastic {
		limit = s.userLimit()
	}
	s.mu.Lock()
	next := s.account()
	s.mu.Unlock()
	next.Quotas = c.quotas
	maps.Copy(next.Limits, wants)
	if lacks, err := s.e.book.Begin(s.holder, next, limit); err != nil {
		return s.e.evictFor(err, lacks, false)
	}
	if err := s.e.store.PutSlice(c.record); err != nil {
		s.e.book.Undo(s.holder)
		return err
	}
	killpoint.Pass("set.stored")
	before, err := s.putInForce(c)
	if err != nil {
		return err
	}
	if len(c.limits)+len(c.added) == 0 {
		if !slices.Equal(c.quotas, before) { // for devices that are unknown until used
			s.tell(api.Event{Kind: api.EventChanged, Cause: changedQuota})
			s.followNative()
		}
		return nil
	}
	s.followNative()
	if err := s.put(); err != nil {
		s.log.Error("completed change of quotas not persisted: the next enforcer sets them again", "err", err)
	}
	killpoint.Pass("set.done")
	return nil
}

// putInForce sets the page, and the enforcer's own copy, to the stored change. It returns the former quotas.
func (s *slice) putInForce(c change) (before []api.Quota, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.recommit()
	if s.quota.Ledger == nil {
		return nil, ErrClosed
	}
	old, known := s.swapLimits(c.limits), len(s.quota.Devices)
	before, s.quotas, s.ttl, s.deadline = s.quotas, c.quotas, c.ttl, c.deadline
	s.quota.Devices = append(slices.Clip(s.quota.Devices), c.added...)
	for i, d := range s.quota.Devices {
		limit, changed := c.limits[d]
		if i >= known {
			limit = d.Granted()
		} else if !changed {
			continue
		}
		if err := s.quota.Write(i); err != nil {
			s.quota.Devices = s.quota.Devices[:max(i, known)] // those on the page
			s.quota.Damage(err)
			return nil, api.Errorf(api.CodeInternal, "the limit of slice %s on device %s cannot be set: %v", s.id(), d.Name, err)
		}
		killpoint.Pass("set.limited")
		s.log.Info("slice's quota changed", "device", d.Name, "bytes", limit, "before", old[d])
		u := s.showDevice(i, d)
		s.tell(api.Event{Kind: api.EventChanged, Cause: changedQuota, Device: d.Name, Limit: &u.Limit, Used: &u.Used, Overhead: &u.Overhead})
	}
	return before, nil
}

// limitsBy returns the limits that these quotas change, in bytes. A device on which the slice was granted nothing gets a limit only from a quota of
// its own. Called with mu held.
func (s *slice) limitsBy(quotas []api.Quota) (map[*quota.Device]uint64, error) {
	limits := make(map[*quota.Device]uint64)
	for _, d := range s.quota.Devices {
		covers := covering(quotas, d.UUID)
		limit, ok := quotaOn(quotas, d.UUID, d.Total)
		now := d.Granted()
		switch {
		case !ok || limit == now || s.record():
		case limit == 0:
			return nil, api.Errorf(api.CodeBadRequest, "the quota of slice %s on device %s would be 0 bytes", s.id(), d.Name)
		case now == 0 && covers.Device == api.AllDevices:
		default:
			limits[d] = limit
		}
	}
	return limits, nil
}

// swapLimits sets the enforcer's own copy of limits, and returns the former ones. Called with mu held.
func (s *slice) swapLimits(limits map[*quota.Device]uint64) map[*quota.Device]uint64 {
	old := make(map[*quota.Device]uint64)
	for d, limit := range limits {
		old[d] = d.Granted()
		d.SetLimit(limit, s.highestLimit(d))
	}
	return old
}

// quotaOn returns the slice's quota on a device of total bytes; false if it has none there.
func (s *slice) quotaOn(raw [16]byte, total uint64) (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.allowed(raw, total)
}

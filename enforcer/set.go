// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/quota"
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
	e.checkTime()
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
	if s.request.Elastic {
		c.User = s.userLimit()
	}
	err = s.e.command(s, func(client uint64) core.Command {
		c.Client = client
		return c
	})
	if c.Quotas != nil {
		s.reportUse()
		s.followNative()
		killpoint.Pass("set.done")
	}
	return err
}

// wants returns the command for a request, and changes nothing.
func (s *slice) wants(r api.ChangeRequest) (c core.Change, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.ID, c.TTL = s.id(), r.TTL
	changes := len(r.Quotas)+len(r.Drop) > 0
	if err := s.unchangeable(changes); err != nil || !changes {
		return c, err
	}
	kept, err := s.without(r.Drop)
	if err != nil {
		return c, err
	}
	if c.Quotas, err = s.merge(kept, r.Quotas); err != nil {
		return c, err
	}
	wants, err := s.limitsBy(c.Quotas)
	if err != nil {
		return c, err
	}
	for _, d := range s.foreseeBy(func(raw [16]byte, total uint64) (uint64, bool) {
		if now, then := covering(s.rec.Quotas, raw), covering(c.Quotas, raw); now != nil && then != nil && *now == *then {
			return 0, false // the request changes nothing there
		}
		return quotaOn(c.Quotas, raw, total)
	}) {
		wants[d.Name] = d.Granted()
	}
	if err := s.e.roomForContexts("slice "+s.id(), wants); err != nil {
		return c, err
	}
	c.Limits = s.quota.Limits()
	maps.Copy(c.Limits, wants)
	return c, nil
}

// unchangeable returns why the slice, or its quotas, cannot be changed. Called with mu held.
func (s *slice) unchangeable(quotas bool) error {
	switch {
	case s.quota.State == quota.Left:
		return ErrClosed
	case s.rec.Phase == core.Expiring || s.rec.Deadline != 0 && s.e.now() >= s.rec.Deadline:
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
	kept := slices.Clone(s.rec.Quotas)
	for _, device := range devices {
		name, err := s.e.truth.Resolve(device)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(kept, func(q api.Quota) bool { return q.Device == name })
		switch {
		case i < 0:
			return nil, api.Errorf(api.CodeBadRequest, "slice %s has no quota of its own on device %s", s.id(), s.e.gpuOf(name).Called(name))
		case !slices.ContainsFunc(kept, func(q api.Quota) bool { return q.Device == api.AllDevices }):
			return nil, api.Errorf(api.CodeBadRequest, "slice %s has no quota for all devices to replace the one on device %s: set that one", s.id(), s.e.gpuOf(name).Called(name))
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
		name, err := s.e.truth.Resolve(q.Device)
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
		for _, g := range s.e.truth.All() {
			if sees(&s.request, g.UUID) {
				device(g.Raw)
			}
		}
	}
	return uses || !known
}

// limitsBy returns the limits that these quotas change, in bytes. A device on which the slice was granted nothing gets a limit only from a quota of
// its own. Called with mu held.
func (s *slice) limitsBy(quotas []api.Quota) (core.Bytes, error) {
	limits := make(core.Bytes)
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
			limits[d.Name] = limit
		}
	}
	return limits, nil
}

// quotaOn returns the slice's quota on a device of total bytes; false if it has none there.
func (s *slice) quotaOn(raw [16]byte, total uint64) (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.allowed(raw, total)
}

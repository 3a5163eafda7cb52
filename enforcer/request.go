// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
)

// checkRequest validates a request, and replaces its devices by UUIDs.
func (e *Enforcer) checkRequest(r *api.RegisterRequest) error {
	if err := r.Validate(); err != nil {
		return err
	}
	if !r.Session && e.options.Unprivileged {
		return api.Errorf(api.CodeBadRequest, "slice %s is a container's: this enforcer runs without privileges and serves sessions only", r.ID)
	}
	if r.Mode == "" {
		r.Mode = api.Enforce
	}
	for _, name := range r.Pools {
		if p := e.findPool(name); p != nil {
			p.leaveTo(r)
		}
	}
	if err := r.CheckElastic(); err != nil {
		return err
	}
	r.Visible = e.truth.Visible(r.Visible)
	seen := make(map[string]bool)
	for i := range r.Quotas {
		q := &r.Quotas[i]
		name, err := e.truth.Resolve(q.Device)
		if err != nil {
			return err
		}
		if name != api.AllDevices && !sees(r, name) {
			return e.unseen(r, q.Device, name)
		}
		if seen[name] { // an index and a UUID can mean one device
			return api.Errorf(api.CodeBadRequest, "device %s has two quotas: one is accepted", name)
		}
		seen[name] = true
		q.Device = name
	}
	if r.Mode == api.Record && !seen[api.AllDevices] {
		// Record mode refuses nothing on any device.
		r.Quotas = append(r.Quotas, api.Quota{Device: api.AllDevices, Percent: 100})
	}
	return nil
}

// quotaOn returns the bytes that these quotas allow on a device of total bytes; false if none covers it. A device's own quota precedes one on all.
func quotaOn(quotas []api.Quota, raw [16]byte, total uint64) (uint64, bool) {
	covers := covering(quotas, raw)
	if covers == nil {
		return 0, false
	}
	return api.Share{Bytes: covers.Bytes, Percent: covers.Percent}.Of(total), true
}

// covering returns the quota that applies to a device; nil if none does.
func covering(quotas []api.Quota, raw [16]byte) *api.Quota {
	var covers *api.Quota
	for i, q := range quotas {
		if q.Device == api.AllDevices {
			if covers == nil {
				covers = &quotas[i]
			}
			continue
		}
		if uuid, err := driver.ParseUUID(q.Device); err == nil && uuid.Raw == raw {
			covers = &quotas[i]
		}
	}
	return covers
}

// sees reports whether the slice of a request, with devices as UUIDs, sees a device.
func sees(r *api.RegisterRequest, uuid string) bool {
	return len(r.Visible) == 0 || slices.Contains(r.Visible, uuid)
}

// unseen is the error for a quota on a device that the container does not see, where it would have no effect.
func (e *Enforcer) unseen(r *api.RegisterRequest, written, uuid string) error {
	var seen []string
	for _, g := range e.truth.All() {
		if slices.Contains(r.Visible, g.UUID) {
			seen = append(seen, g.Called(g.UUID))
		}
	}
	if written != uuid {
		written += " (" + uuid + ")"
	}
	refusal := api.Errorf(api.CodeNoDevice, "there is a quota on device %s, which %s does not use: it sees only %s", written, r.ID, strings.Join(seen, ", "))
	refusal.Device = uuid
	return refusal
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"strconv"

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
	r.Visible = e.resolveVisible(r.Visible)
	seen := make(map[string]bool)
	for i := range r.Quotas {
		q := &r.Quotas[i]
		name, err := e.resolve(q.Device)
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

// resolve turns a person's name for a device into its UUID. An index is resolved at once, since it depends on the program that counts, and on the boot.
func (e *Enforcer) resolve(name string) (string, error) {
	if name == api.AllDevices {
		return name, nil
	}
	if index, err := strconv.Atoi(name); err == nil {
		if e.truth == nil {
			return "", api.Errorf(api.CodeNoDevice, "device %d is an index, which needs NVML: give the UUID that nvidia-smi -L shows", index)
		}
		for _, d := range e.truth.All() {
			if d.Index == index {
				return d.UUID, nil
			}
		}
		return "", api.Errorf(api.CodeNoDevice, "there is no device %d: NVML shows %d devices (nvidia-smi -L)", index, len(e.truth.All()))
	}
	uuid, err := driver.ParseUUID(name)
	if err != nil {
		return "", api.Errorf(api.CodeBadRequest, "%v, or an index, or %q for all", err, api.AllDevices)
	}
	if e.truth != nil && e.truth.At(uuid.Raw) == nil {
		return "", api.Errorf(api.CodeNoDevice, "there is no device %s: nvidia-smi -L lists the devices", uuid)
	}
	return uuid.String(), nil
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

// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"slices"
	"strconv"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
)

// Resolve turns a person's name for a device into its UUID. An index is resolved at once, since it depends on the program that counts, and on the boot.
// Errors: CodeNoDevice, CodeBadRequest.
func (t *Devices) Resolve(name string) (string, error) {
	if name == api.AllDevices {
		return name, nil
	}
	if index, err := strconv.Atoi(name); err == nil {
		if t == nil {
			return "", api.Errorf(api.CodeNoDevice, "device %d is an index, which needs NVML: give the UUID that nvidia-smi -L shows", index)
		}
		for _, d := range t.list {
			if d.Index == index {
				return d.UUID, nil
			}
		}
		return "", api.Errorf(api.CodeNoDevice, "there is no device %d: NVML shows %d devices (nvidia-smi -L)", index, len(t.list))
	}
	uuid, err := driver.ParseUUID(name)
	if err != nil {
		return "", api.Errorf(api.CodeBadRequest, "%v, or an index, or %q for all", err, api.AllDevices)
	}
	if t != nil && t.At(uuid.Raw) == nil {
		return "", api.Errorf(api.CodeNoDevice, "there is no device %s: nvidia-smi -L lists the devices", uuid)
	}
	return uuid.String(), nil
}

// Visible turns the devices that a container was found to see into UUIDs, in the order of the devices; nil if unknown. One unknown name makes
// all of them unknown: the container is then assumed to see all devices.
func (t *Devices) Visible(names []string) []string {
	if len(names) == 0 || t == nil {
		return nil
	}
	visible := make(map[string]bool)
	mark := func(found []*Device) bool {
		for _, g := range found {
			visible[g.UUID] = true
		}
		return len(found) > 0
	}
	var nodes []int
	for _, name := range names {
		if minor, ok := api.ParseMinor(name); ok {
			nodes = append(nodes, minor)
		} else if !mark(t.named(name)) {
			return nil
		}
	}
	for _, minor := range nodes {
		found := t.ofMinor(minor)
		// The node of a GPU in MIG mode leads to all its instances, but to a named instance alone.
		if slices.ContainsFunc(found, func(g *Device) bool { return g.Parent != "" && visible[g.UUID] }) {
			continue
		}
		if !mark(found) {
			return nil
		}
	}
	var uuids []string
	for _, g := range t.list {
		if visible[g.UUID] {
			uuids = append(uuids, g.UUID)
		}
	}
	return uuids
}

// named returns the devices of an index or a UUID. For a GPU in MIG mode these are its instances.
func (t *Devices) named(name string) []*Device {
	name, _ = api.DeviceName(name)
	index, err := strconv.Atoi(name)
	return t.that(func(g *Device) bool {
		return err == nil && g.Index == index || g.UUID == name || g.Parent == name
	})
}

// ofMinor returns the devices behind the device node with a minor number.
func (t *Devices) ofMinor(minor int) []*Device {
	return t.that(func(g *Device) bool { return g.Minor == minor })
}

func (t *Devices) that(are func(*Device) bool) (found []*Device) {
	for _, g := range t.All() {
		if are(g) {
			found = append(found, g)
		}
	}
	return found
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/devices"
)

// sees reports whether the slice of a request, with devices as UUIDs, sees a device.
func sees(r *api.RegisterRequest, uuid string) bool {
	return len(r.Visible) == 0 || slices.Contains(r.Visible, uuid)
}

// resolveVisible turns the devices that a container was found to see into UUIDs, in the order of the devices; nil if unknown. One unknown name makes
// all of them unknown: the container is then assumed to see all devices.
func (e *Enforcer) resolveVisible(names []string) []string {
	if len(names) == 0 || e.truth == nil {
		return nil
	}
	visible := make(map[string]bool)
	mark := func(found []*devices.Device) bool {
		for _, g := range found {
			visible[g.UUID] = true
		}
		return len(found) > 0
	}
	var nodes []int
	for _, name := range names {
		if minor, ok := api.ParseMinor(name); ok {
			nodes = append(nodes, minor)
		} else if !mark(e.truth.Named(name)) {
			return nil
		}
	}
	for _, minor := range nodes {
		found := e.truth.OfMinor(minor)
		// The node of a GPU in MIG mode leads to all its instances, but to a named instance alone.
		if slices.ContainsFunc(found, func(g *devices.Device) bool { return g.Parent != "" && visible[g.UUID] }) {
			continue
		}
		if !mark(found) {
			return nil
		}
	}
	var uuids []string
	for _, g := range e.truth.All() {
		if visible[g.UUID] {
			uuids = append(uuids, g.UUID)
		}
	}
	return uuids
}

// unseen is the error for a quota on a device that the container does not see, where it would have no effect.
func (e *Enforcer) unseen(r *api.RegisterRequest, written, uuid string) error {
	var seen []string
	for _, g := range e.truth.All() {
		if slices.Contains(r.Visible, g.UUID) {
			name := g.UUID
			if g.Index >= 0 {
				name = strconv.Itoa(g.Index) + " (" + g.UUID + ")"
			}
			seen = append(seen, name)
		}
	}
	if written != uuid {
		written += " (" + uuid + ")"
	}
	refusal := api.Errorf(api.CodeNoDevice, "there is a quota on device %s, which %s does not use: it sees only %s", written, r.ID, strings.Join(seen, ", "))
	refusal.Device = uuid
	return refusal
}

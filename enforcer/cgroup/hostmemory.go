// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"path/filepath"
	"slices"
)

// systemd is the hierarchy of v1 by which it knows what belongs to a service.
const systemd = "name=systemd"

// Named are the cgroups, of one path below the root, in which a process is that is to be charged there and to outlive its service: first the one of
// the memory controller, then those by which systemd finds the processes of a service. They need not be there.
func (h *Host) Named(rel string) ([]Path, error) {
	charged := h.controllers["memory"]
	if charged == nil {
		charged = h.unified
	}
	if charged == nil {
		return nil, fmt.Errorf("cgroup %s: no cgroup hierarchy has the memory controller", rel)
	}
	var all []Path
	for _, c := range []*hierarchy{charged, h.unified, h.controllers[systemd]} {
		if c == nil || slices.ContainsFunc(all, func(p Path) bool { return p.Mount == c.mount }) {
			continue
		}
		all = append(all, Path{Mount: c.mount, Rel: filepath.Clean("/" + rel), V2: c.v2})
	}
	return all, nil
}

// MemoryUsed is how much is charged to a cgroup of the memory controller's hierarchy, and whether it has that controller.
func MemoryUsed(p Path) (bytes uint64, has bool, err error) {
	files := memoryV1
	if p.V2 {
		files = memoryV2
	}
	return figure(filepath.Join(p.Dir(), files.current))
}

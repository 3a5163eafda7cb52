// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"path/filepath"
	"slices"
)

// systemd is the v1 hierarchy by which systemd tracks the processes of a service.
const systemd = "name=systemd"

// Named returns the cgroups at one path below the root for a process that is charged there and outlives its service: first that of the
// memory controller, then those by which systemd finds a service's processes. They may not exist.
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

// MemoryUsed returns the bytes charged to a cgroup of the memory controller's hierarchy. has is false without the controller.
func MemoryUsed(p Path) (bytes uint64, has bool, err error) {
	files := memoryV1
	if p.V2 {
		files = memoryV2
	}
	return figure(filepath.Join(p.Dir(), files.current))
}

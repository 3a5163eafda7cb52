// SPDX-License-Identifier: Apache-2.0

// Package gpus finds the GPUs that a container sees: those with device nodes in its /dev before it starts, and those that a hook
// of NVIDIA will add.
//
// The result selects the devices on which a quota counts; it is not access control. The image wrote part of the input, so
// anything that cannot be parsed means all GPUs.
package gpus

import (
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/hook/mount"
)

// Spec is the part of config.json that this package uses. Errors in other parts reject no container.
type Spec struct {
	Env    []string // of the container's process
	Mounts []specs.Mount
	Hooks  Hooks
	Linux  Linux
}

// Hooks lists the hooks that run before the container's process.
type Hooks struct {
	Prestart        []specs.Hook `json:"prestart"`
	CreateRuntime   []specs.Hook `json:"createRuntime"`
	CreateContainer []specs.Hook `json:"createContainer"`
}

// Linux is the part of config.json specific to Linux.
type Linux struct {
	Devices   []specs.LinuxDevice `json:"devices"`
	Resources struct {
		Devices []specs.LinuxDeviceCgroup `json:"devices"`
	} `json:"resources"`
}

// Visible returns the names of the GPUs that a container sees, for api.RegisterRequest. It returns nil, which counts as all, if
// they are unknown (WSL, a Jetson board, a simulated driver, a request that cannot be parsed) or more than api.MaxVisible.
func (s *Spec) Visible(nodes mount.Nodes) []string {
	asked := s.requested()
	if nodes.Unclear || asked.all {
		return nil
	}
	names := asked.names
	for _, minor := range nodes.Minors {
		names = append(names, api.VisibleMinor(minor))
	}
	// A device node may be outside /dev: docker run --device /dev/nvidia1:/gpu.
	for _, n := range s.Linux.Devices {
		if isGPU(n) {
			names = append(names, api.VisibleMinor(uint32(n.Minor)))
		}
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) > api.MaxVisible {
		return nil
	}
	return names
}

func isGPU(n specs.LinuxDevice) bool {
	return n.Type != "b" && n.Major == mount.GPUMajor && n.Minor >= 0 && n.Minor <= mount.MaxGPUMinor
}

// Reaches reports whether the container may get access to a GPU. It returns false only if the container has no node of a GPU,
// requests none, and its device cgroup keeps it from creating one.
func (s *Spec) Reaches(nodes mount.Nodes) bool {
	asked := s.requested()
	return nodes.Unclear || len(nodes.Minors) > 0 || asked.all || len(asked.names) > 0 ||
		slices.ContainsFunc(s.Linux.Devices, isGPU) || !s.confined()
}

// confined reports whether the device cgroup denies all devices and then allows only harmless ones, as engines write it (runc
// adds the usual devices). The last matching rule counts.
func (s *Spec) confined() bool {
	confined := false
	for _, r := range s.Linux.Resources.Devices {
		switch {
		case !r.Allow && isAll(r):
			confined = true
		case r.Allow && !isHarmless(r):
			confined = false
		}
	}
	return confined
}

func isAll(r specs.LinuxDeviceCgroup) bool {
	every := r.Access == "" || strings.Contains(r.Access, "r") && strings.Contains(r.Access, "w") && strings.Contains(r.Access, "m")
	return every && (r.Type == "" || r.Type == "a") && open(r.Major) && open(r.Minor)
}

// open reports whether a rule matches any number.
func open(n *int64) bool { return n == nil || *n < 0 }

// isHarmless reports whether a rule gives no access to a GPU. The right to create nodes (m) alone is harmless; docker grants it
// for all devices.
func isHarmless(r specs.LinuxDeviceCgroup) bool {
	if r.Access != "" && strings.Trim(r.Access, "m") == "" {
		return true
	}
	if r.Type != "c" || open(r.Major) {
		return false
	}
	switch *r.Major {
	case 1, 5, 136: // mem, tty, pts
		return true
	case 10: // misc, which includes dxg of WSL
		return r.Minor != nil && (*r.Minor == 200 || *r.Minor == 229) // tun, fuse
	}
	return false
}

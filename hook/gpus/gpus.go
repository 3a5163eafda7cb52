// SPDX-License-Identifier: Apache-2.0

// Package gpus tells which GPUs a container sees: those whose device nodes are in its /dev when it is about to start,
// and those that a hook of NVIDIA's is still going to add.
//
// It decides where a quota counts, and it is no barrier. What it reads was partly written by the image, so it never
// believes that a container sees less than it may: what cannot be understood means all GPUs.
package gpus

import (
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/hook/mount"
)

// Spec is what matters here of a config.json. Parts of no interest are left out, so that nothing in them refuses a container.
type Spec struct {
	Env    []string // of its process
	Mounts []specs.Mount
	Hooks  Hooks
	Linux  Linux
}

// Hooks are those that are run before the container's process starts.
type Hooks struct {
	Prestart        []specs.Hook `json:"prestart"`
	CreateRuntime   []specs.Hook `json:"createRuntime"`
	CreateContainer []specs.Hook `json:"createContainer"`
}

// Linux is what is Linux' own.
type Linux struct {
	Devices   []specs.LinuxDevice `json:"devices"`
	Resources struct {
		Devices []specs.LinuxDeviceCgroup `json:"devices"`
	} `json:"resources"`
}

// Visible names the GPUs that a container sees, for api.RegisterRequest. nil is unknown, which is all: there are
// no device nodes (under WSL, on a Jetson board, or where the driver is simulated), or more than can be told.
func (s *Spec) Visible(nodes mount.Nodes) []string {
	asked := s.asked()
	if nodes.Unclear || asked.all {
		return nil
	}
	names := asked.names
	for _, minor := range nodes.Minors {
		names = append(names, api.VisibleMinor(minor))
	}
	// Some of them may be elsewhere than in /dev: docker run --device /dev/nvidia1:/gpu.
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

// Reaches says whether the container may get at a GPU. It says no only of one that has none, that is given none, and
// whose device cgroup keeps it from every device beyond those that all containers have: it could make itself a node.
func (s *Spec) Reaches(nodes mount.Nodes) bool {
	asked := s.asked()
	return nodes.Unclear || len(nodes.Minors) > 0 || asked.all || len(asked.names) > 0 ||
		slices.ContainsFunc(s.Linux.Devices, isGPU) || !s.confined()
}

// confined says whether the device cgroup denies all and then allows what is harmless: the rules are taken in their order,
// and the last that fits a device counts. An engine writes them so (runc adds the usual devices by itself).
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

// open says whether a rule leaves a number open.
func open(n *int64) bool { return n == nil || *n < 0 }

// isHarmless says that what the rule allows is no GPU. A node that may be made (m) and neither read nor written is no
// use; docker allows that for all devices.
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
	case 10: // misc, which has WSL's dxg too
		return r.Minor != nil && (*r.Minor == 200 || *r.Minor == 229) // tun, fuse
	}
	return false
}

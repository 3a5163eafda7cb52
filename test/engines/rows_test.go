//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

var rows = []row{
	{name: "runc 1.1", version: []string{"runc-1.1"}, make: func() engine { return &oci{runtime: []string{"runc-1.1", "runc"}} }},
	{name: "runc 1.4", version: []string{"runc-1.4"}, make: func() engine { return &oci{runtime: []string{"runc-1.4", "runc"}} }},
	{name: "crun", version: []string{"crun"}, make: func() engine { return &oci{runtime: []string{"crun", "crun"}} }},
	{name: "containerd 1.6", version: []string{"containerd-1.6", "runc-1.1"}, make: func() engine { return &ctr{version: "containerd-1.6", runtime: []string{"runc-1.1", "runc"}} }},
	{name: "containerd 2.4", version: []string{"containerd-2", "runc-1.4"}, make: func() engine { return &ctr{version: "containerd-2", runtime: []string{"runc-1.4", "runc"}} }},
	{name: "CRI 1.6", version: []string{"containerd-1.6", "runc-1.1"}, make: func() engine {
		return &kube{daemon: criContainerd{"containerd-1.6", 2}, runtime: []string{"runc-1.1", "runc"}}
	}},
	{name: "CRI 2.4", version: []string{"containerd-2", "runc-1.4"}, make: func() engine {
		return &kube{daemon: criContainerd{"containerd-2", 3}, runtime: []string{"runc-1.4", "runc"}}
	}},
	{name: "CRI-O", version: []string{"crio", "runc-1.4"}, make: func() engine {
		return &kube{daemon: criCRIO{}, runtime: []string{"runc-1.4", "runc"}}
	}, lacks: map[string]string{"privileged": "gives privileged pods capabilities that root has not everywhere, as where this was made"}},
	{name: "nerdctl", version: []string{"nerdctl", "containerd-2", "runc-1.4"}, make: func() engine { return &nerdctl{dockerlike{runtime: "gpuslice"}} }},
	{name: "nerdctl, shim", version: []string{"nerdctl", "containerd-2", "runc-1.4"}, make: func() engine { return &nerdctl{dockerlike{runtime: shimRuntime}} }},
	{name: "docker 29", version: []string{"docker-29", "containerd-2", "runc-1.4"}, make: func() engine {
		return &docker{version: "docker-29", containerd: "containerd-2", low: []string{"runc-1.4", "runc"}, shim: true}
	}},
	{name: "docker 29, by path", version: []string{"docker-29", "containerd-2", "runc-1.4"}, make: func() engine {
		return &docker{version: "docker-29", containerd: "containerd-2", low: []string{"runc-1.4", "runc"}}
	}},
	{name: "docker 20.10", version: []string{"docker-20", "containerd-1.6", "runc-1.1"}, make: func() engine {
		return &docker{version: "docker-20", containerd: "containerd-1.6", low: []string{"runc-1.1", "runc"}, old: true}
	}},
	{name: "Podman", version: []string{"podman", "crun"}, make: func() engine { return &podman{runtimeParts: []string{"crun", "crun"}} }},
	{name: "Podman, hooks.d", version: []string{"podman", "runc-1.4"}, make: func() engine {
		return &podman{runtimeParts: []string{"runc-1.4", "runc"}, hookMode: true}
	}},
}

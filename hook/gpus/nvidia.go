// SPDX-License-Identifier: Apache-2.0

package gpus

import (
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/api"
)

// The variables and the mounts by which a container asks NVIDIA's hook for GPUs, as NVIDIA's container toolkit 1.20.1
// reads them (internal/config/image).
const (
	visibleEnv = "NVIDIA_VISIBLE_DEVICES"
	cudaEnv    = "CUDA_VERSION" // of an image of before there was visibleEnv
	requireEnv = "NVIDIA_REQUIRE_CUDA"
	// swarmEnv begins the names that NVIDIA's documents give to the variable of the operator's choice that goes before visibleEnv
	// (swarm-resource in the toolkit's configuration).
	swarmEnv = "DOCKER_RESOURCE_"
	// A mount of /dev/null below mountRoot asks for the device that its name is, if the toolkit is configured so.
	mountRoot = "/var/run/nvidia-container-devices/"
)

// hookNames are NVIDIA's hook's. It mounts device nodes into the container, before our hook or after it. (NVIDIA's other ways,
// CDI above all, write them into config.json, and need no hook for them.)
var hookNames = []string{"nvidia-container-runtime-hook", "nvidia-container-toolkit"}

// cliName is the program that NVIDIA's hook runs, and that containerd's clients (ctr before 2.3, nerdctl) name in a hook by
// themselves for their --gpus: containerd oci-hook -- /usr/bin/nvidia-container-cli … configure --device=0,1 …
const cliName = "nvidia-container-cli"

// asked is what hooks of NVIDIA's are asked for.
type asked struct {
	all   bool     // or what cannot be understood
	names []string // indices and UUIDs
}

// asked is empty without such a hook: the variable then means nothing, and most images with CUDA have it.
func (s *Spec) asked() (a asked) {
	byVariable := false
	for _, stage := range [][]specs.Hook{s.Hooks.Prestart, s.Hooks.CreateRuntime, s.Hooks.CreateContainer} {
		for _, h := range stage {
			// Where an operator of Kubernetes installs it, a script of that name runs a program with ".real" added.
			byVariable = byVariable || slices.Contains(hookNames, strings.TrimSuffix(path.Base(h.Path), ".real"))
			a.arguments(h.Args)
		}
	}
	if byVariable {
		a.mounts(s.Mounts)
		a.variables(s.Env)
	}
	return a
}

// arguments reads those of a hook that runs cliName, which is anywhere among them.
func (a *asked) arguments(args []string) {
	at := slices.IndexFunc(args, func(arg string) bool { return path.Base(arg) == cliName })
	if at < 0 {
		return
	}
	for _, arg := range args[at:] {
		if value, ok := strings.CutPrefix(arg, "--device="); ok {
			a.list(value)
		} else if arg == "--device" || strings.HasPrefix(arg, "-d") { // which nobody writes
			a.all = true
		}
	}
}

func (a *asked) variables(env []string) {
	value, set := "", false
	var cuda, require string
	for _, entry := range env {
		name, v, _ := strings.Cut(entry, "=")
		switch { // of several entries the last counts
		case name == visibleEnv:
			value, set = v, true
		case name == cudaEnv:
			cuda = v
		case name == requireEnv:
			require = v
		case strings.HasPrefix(name, swarmEnv):
			a.all = true
		}
	}
	if !set && cuda != "" && require == "" {
		a.all = true
	}
	a.list(value)
}

func (a *asked) mounts(mounts []specs.Mount) {
	for _, m := range mounts {
		name, ok := strings.CutPrefix(path.Clean(m.Destination), mountRoot)
		if !ok || path.Clean(m.Source) != "/dev/null" || strings.HasPrefix(name, "imex/") {
			continue
		}
		if cdi, ok := strings.CutPrefix(name, "cdi/"); ok {
			if i := strings.LastIndexByte(cdi, '/'); i >= 0 && !strings.Contains(cdi, "=") {
				cdi = cdi[:i] + "=" + cdi[i+1:]
			}
			name = cdi
		}
		a.list(name)
	}
}

// list reads a list as NVIDIA_VISIBLE_DEVICES has it. Versions of the toolkit differ in what "none" or "void" among
// others means; here they add nothing, and the others count.
func (a *asked) list(value string) {
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		// A name of CDI: vendor.example/gpu=NAME. What is named in another class is not known.
		if kind, device, ok := strings.Cut(name, "="); ok {
			if name = device; !strings.HasSuffix(kind, "/gpu") {
				name = "?"
			}
		}
		switch name {
		case "", "none", "void":
			continue
		}
		// "all"; and the forms that are understood by the hook only: a UUID that is cut short, a PCI address, "0:1" for the
		// second MIG instance of the first GPU.
		device, ok := api.DeviceName(name)
		if !ok {
			a.all = true
			continue
		}
		a.names = append(a.names, device)
	}
}

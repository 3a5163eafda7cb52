// SPDX-License-Identifier: Apache-2.0

package gpus

import (
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/api"
)

// Variables and mounts by which a container requests GPUs from NVIDIA's hook, as in NVIDIA's container toolkit 1.20.1
// (internal/config/image).
const (
	visibleEnv = "NVIDIA_VISIBLE_DEVICES"
	cudaEnv    = "CUDA_VERSION" // of images older than visibleEnv
	requireEnv = "NVIDIA_REQUIRE_CUDA"
	// swarmEnv is the documented prefix of an operator-defined variable that overrides visibleEnv (swarm-resource in the
	// toolkit's configuration).
	swarmEnv = "DOCKER_RESOURCE_"
	// A mount of /dev/null below mountRoot requests the device of that name, if the toolkit is configured so.
	mountRoot = "/var/run/nvidia-container-devices/"
)

// hookNames are the names of NVIDIA's hook, which mounts device nodes before or after our hook. CDI and NVIDIA's other ways write
// them into config.json.
var hookNames = []string{"nvidia-container-runtime-hook", "nvidia-container-toolkit"}

// cliName is the program that NVIDIA's hook runs. For --gpus containerd's clients (ctr before 2.3, nerdctl) run it from their own
// hook: containerd oci-hook -- /usr/bin/nvidia-container-cli … configure --device=0,1 …
const cliName = "nvidia-container-cli"

// asked holds the devices requested from NVIDIA's hooks.
type asked struct {
	all   bool     // also set if a request cannot be parsed
	names []string // indices and UUIDs
}

// requested is empty without such a hook: most CUDA images set the variable, which then has no effect.
func (s *Spec) requested() (a asked) {
	byVariable := false
	for _, stage := range [][]specs.Hook{s.Hooks.Prestart, s.Hooks.CreateRuntime, s.Hooks.CreateContainer} {
		for _, h := range stage {
			// The script of that name from NVIDIA's operator for Kubernetes runs the program with the suffix ".real".
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

// arguments parses the arguments of a hook that runs cliName.
func (a *asked) arguments(args []string) {
	at := slices.IndexFunc(args, func(arg string) bool { return path.Base(arg) == cliName })
	if at < 0 {
		return
	}
	for _, arg := range args[at:] {
		if value, ok := strings.CutPrefix(arg, "--device="); ok {
			a.list(value)
		} else if arg == "--device" || strings.HasPrefix(arg, "-d") { // not used by known clients
			a.all = true
		}
	}
}

func (a *asked) variables(env []string) {
	value, set := "", false
	var cuda, require string
	for _, entry := range env {
		name, v, _ := strings.Cut(entry, "=")
		switch { // the last of several entries counts
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

// list parses a list such as NVIDIA_VISIBLE_DEVICES. In a longer list "none" and "void" add nothing; versions of the toolkit
// disagree.
func (a *asked) list(value string) {
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		// A CDI name: vendor.example/gpu=NAME. Other classes are unknown.
		if kind, device, ok := strings.Cut(name, "="); ok {
			if name = device; !strings.HasSuffix(kind, "/gpu") {
				name = "?"
			}
		}
		switch name {
		case "", "none", "void":
			continue
		}
		// "all", and forms that only the hook resolves: an abbreviated UUID, a PCI address, "0:1" for a GPU's MIG instance.
		device, ok := api.DeviceName(name)
		if !ok {
			a.all = true
			continue
		}
		a.names = append(a.names, device)
	}
}

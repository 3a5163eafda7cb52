//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/gpuslice/gpuslice/test/testhost"
)

func byRuntime(w way, gpus string) (container, string) {
	return container{flags: []string{"--runtime", string(w)}, env: []string{"NVIDIA_VISIBLE_DEVICES=" + gpus}}, ""
}

// chainsElsewhere is the reason why other engines skip NVIDIA's runtime.
const chainsElsewhere = "which runtime calls which is tried by hand, with Docker 29 and with Kubernetes: what calls the first is the same to the next"

type equippedDocker struct{ *docker }

func (e *docker) equipped() engine {
	return &equippedDocker{&docker{version: e.version, containerd: e.containerd, low: e.low, old: e.old, shim: e.shim}}
}

func (e *equippedDocker) options(t testing.TB) testhost.Options {
	return equippedOptions(e.docker.options(t))
}

func (e *equippedDocker) up(s *site) {
	equip(s)
	e.more = func(config object) {
		for _, name := range s.runtimes() {
			config["runtimes"].(object)[name] = object{"path": s.runtime(name)}
		}
		if !e.old {
			config["cdi-spec-dirs"] = []string{s.in("cdi")}
		}
	}
	e.docker.up(s)
}

func (e *docker) ask(w way, gpus string) (c container, not string) {
	device, driver := "device="+gpus, "driver=nvidia.runtime-hook,"
	if gpus == "all" {
		device = "count=all"
	}
	if e.old { // it has only one way, and no flag for it
		driver = ""
	}
	switch {
	case w == byHook:
		c.flags = []string{"--gpus", driver + device}
	case e.old && w.isFlag():
		not = "Docker 20.10 does not know CDI"
	case e.old:
		not = chainsElsewhere
	case w == byFlag:
		c.flags = []string{"--gpus", device}
	case w == byCDI:
		c.flags = []string{"--device", "nvidia.com/gpu=" + gpus}
	default:
		return byRuntime(w, gpus)
	}
	return c, not
}

type equippedOCI struct{ *oci }

func (e *oci) equipped() engine { return &equippedOCI{&oci{runtime: e.runtime}} }

func (e *oci) ask(w way, gpus string) (c container, not string) {
	if w.isFlag() {
		return c, "without an engine the caller writes devices and hooks into config.json"
	}
	return byRuntime(w, gpus)
}

func (e *equippedOCI) options(t testing.TB) testhost.Options {
	return equippedOptions(e.oci.options(t))
}

func (e *equippedOCI) up(s *site) {
	equip(s)
	e.oci.up(s)
}

// run creates and starts: NVIDIA's runtime does not know the verb run.
func (e *equippedOCI) run(c container) (string, error) {
	bundle := e.bundle(c.name)
	if err := e.prepare(bundle, c); err != nil {
		return "", err
	}
	out, err := e.s.output(e.s.runtime(c.flags[1]), "--root", e.s.in("runc"), "create", "--bundle", bundle, c.name)
	if err != nil {
		return out, err
	}
	return e.invoke("start", c.name)
}

// equippedKube is Kubernetes on a node with GPUs: a device plugin passes CDI device names to the CRI, or a RuntimeClass selects
// runc's shim with another runtime.
type equippedKube struct{ *kube }

func (e *kube) equipped() engine {
	return &equippedKube{&kube{daemon: e.daemon, runtime: e.runtime}}
}

func (e *kube) ask(w way, gpus string) (c container, not string) {
	switch {
	case !w.isFlag():
		return byRuntime(w, gpus)
	case w != byCDI:
		not = "pods ask for GPUs by resources, and have no such flag"
	case e.daemon.noCDI() != "":
		not = e.daemon.noCDI()
	default:
		c.flags = []string{"nvidia.com/gpu=" + gpus}
	}
	return c, not
}

func (e *equippedKube) options(t testing.TB) testhost.Options {
	return equippedOptions(e.kube.options(t))
}

func (e *equippedKube) up(s *site) {
	equip(s)
	e.more = s.runtimes()
	e.kube.up(s)
}

func (e *equippedKube) run(c container) (string, error) {
	handler := handlerShim
	if c.flags[0] == "--runtime" {
		handler, c.flags = c.flags[1], nil
	}
	err := e.sandbox(handler, c)
	if err == nil {
		_, err = e.start(c.name, c)
	}
	return message(err), err
}

// equippedCtr is containerd 1.6's client; its --gpus adds a hook that runs nvidia-container-cli.
type equippedCtr struct{ *ctr }

func (e *ctr) equipped() engine {
	return &equippedCtr{&ctr{version: e.version, runtime: e.runtime}}
}

func (e *ctr) ask(w way, gpus string) (c container, not string) {
	switch {
	case !w.isFlag():
		not = chainsElsewhere
	case e.version != "containerd-1.6":
		not = "`ctr` of containerd 2.4 finds CDI's specifications in the machine's /etc/cdi only"
	case w != byHook:
		not = "`ctr` of containerd 1.6 does not know CDI"
	case gpus == "all":
		c.flags = []string{"--gpus", "0", "--gpus", "1"}
	default:
		c.flags = []string{"--gpus", gpus}
	}
	return c, not
}

func (e *equippedCtr) options(t testing.TB) testhost.Options {
	return equippedOptions(e.ctr.options(t))
}

func (e *equippedCtr) up(s *site) {
	equip(s)
	e.ctr.up(s)
}

type equippedNerdctl struct{ *nerdctl }

func (e *nerdctl) equipped() engine {
	return &equippedNerdctl{&nerdctl{dockerlike{runtime: e.runtime}}}
}

func (e *nerdctl) ask(w way, gpus string) (c container, not string) {
	switch {
	case !w.isFlag():
		not = chainsElsewhere
	case w != byHook:
		not = "nerdctl 2.0 does not know CDI"
	case gpus == "all":
		c.flags = []string{"--gpus", gpus}
	default:
		c.flags = []string{"--gpus", "device=" + gpus}
	}
	return c, not
}

func (e *equippedNerdctl) options(t testing.TB) testhost.Options {
	return equippedOptions(e.nerdctl.options(t))
}

func (e *equippedNerdctl) up(s *site) {
	equip(s)
	e.nerdctl.up(s)
}

// equippedPodman has NVIDIA's hook in hooks.d, next to ours.
type equippedPodman struct{ *podman }

func (e *podman) equipped() engine {
	return &equippedPodman{&podman{runtimeParts: e.runtimeParts, hookMode: e.hookMode}}
}

func (e *podman) ask(w way, gpus string) (c container, not string) {
	switch {
	case !w.isFlag():
		not = chainsElsewhere
	case w == byHook:
		c.env = []string{"NVIDIA_VISIBLE_DEVICES=" + gpus}
	case w == byCDI:
		c.flags = []string{"--device", "nvidia.com/gpu=" + gpus}
	default:
		not = "Podman 4 has no such flag"
	}
	return c, not
}

func (e *equippedPodman) options(t testing.TB) testhost.Options {
	return equippedOptions(e.podman.options(t))
}

func (e *equippedPodman) up(s *site) {
	equip(s)
	e.podman.up(s)
	path := s.in("nvidia", "nvidia-container-toolkit") // the name that NVIDIA's package once had
	s.Must(os.Symlink(tool(s.t, "nvidia", "nvidia-container-runtime-hook"), path))
	text, err := json.Marshal(object{
		"version": "1.0.0", "when": object{"always": true}, "stages": []string{"prestart"},
		"hook": object{"path": path, "args": []string{"nvidia-container-toolkit", "prestart"}, "env": append([]string{"PATH=" + s.path}, s.env...)},
	})
	s.Must(err)
	s.Must(os.WriteFile(s.in("nvidia", "oci-nvidia-hook.json"), text, 0o644))
	s.must("sh", "-euc", `
		mkdir -p /etc/cdi /usr/share/containers/oci/hooks.d
		cp "$1/cdi/nvidia.json" /etc/cdi/
		cp "$1/nvidia/oci-nvidia-hook.json" /usr/share/containers/oci/hooks.d/
	`, "sh", s.Dir)
}

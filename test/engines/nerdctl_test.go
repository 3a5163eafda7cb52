//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"os"
	"strconv"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// nerdctl is docker's dialect spoken to containerd. It finds the runtime by its name alone: `--runtime gpuslice` is the program
// of that name in PATH, as a low-level runtime of containerd's own shim, and what looks like
// io.containerd.gpuslice.v1 is a shim.
type nerdctl struct{ dockerlike }

func (e *nerdctl) options(t testing.TB) testhost.Options {
	return testhost.Options{Runtimes: []string{tool(t, "runc-1.4", "runc")}}
}

func (e *nerdctl) hasDaemon(name string) bool { return name == "containerd" }

func (e *nerdctl) noUserns() string {
	return "nerdctl 2.0 has no user namespaces but those of rootless mode"
}

func (e *nerdctl) up(s *site) {
	containerdUp(s, containerdOptions{version: "containerd-2"})
	s.prepend("nerdctl")
	s.ctrImport()
	for _, dir := range []string{"data", "cni", "netconf"} {
		s.Must(os.MkdirAll(s.in("nerdctl", dir), 0o755))
	}
	s.env = append(s.env, "NERDCTL_TOML="+s.in("nerdctl", "nerdctl.toml")) // there is none, not even the machine's
	e.s = s
	e.program = []string{"nerdctl", "--address", s.containerdSocket(), "--namespace", s.containerdNamespace(),
		"--data-root", s.in("nerdctl", "data"), "--cgroup-manager", "cgroupfs",
		"--cni-path", s.in("nerdctl", "cni"), "--cni-netconfpath", s.in("nerdctl", "netconf")}
	e.flags = []string{"--network", "none", "--pull", "never"}
}

// names: nerdctl tells a runtime nothing of the image.
func (e *nerdctl) names(name string) (api.Names, bool) { return api.Names{Name: name}, false }

// exec has the process write into a file, as ctr's has: what a process says that ends at once may be lost by nerdctl too.
func (e *nerdctl) exec(name string, args ...string) (string, error) {
	file := "exec" + strconv.FormatUint(names.Add(1), 10)
	defer os.Remove(e.s.in("fake", file))
	shell := []string{"/bin/sh", "-c", `exec "$@" >/fake/` + file + " 2>&1", "sh"}
	out, err := e.dockerlike.exec(name, append(shell, args...)...)
	text, _ := os.ReadFile(e.s.in("fake", file)) // it is not there if nothing was started
	return string(text) + out, err
}

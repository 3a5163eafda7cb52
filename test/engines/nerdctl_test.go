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

// nerdctl is docker's command line for containerd. It finds the runtime by name: `--runtime gpuslice` is a program in PATH, run
// by containerd's own shim, and a name like io.containerd.gpuslice.v1 is a shim.
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
	s.env = append(s.env, "NERDCTL_TOML="+s.in("nerdctl", "nerdctl.toml")) // absent, to ignore the machine's
	e.s = s
	e.program = []string{"nerdctl", "--address", s.containerdSocket(), "--namespace", s.containerdNamespace(),
		"--data-root", s.in("nerdctl", "data"), "--cgroup-manager", "cgroupfs",
		"--cni-path", s.in("nerdctl", "cni"), "--cni-netconfpath", s.in("nerdctl", "netconf")}
	e.flags = []string{"--network", "none", "--pull", "never"}
}

// names has no image: nerdctl passes none to the runtime.
func (e *nerdctl) names(name string) (api.Names, bool) { return api.Names{Name: name}, false }

// exec has the process write into a file: like ctr, nerdctl may lose the output of a process that ends at once.
func (e *nerdctl) exec(name string, args ...string) (string, error) {
	file := "exec" + strconv.FormatUint(names.Add(1), 10)
	defer os.Remove(e.s.in("fake", file))
	shell := []string{"/bin/sh", "-c", `exec "$@" >/fake/` + file + " 2>&1", "sh"}
	out, err := e.dockerlike.exec(name, append(shell, args...)...)
	text, _ := os.ReadFile(e.s.in("fake", file)) // absent if nothing was started
	return string(text) + out, err
}

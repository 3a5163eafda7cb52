// SPDX-License-Identifier: Apache-2.0

package testhost

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// CRIO is a CRI-O with its storage and the runtimes' state below Dir.
type CRIO struct {
	Dir      string
	Programs string // contains crio, conmon and pinns
	Podman   string
	Pause    string            // sandbox image; requires /bin/sleep
	Handlers map[string]string // paths of low-level runtimes by name; default: "runc"
	Env      []string          // for the monitors of containers
}

func (c *CRIO) in(name string) string      { return filepath.Join(c.Dir, name) }
func (c *CRIO) program(name string) string { return filepath.Join(c.Programs, name) }

func (c *CRIO) State(id string) string { return filepath.Join(c.in("runc"), id) }

func (c *CRIO) Configure() (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, `[crio]
root = %q
runroot = %q
storage_driver = "overlay"
[crio.image]
pause_image = %q
pause_command = "/bin/sleep 1000000"
signature_policy = %q
[crio.nri]
enable_nri = false
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
default_runtime = "runc"
pinns_path = %q
apparmor_profile = "unconfined"
seccomp_profile = "unconfined"
disable_hostport_mapping = true
`, c.in("storage"), c.in("run"), c.Pause, c.in("policy.json"), c.program("pinns"))
	env := make([]string, len(c.Env))
	for i, v := range c.Env {
		env[i] = fmt.Sprintf("%q", v)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Handlers)) {
		fmt.Fprintf(&b, `[crio.runtime.runtimes.%s]
runtime_path = %q
runtime_type = "oci"
runtime_root = %q
monitor_path = %q
monitor_cgroup = "pod"
monitor_env = [%s]
`, name, c.Handlers[name], c.in("runc"), c.program("conmon"), strings.Join(env, ", "))
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(c.in("policy.json"), []byte(`{"default": [{"type": "insecureAcceptAnything"}]}`), 0o644); err != nil {
		return "", err
	}
	return c.in("crio.conf"), os.WriteFile(c.in("crio.conf"), []byte(b.String()), 0o644)
}

// Load loads an image with Podman, which shares the storage: CRI-O pulls images from registries only.
func (c *CRIO) Load(archive string) error {
	out, err := exec.Command(c.Podman, "--root", c.in("storage"), "--runroot", c.in("run"), "--storage-driver", "overlay", "--conmon", c.program("conmon"),
		"--cgroup-manager", "cgroupfs", "--tmpdir", c.in("podman"), "load", "--quiet", "--signature-policy", c.in("policy.json"), "--input", archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("load %s: %w\n%s", archive, err, out)
	}
	return nil
}

//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// criCRIO is CRI-O: it has all below the site's crio/, and runs pods without a pause container where they need none.
type criCRIO struct{}

func (criCRIO) name() string                    { return "crio" }
func (criCRIO) socket(s *site) string           { return s.in("crio", "sock") }
func (criCRIO) state(s *site, id string) string { return s.in("crio", "runc", id) }
func (criCRIO) noUserns() string                { return "" }
func (criCRIO) noCDI() string                   { return "" }
func (criCRIO) storage(s *site) (root, run string) {
	return s.in("crio", "storage"), s.in("crio", "run")
}

func (d criCRIO) configure(e *kube) {
	s := e.s
	tool(s.t, "crio", "crio")
	s.prepend("crio")
	for _, dir := range []string{"conf.d", "runc", "hooks"} {
		s.Must(os.MkdirAll(s.in("crio", dir), 0o755))
	}
	s.Must(os.WriteFile(s.in("crio", "policy.json"), []byte(`{"default": [{"type": "insecureAcceptAnything"}]}`), 0o644))
	s.Must(os.WriteFile(s.in("crio", "crio.conf"), []byte(d.config(e)), 0o644))
	dropIn := s.in("crio", "conf.d", "99-gpuslice.conf")
	e.install("crio", dropIn)
	// What is installed in that root has its programs there, and these are elsewhere.
	text, err := os.ReadFile(dropIn)
	s.Must(err)
	s.Must(os.WriteFile(dropIn, bytes.Replace(text, []byte("/usr/local/bin/"), []byte(s.Bin+"/"), 1), 0o644))
}

func (d criCRIO) config(e *kube) string {
	s := e.s
	root, run := d.storage(s)
	var b strings.Builder
	fmt.Fprintf(&b, `[crio]
root = %q
runroot = %q
storage_driver = "overlay"
log_dir = %q
version_file = %q
version_file_persist = ""
clean_shutdown_file = ""
internal_wipe = false

[crio.api]
listen = %q
stream_port = "0"

[crio.image]
pause_image = %q
pause_command = "/bin/sleep 1000000"
signature_policy = %q

[crio.network]
network_dir = %q
plugin_dirs = [%q]

[crio.nri]
enable_nri = false

[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
default_runtime = "runc"
pinns_path = %q
namespaces_dir = %q
container_exits_dir = %q
container_attach_socket_dir = %q
cdi_spec_dirs = [%q]
hooks_dir = [%q]
apparmor_profile = "unconfined"
seccomp_profile = "unconfined"
disable_hostport_mapping = true
`, root, run, s.in("crio", "logs"), s.in("crio", "version"), d.socket(s), imageRef(pauseImage), s.in("crio", "policy.json"),
		s.in("cni", "conf"), s.in("cni", "bin"), tool(s.t, "crio", "pinns"), s.in("crio", "ns"), s.in("crio", "exits"), s.in("crio", "attach"),
		s.in("cdi"), s.in("crio", "hooks"))
	var env []string
	for _, v := range append([]string{"PATH=" + s.path}, s.env...) {
		env = append(env, fmt.Sprintf("%q", v))
	}
	handler := func(name, path string) {
		fmt.Fprintf(&b, "[crio.runtime.runtimes.%s]\nruntime_path = %q\nruntime_type = \"oci\"\nruntime_root = %q\nmonitor_path = %q\nmonitor_cgroup = \"pod\"\nmonitor_env = [%s]\n",
			name, path, s.in("crio", "runc"), tool(s.t, "crio", "conmon"), strings.Join(env, ", "))
	}
	handler("runc", tool(s.t, e.runtime...))
	for _, name := range e.more {
		handler(name, s.runtime(name))
	}
	return b.String()
}

func (d criCRIO) start(e *kube) {
	e.s.daemon("crio", e.ready, "crio", "--config", e.s.in("crio", "crio.conf"), "--config-dir", e.s.in("crio", "conf.d"))
}

// load is by Podman, which has the same storage. CRI-O itself fetches images from registries only.
func (d criCRIO) load(e *kube, image string) {
	root, run := d.storage(e.s)
	e.s.must(tool(e.s.t, "podman", "podman"), "--root", root, "--runroot", run, "--storage-driver", "overlay", "--cgroup-manager", "cgroupfs",
		"--tmpdir", filepath.Join(run, "podman"), "load", "--quiet", "--signature-policy", e.s.in("crio", "policy.json"), "--input", imageArchive(e.s.t, image))
}

//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/testhost"
)

// podman is Debian's Podman. It runs in a mount namespace of its own (see apart), so it can use the default configuration paths: the
// distribution's files and those of `gpuslice install podman`.
type podman struct {
	dockerlike
	runtimeParts []string // the low-level runtime, in the cache
	hookMode     bool     // Podman runs it directly, with our hook in hooks.d
	runtimePath  string   // of the low-level runtime
}

func (e *podman) options(t testing.TB) testhost.Options {
	e.runtimePath = isolatedRuntime(t, e.runtimeParts...)
	return testhost.Options{Runtimes: []string{e.runtimePath}}
}

func (e *podman) needsOwnNamespace() bool { return true }

func (e *podman) up(s *site) {
	tool(s.t, "podman", "podman")
	s.prepend("podman")
	install := []string{"install", "podman"}
	e.s, e.program = s, []string{"podman", "--runtime", "gpuslice"}
	if e.hookMode {
		install = append(install, "--hooks")
		e.program = e.program[:1]
	}
	e.flags = []string{"--network", "none", "--cgroup-parent", "/" + cgroupParent(s.Dir), "--pull", "never"}
	e.userns = []string{"--uidmap", fmt.Sprintf("0:%d:65536", usernsBase), "--gidmap", fmt.Sprintf("0:%d:65536", usernsBase)}

	s.Must(os.Symlink(filepath.Join(filepath.Dir(e.runtimePath), "state"), s.in("runc")))
	s.Must(os.WriteFile(s.in("containers.conf"), []byte(e.config()), 0o644))
	s.Must(os.WriteFile(s.in("storage.conf"), []byte(e.storage()), 0o644))
	// Replace the configuration in this namespace: the host's stays. The monitors of all containers share a cgroup, which stays, too.
	s.must("sh", "-euc", `
		cd "$2"
		rm -rf /etc/containers /usr/share/containers
		cp -r "$1/etc/containers" /etc/containers
		cp -r "$1/containers" /usr/share/containers
		cp containers.conf storage.conf /etc/containers/
		mkdir -p /etc/gpuslice
		cp config.toml /etc/gpuslice/
		mkdir -p /sys/fs/cgroup/"${2##*/}"/conmon
	`, "sh", tool(s.t, "podman"), s.Dir)
	s.must("gpuslice", install...)
	for _, image := range images {
		s.must("podman", "load", "--quiet", "--input", imageArchive(s.t, image))
	}
}

func (e *podman) config() string {
	var env []string
	for _, v := range append([]string{"PATH=" + e.s.path}, e.s.env...) {
		env = append(env, fmt.Sprintf("%q", v))
	}
	name := filepath.Base(e.runtimePath)
	// The ulimits must not exceed the test's. There is no pids controller here. Paths that the host's Podman uses are redirected.
	return fmt.Sprintf(`[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
pids_limit = 0
log_driver = "k8s-file"

[engine]
cgroup_manager = "cgroupfs"
conmon_env_vars = [%s]
conmon_path = [%q]
events_logger = "file"
helper_binaries_dir = [%q]
init_path = %q
lock_type = "file"
runtime = %q
stop_timeout = 0
tmp_dir = %q

[engine.runtimes]
%s = [%q]
`, strings.Join(env, ", "), tool(e.s.t, "podman", "conmon"), tool(e.s.t, "podman"), tool(e.s.t, "podman", "catatonit"),
		name, e.s.in("podman", "tmp"), name, e.runtimePath)
}

func (e *podman) storage() string {
	return fmt.Sprintf(`[storage]
driver = "overlay"
graphroot = %q
runroot = %q

[storage.options.overlay]
skip_mount_home = "true"
`, e.s.in("podman", "graph"), e.s.in("podman", "run"))
}

// refusals returns the bad containers that are refused. With hooks, a container without our annotations is not: its hook does not run.
func (e *podman) refusals() (all []refusal) {
	for _, r := range bad {
		if !e.hookMode || len(r.annotations) > 0 {
			all = append(all, r)
		}
	}
	return all
}

// deleteForgotten deletes the runtime's state, which Podman leaves when a container's monitor is killed, also without gpuslice.
func (e *podman) deleteForgotten(id string) {
	e.s.t.Helper()
	// Podman has removed the bundle in which crun would run the poststop hook, so SIGPIPE may kill crun before or after it
	// deletes the container. Deleting a deleted container is no error.
	e.s.Eventually("crun has deleted it", func() bool {
		_, err := e.s.output(e.runtimePath, "delete", "--force", id)
		return err == nil
	})
}

// SPDX-License-Identifier: Apache-2.0

// Package hook_test runs gpuslice-hook and gpuslice-runtime under the real runc and crun, against a fake enforcer.
package hook_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// program returns the absolute path of a program in $GPUSLICE_BIN or bin/.
func program(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("GPUSLICE_BIN")
	if dir == "" {
		dir = "../../bin"
	}
	path := must.Get(filepath.Abs(filepath.Join(dir, name)))(t)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("requires %s: run `make test-programs`", path)
	}
	return path
}

func requires(t testing.TB, programs ...string) {
	t.Helper()
	needs.Root(t)
	for _, p := range append(programs, "busybox") {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("requires %s", p)
		}
	}
}

var runc = runtime{name: "runc"}

// crun of Debian 12 rejects the hybrid cgroup layout: run it with pure v2, in a separate mount namespace.
var crun = runtime{name: "crun", prefix: []string{
	"unshare", "--mount", "sh", "-c",
	`if ! [ -e /sys/fs/cgroup/cgroup.procs ]; then umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup || exit 125; fi; exec "$@"`, "sh",
}}

func forEachRuntime(t *testing.T, test func(t *testing.T, r runtime)) {
	for _, r := range []runtime{runc, crun} {
		t.Run(r.name, func(t *testing.T) {
			requires(t, r.name)
			test(t, r)
		})
	}
}

// id returns a container id that is unique to the test and its process.
func id(t testing.TB) string {
	name := strings.NewReplacer("/", "-", "#", "-", "_", "-").Replace(strings.TrimPrefix(t.Name(), "Test"))
	return fmt.Sprint(name[max(0, len(name)-60):], "-", os.Getpid())
}

// hooks returns the hooks of config.json, as an operator or an engine's hooks.d would write them.
func hooks(t testing.TB, e *enforcer, stage string) object {
	t.Helper()
	entry := func(stage string) []object {
		return []object{{
			"path": program(t, "gpuslice-hook"), "args": []string{"gpuslice-hook", "--config", e.config, stage},
			"env": []string{"PATH=/bin"}, "timeout": 15,
		}}
	}
	return object{stage: entry(stage), "poststop": entry("poststop")}
}

var fourGiB = map[string]string{"gpuslice.vram": "4G"}

// shareMount makes dir a shared mount, as all mounts are on a host with systemd.
func shareMount(t testing.TB, dir string) {
	t.Helper()
	for _, args := range [][]string{{"--bind", dir, dir}, {"--make-shared", dir}} {
		must.Output(exec.Command("mount", args...).CombinedOutput())(t, "mount", args)
	}
	t.Cleanup(func() { exec.Command("umount", "-R", dir).Run() })
}

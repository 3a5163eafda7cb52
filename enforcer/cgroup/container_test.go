// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// TestAContainersCgroupIsFound runs a container by each installed runtime.
func TestAContainersCgroupIsFound(t *testing.T) {
	hierarchies(t)
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("requires a static busybox")
	}
	ran := false
	for _, runtime := range []string{"runc", "crun"} {
		if _, err := exec.LookPath(runtime); err != nil {
			continue
		}
		ran = true
		t.Run(runtime, func(t *testing.T) {
			pid := container(t, runtime, busybox)
			host := must.Get(Open("/proc"))(t)
			p := must.Get(of(host, pid))(t)
			t.Logf("%s", p)
			expect.EqualSlices(t, must.Get(PIDs(p))(t), []int{pid}, "processes")
			m, err := host.Membership(pid)
			if err != nil || !m.In(p) {
				t.Errorf("init is not a member of its own cgroup (%v)", err)
			}
			expect.True(t, !must.Get(host.Membership(os.Getpid()))(t).In(p), "the test is a member of the container's cgroup")
			w := newTestWatcher(t)
			reports := watch(t, w, p)
			wantSilence(t, reports)
			_ = syscall.Kill(pid, syscall.SIGKILL)
			if !p.V2 {
				waitFor(t, "init's death", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
				w.Recheck(p)
			}
			wantReport(t, reports)
		})
	}
	if !ran {
		t.Skip("requires runc or crun")
	}
}

// pureV2 runs a command with only the v2 hierarchy mounted: crun rejects a hybrid layout.
var pureV2 = []string{"unshare", "--mount", "sh", "-c",
	`if ! [ -e /sys/fs/cgroup/cgroup.procs ]; then umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup || exit 125; fi; exec "$@"`, "sh"}

// container starts a container that sleeps, and returns its init's pid.
func container(t *testing.T, runtime, busybox string) int {
	t.Helper()
	bundle := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = bundle
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Skipf("requires a %s that can run a container here: %v: %s", runtime, err, out)
		}
		return string(out)
	}
	id := fmt.Sprintf("gpuslice-test-%s-%d", runtime, os.Getpid())
	run("mkdir", "-p", "rootfs/bin", "rootfs/proc", "rootfs/sys", "rootfs/dev")
	run("cp", busybox, "rootfs/bin/sleep")
	run(runtime, "spec")
	config := must.Get(os.ReadFile(filepath.Join(bundle, "config.json")))(t)
	edited := strings.NewReplacer(`"sh"`, `"/bin/sleep","600"`, `"terminal": true`, `"terminal": false`,
		// For these crun loads a program into the kernel, which takes a capability that root may lack.
		`"devices": [`, `"unused": [`).Replace(string(config))
	must.Do(t, os.WriteFile(filepath.Join(bundle, "config.json"), []byte(edited), 0o600))
	verb := func(args ...string) *exec.Cmd {
		words := append([]string{runtime}, args...)
		if runtime == "crun" {
			words = slices.Concat(pureV2, words)
		}
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Dir = bundle
		return cmd
	}
	cmd := verb("run", "--detach", "--pid-file", "pid", id)
	log := must.Get(os.Create(filepath.Join(bundle, "log")))(t)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log // a pipe would be inherited by the container, and block Wait
	t.Cleanup(func() { _ = verb("delete", "--force", id).Run() })
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log.Name())
		t.Skipf("requires a %s that can run a container here: %v: %s", runtime, err, text)
	}
	text := must.Get(os.ReadFile(filepath.Join(bundle, "pid")))(t)
	return must.Get(strconv.Atoi(strings.TrimSpace(string(text))))(t)
}

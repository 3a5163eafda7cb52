// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// inside starts a process in a cgroup, in a new pid namespace unless it enters another's.
func inside(t *testing.T, cgroup string, args ...string) *exec.Cmd {
	t.Helper()
	dir := must.Get(os.Open(cgroup))(t)
	defer dir.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if args[0] != "nsenter" {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
	}
	must.Start(t, cmd)
	return cmd
}

// enters starts a process in a cgroup and in the pid namespace of another, and returns its pid.
func enters(t *testing.T, cgroup string, in *exec.Cmd) (own int) {
	t.Helper()
	inside(t, cgroup, "nsenter", "--target", strconv.Itoa(in.Process.Pid), "--pid", "sleep", "1001")
	eventually(t, "it has begun", func() bool {
		pids, _ := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
		for _, field := range strings.Fields(string(pids)) {
			line, _ := os.ReadFile("/proc/" + field + "/cmdline")
			if strings.HasPrefix(string(line), "sleep\x001001") {
				own, _ = strconv.Atoi(field)
			}
		}
		return own != 0
	})
	return own
}

// An engine's user can put a container below another's cgroup. The outer container is not blamed for its memory.
func TestContainerIsNotChargedForACgroupBelowItsOwn(t *testing.T) {
	cgroup := newCgroup(t)
	below := filepath.Join(cgroup, "below")
	must.Do(t, os.Mkdir(below, 0o755))
	t.Cleanup(func() { eventually(t, "remove the cgroup", func() bool { return os.Remove(below) == nil }) })
	h, truth := newPolicyHost(t, api.Kill, api.ScopeSlice)
	b := inside(t, cgroup, "sleep", "1000")
	must.Get(h.Register(context.Background(), api.RegisterRequest{ID: "b", Container: "b", PID: b.Process.Pid, Quotas: []api.Quota{on(gpu0, 4*gib)}}))(t)
	theirs := inside(t, below, "sleep", "1000")
	_, err := h.Register(context.Background(), api.RegisterRequest{ID: "c", Container: "c", PID: theirs.Process.Pid, Quotas: []api.Quota{on(gpu0, gib)}})
	expect.ErrorContains(t, err, "lies below that of slice b")
	h.restart()
	truth.set(gpu0, theirs.Process.Pid, 2*gib)
	truth.comparisons(t, 8)
	if s := h.see("b"); s.Devices[0].Overhead != 0 || len(h.told(api.EventBypass)) != 0 {
		t.Errorf("%+v, told %+v", s, h.told(api.EventBypass))
	}
	truth.set(gpu0, theirs.Process.Pid, 0)

	// A process that enters the outer container's pid namespace belongs to that container, also in the inner cgroup.
	own := enters(t, below, b)
	truth.set(gpu0, own, 2*gib)
	eventually(t, "the container is ended for it", func() bool { return len(h.told(api.EventKilled)) == 1 })
}

// Before Linux 6.7 the kernel does not report a cgroup path longer than PATH_MAX, and a container may create one.
func TestProcessWithUnreadableCgroupStaysInItsContainer(t *testing.T) {
	cgroup := newCgroup(t)
	t.Cleanup(enforcer.HideCgroups()) // runs after the enforcer has stopped
	h, truth := newPolicyHost(t, api.Kill, api.ScopeProcess)
	b := inside(t, cgroup, "sleep", "1000")
	must.Get(h.Register(context.Background(), api.RegisterRequest{ID: "b", Container: "b", PID: b.Process.Pid, Quotas: []api.Quota{on(gpu0, 4*gib)}}))(t)
	own, stranger := enters(t, cgroup, b), inside(t, cgroup, "sleep", "1000")
	truth.set(gpu0, stranger.Process.Pid, 2*gib)
	truth.comparisons(t, 8)
	if s := h.see("b"); s.Devices[0].Overhead != 0 || len(h.told(api.EventBypass)) != 0 {
		t.Errorf("another container's: %+v, told %+v", s, h.told(api.EventBypass))
	}
	truth.set(gpu0, own, 2*gib)
	eventually(t, "it is ended", func() bool { return len(h.told(api.EventKilled)) == 1 })
}

// A container that can write to the host's cgroups (a bind of /sys/fs/cgroup, CAP_SYS_ADMIN) can move its processes to any cgroup.
func TestNoCgroupLeadsOutOfAContainersPIDNamespace(t *testing.T) {
	cgroup, anothers, nobodys := newCgroup(t), newCgroup(t), newCgroup(t)
	h, truth := newPolicyHost(t, api.Log, api.ScopeProcess)
	b, victim := inside(t, cgroup, "sleep", "1000"), inside(t, anothers, "sleep", "1000")
	for id, first := range map[string]*exec.Cmd{"b": b, "victim": victim} {
		must.Get(h.Register(context.Background(), api.RegisterRequest{ID: id, Container: id, PID: first.Process.Pid, Quotas: []api.Quota{on(gpu0, 4*gib)}}))(t)
	}
	truth.set(gpu0, enters(t, nobodys, b), gib)
	truth.set(gpu0, enters(t, anothers, b), 2*gib)
	shows := func() bool {
		return h.see("b").Devices[0].Overhead == 3*gib && h.see("victim").Devices[0].Overhead == 0
	}
	eventually(t, "both are the container's", shows)
	h.restart()
	truth.comparisons(t, 8)
	eventually(t, "the same is shown after a restart", shows)
	// A process outside all containers' pid namespaces belongs to the container of its cgroup.
	truth.set(gpu0, start(t, "", anothers).pid(), gib)
	eventually(t, "it is the other's", func() bool { return h.see("victim").Devices[0].Overhead == gib })
}

// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// fakeHost is a /proc and cgroup mounts in a directory, laid out like another host.
type fakeHost struct {
	t     *testing.T
	proc  string
	mount string // directory of the hierarchies
}

func of(h *Host, pid int) (Path, error) {
	m, err := h.Membership(pid)
	if err != nil {
		return Path{}, err
	}
	return h.Of(pid, m)
}

// newFakeHost creates a host with a mountinfo line for each mount: "NAME ROOT TYPE OPTIONS", mounted at <dir>/NAME.
func newFakeHost(t *testing.T, mounts ...string) *fakeHost {
	t.Helper()
	h := &fakeHost{t: t, proc: t.TempDir(), mount: t.TempDir()}
	lines := []string{"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"}
	for i, m := range mounts {
		f := strings.Fields(m)
		lines = append(lines, fmt.Sprintf("%d 22 0:%d %s %s rw,nosuid shared:9 - %s cgroup rw,%s", 30+i, 30+i, f[1], filepath.Join(h.mount, f[0]), f[2], f[3]))
	}
	h.write(filepath.Join(h.proc, "self/mountinfo"), strings.Join(lines, "\n")+"\n")
	h.process("self", 1, "0::/system.slice/gpusliced.service", "1:pids:/system.slice/gpusliced.service", "2:memory:/system.slice/gpusliced.service")
	h.process("1", 0, "0::/init.scope", "1:pids:/", "2:memory:/")
	return h
}

func (h *fakeHost) write(file, text string) {
	h.t.Helper()
	must.Do(h.t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)))
}

func (h *fakeHost) process(name string, parent int, cgroups ...string) {
	h.write(filepath.Join(h.proc, name, "stat"), fmt.Sprintf("7 (a) b) S %d 1 1 0", parent))
	h.write(filepath.Join(h.proc, name, "cgroup"), strings.Join(cgroups, "\n")+"\n")
}

func (h *fakeHost) mkdir(path string) string {
	h.t.Helper()
	dir := filepath.Join(h.mount, path)
	must.Do(h.t, os.MkdirAll(dir, 0o755))
	return dir
}

func (h *fakeHost) open() *Host {
	h.t.Helper()
	return must.Get(Open(h.proc))(h.t)
}

var (
	v2     = []string{"unified / cgroup2 nsdelegate"}
	hybrid = []string{"pids / cgroup pids", "memory / cgroup memory", "systemd / cgroup xattr,name=systemd", "unified / cgroup2 nsdelegate"}
	v1     = []string{"pids / cgroup pids", "memory / cgroup memory", "cpu,cpuacct / cgroup cpu,cpuacct", "systemd / cgroup name=systemd"}
)

func TestOfFindsTheContainersOwnCgroup(t *testing.T) {
	shim := []string{"0::/system.slice/containerd.service", "1:pids:/system.slice/containerd.service", "2:memory:/system.slice/containerd.service"}
	for name, c := range map[string]struct {
		mounts  []string
		cgroups []string // the container's
		want    string   // directory below the mounts; "" means ErrShared
	}{
		"v2": {v2, []string{"0::/docker/c1"}, "unified/docker/c1"},
		"v2, systemd driver": {
			v2, []string{"0::/system.slice/docker-c1.scope"}, "unified/system.slice/docker-c1.scope"},
		"v2, podman's colons": {
			v2, []string{"0::/machine.slice/libpod:c1"}, "unified/machine.slice/libpod:c1"},
		"hybrid, runc makes a unified cgroup too": {
			hybrid, []string{"2:memory:/engine/4f8a/c1", "1:pids:/c1", "0::/c1"}, "unified/c1"},
		"hybrid, unified left at the root": {
			hybrid, []string{"2:memory:/docker/c1", "1:pids:/docker/c1", "0::/"}, "pids/docker/c1"},
		"hybrid, unified left with the shim": {
			hybrid, []string{"2:memory:/docker/c1", "1:pids:/docker/c1", "0::/system.slice/containerd.service"}, "pids/docker/c1"},
		"hybrid, unified left above the enforcer": {
			hybrid, []string{"2:memory:/docker/c1", "1:pids:/docker/c1", "0::/system.slice"}, "pids/docker/c1"},
		"hybrid, pids left with the shim as well": {
			hybrid, []string{"2:memory:/docker/c1", "1:pids:/system.slice/containerd.service", "0::/"}, "memory/docker/c1"},
		"v1": {v1, []string{"3:cpu,cpuacct:/docker/c1", "2:memory:/docker/c1", "1:pids:/docker/c1", "0::/"}, "pids/docker/c1"},
		"v1, only cpu has the container's cgroup": {
			v1, []string{"3:cpu,cpuacct:/docker/c1", "2:memory:/", "1:pids:/"}, "cpu,cpuacct/docker/c1"},
		"v2, Kubernetes": {
			v2, []string{"0::/kubepods/burstable/pod0b5c/c1"}, "unified/kubepods/burstable/pod0b5c/c1"},
		"v2, Kubernetes, containerd's systemd driver": {
			v2, []string{"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b5c_11.slice/cri-containerd-c1.scope"},
			"unified/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b5c_11.slice/cri-containerd-c1.scope"},
		"v2, Kubernetes, CRI-O's systemd driver": {
			v2, []string{"0::/kubepods.slice/kubepods-pod0b5c_11.slice/crio-c1.scope"}, "unified/kubepods.slice/kubepods-pod0b5c_11.slice/crio-c1.scope"},
		"v2, Kubernetes, CRI-O's systemd driver with crun": {
			v2, []string{"0::/kubepods.slice/kubepods-pod0b5c_11.slice/crio-c1.scope/container"},
			"unified/kubepods.slice/kubepods-pod0b5c_11.slice/crio-c1.scope/container"},
		"v1, Kubernetes, systemd driver": {
			v1, []string{"2:memory:/kubepods.slice/kubepods-pod0b5c_11.slice/cri-containerd-c1.scope", "1:pids:/kubepods.slice/kubepods-pod0b5c_11.slice/cri-containerd-c1.scope", "0::/"},
			"pids/kubepods.slice/kubepods-pod0b5c_11.slice/cri-containerd-c1.scope"},
		"v2, cgroups disabled":                       {v2, []string{"0::/system.slice/containerd.service"}, ""},
		"v2, a name with the enforcer's as a prefix": {v2, []string{"0::/system.slice/gpusliced"}, "unified/system.slice/gpusliced"},
		"v2, outside the cgroup namespace":           {v2, []string{"0::/../c1"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			fake := newFakeHost(t, c.mounts...)
			fake.process("500", 1, shim...)
			fake.process("501", 500, c.cgroups...)
			for _, cgroup := range c.cgroups {
				for _, m := range c.mounts {
					fake.mkdir(filepath.Join(strings.Fields(m)[0], cgroup[strings.Index(cgroup, "/"):]))
				}
			}
			got, err := of(fake.open(), 501)
			if c.want == "" {
				expect.ErrorIs(t, err, ErrShared, got)
				return
			}
			must.Do(t, err)
			expect.Equal(t, got.Dir(), filepath.Join(fake.mount, c.want))
			if ino, _ := inode(got.Dir()); got.Inode != ino || got.V2 != strings.HasPrefix(c.want, "unified") {
				t.Errorf("got %+v, its inode is %d", got, ino)
			}
		})
	}
}

func TestAnEnforcerThatSeesAPartOfTheHierarchyTranslates(t *testing.T) {
	fake := newFakeHost(t, "unified /kubepods cgroup2 nsdelegate")
	fake.process("501", 1, "0::/kubepods/pod1/c1")
	fake.process("502", 1, "0::/other/c2")
	fake.mkdir("unified/pod1/c1")
	host := fake.open()
	expect.Equal(t, must.Get(of(host, 501))(t).Rel, "/pod1/c1")
	if p, err := of(host, 502); !errors.Is(err, ErrShared) {
		t.Errorf("a cgroup outside of the mount: got %+v, %v", p, err)
	}
}

func TestAHostWithoutCgroupsIsRefusedWithAReason(t *testing.T) {
	fake := newFakeHost(t)
	expect.ErrorContains(t, must.Err(Open(fake.proc)), "/sys/fs/cgroup")
}

func TestMembershipReachesDownAndNotSideways(t *testing.T) {
	fake := newFakeHost(t, hybrid...)
	fake.process("501", 1, "1:pids:/docker/c1", "0::/docker/c1/init")
	m := must.Get(fake.open().Membership(501))(t)
	unified, pids := filepath.Join(fake.mount, "unified"), filepath.Join(fake.mount, "pids")
	for p, want := range map[Path]bool{
		{Mount: unified, Rel: "/docker/c1"}:        true,
		{Mount: unified, Rel: "/docker/c1/init"}:   true,
		{Mount: unified, Rel: "/"}:                 true,
		{Mount: unified, Rel: "/docker/c1/init/x"}: false,
		{Mount: unified, Rel: "/docker/c"}:         false,
		{Mount: unified, Rel: "/docker/c11"}:       false,
		{Mount: pids, Rel: "/docker/c1"}:           true,
		{Mount: pids, Rel: "/docker/c1/init"}:      false,
		{Mount: "/elsewhere", Rel: "/docker/c1"}:   false,
	} {
		expect.Equal(t, m.In(p), want, p)
	}
}

func TestContainsComparesPathComponents(t *testing.T) {
	for _, c := range []struct {
		parent, child string
		want          bool
	}{
		{"/a", "/a", true},
		{"/a", "/a/b", true},
		{"/", "/a", true},
		{"/a", "/ab", false},
		{"/a/b", "/a", false},
	} {
		expect.Equal(t, contains(c.parent, c.child), c.want, c.parent, c.child)
	}
}

func TestMountsAreReadAsTheKernelWritesThem(t *testing.T) {
	mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(`31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
36 31 0:33 /c1 /container/sys/fs/cgroup/pids ro - cgroup cgroup rw,pids
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:4 master:1 - cgroup cgroup rw,cpu,cpuacct
33 31 0:33 / /with\040space\134/pids rw - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup systemd rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
`), nil)
	must.Do(t, err)
	unified, controllers := hierarchiesOf(mounts)
	if unified == nil || unified.mount != "/sys/fs/cgroup/unified" || !unified.v2 {
		t.Errorf("unified: %+v", unified)
	}
	for name, want := range map[string]string{
		"cpu": "/sys/fs/cgroup/cpu,cpuacct", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
		"pids": `/with space\/pids`, "name=systemd": "/sys/fs/cgroup/systemd",
	} {
		if c := controllers[name]; c == nil || c.mount != want || c.v2 {
			t.Errorf("%s: %+v, want %s", name, c, want)
		}
	}
}

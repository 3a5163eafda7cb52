// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/api/types"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/needs"
)

func TestARootForAUserNamespaceHasItsOwners(t *testing.T) {
	needs.Root(t)
	const base = 100000
	dir, bundle := t.TempDir(), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"one", "two", "upper", "work"} {
		must(os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	must(os.Chown(filepath.Join(dir, "upper"), base, base)) // as the snapshotter does
	must(os.WriteFile(filepath.Join(dir, "one", "roots"), nil, 0o644))
	must(os.WriteFile(filepath.Join(dir, "two", "users"), nil, 0o644))
	must(os.Chown(filepath.Join(dir, "two", "users"), 7, 8))
	target := filepath.Join(bundle, "rootfs")

	for _, m := range []*types.Mount{
		{Type: "overlay", Source: "overlay", Options: []string{
			"lowerdir=" + dir + "/one:" + dir + "/two", "upperdir=" + dir + "/upper", "workdir=" + dir + "/work",
			"uidmap=0:100000:65536", "gidmap=0:100000:65536"}},
		{Type: "bind", Source: dir + "/two", Options: []string{"rbind", "rw", "uidmap=0:100000:65536", "gidmap=0:100000:65536"}},
	} {
		before := mounts(t)
		done, err := mountRemapped([]*types.Mount{m}, bundle)
		if err != nil {
			t.Fatalf("%s: %v", m.Type, err)
		}
		if !done {
			t.Fatalf("%s: it has been left to others", m.Type)
		}
		var stat unix.Stat_t
		must(unix.Stat(filepath.Join(target, "users"), &stat))
		if stat.Uid != base+7 || stat.Gid != base+8 {
			t.Errorf("%s: a file of 7:8 is of %d:%d", m.Type, stat.Uid, stat.Gid)
		}
		if m.Type == "overlay" {
			must(unix.Stat(filepath.Join(target, "roots"), &stat))
			if stat.Uid != base || stat.Gid != base {
				t.Errorf("a file of root is of %d:%d", stat.Uid, stat.Gid)
			}
		}
		must(unix.Unmount(target, 0))
		if after := mounts(t); !slices.Equal(after, before) {
			t.Errorf("%s: mounts were\n%s\nand are\n%s", m.Type, before, after)
		}
	}
}

func mounts(t *testing.T) (lines []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, t.Name()) {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestRootWithoutMappingsIsNotRemapped(t *testing.T) {
	both := []string{"uidmap=0:1:1", "gidmap=0:1:1"}
	for _, rootfs := range [][]*types.Mount{
		nil,
		{{Type: "overlay", Options: []string{"lowerdir=/a"}}},
		{{Type: "overlay", Options: both[:1]}},
		{{Type: "bind", Options: both}, {Type: "bind"}},
	} {
		if done, err := mountRemapped(rootfs, t.TempDir()); done || err != nil {
			t.Errorf("%v: %v, %v", rootfs, done, err)
		}
	}
}

func TestMappingsOfIDs(t *testing.T) {
	got, err := parseMappings("0:100000:10,10:5:4294967295")
	want := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 10}, {ContainerID: 10, HostID: 5, Size: 4294967295}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "0", "0:1", "0:1:2:3", "a:1:2", "0:1:2,", "-1:1:1", "0:4294967296:1"} {
		if got, err := parseMappings(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

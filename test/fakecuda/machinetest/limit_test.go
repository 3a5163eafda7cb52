// SPDX-License-Identifier: Apache-2.0

package machinetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

const (
	invalidArgument = "2"
	notSupported    = "3"
	notFound        = "6"
	operatingSystem = "17"

	noLimit = "18446744073709551615"
)

func newCgroup(t *testing.T) string {
	t.Helper()
	needs.Root(t)
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs syscall.Statfs_t
		if syscall.Statfs(mount, &fs) != nil || fs.Type != 0x63677270 {
			continue
		}
		dir := must.Get(os.MkdirTemp(mount, "gpuslice-machinetest-"))(t)
		t.Cleanup(func() { os.Remove(dir) })
		return dir
	}
	t.Skip("needs a cgroup v2 mount")
	return ""
}

// in returns words that start a program in a cgroup.
func in(cgroup string) []string {
	return []string{"sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, cgroup}
}

// limited is a machine with a driver that has limits, and a process that sets them.
func limited(t *testing.T) (*machine, *process) {
	t.Helper()
	m := newMachine(t, "FAKECUDA_LIMITS=1")
	setter := m.start()
	setter.want("nvml", "0")
	return m, setter
}

func set(cgroup string, soft, hard any) string {
	return fmt.Sprintf("limit %s %v %v", cgroup, soft, hard)
}

func TestALimitIsSharedByTheProcessesOfItsCgroup(t *testing.T) {
	m, setter := limited(t)
	above := newCgroup(t)
	cgroup := filepath.Join(above, "below")
	must.Do(t, os.Mkdir(cgroup, 0o755))
	t.Cleanup(func() { os.Remove(cgroup) })
	setter.want(set(above, 0, gib), "0")

	a, b, outside := m.startOnCard(in(above)...), m.startOnCard(in(cgroup)...), m.startOnCard()
	a.want("alloc "+strconv.Itoa(512*mib), "0")
	b.want("alloc "+strconv.Itoa(512*mib), strconv.Itoa(outOfMemory)) // beside two contexts of 64 MiB
	b.want("create "+strconv.Itoa(512*mib), strconv.Itoa(outOfMemory))
	b.want("async "+strconv.Itoa(512*mib), strconv.Itoa(outOfMemory))
	outside.want("alloc "+strconv.Itoa(4*gib), "0")
	b.want("alloc "+strconv.Itoa(gib-512*mib-2*64*mib), "0")
	b.want("info", "0 "+strconv.Itoa(gib))
	setter.want("limits "+above, fmt.Sprintf("0 %d %d", gib, gib))
	// A context counts as memory.
	late := m.start(in(cgroup)...)
	late.want("init", "0")
	late.want("use 0", strconv.Itoa(outOfMemory))

	a.kill()
	b.want("alloc "+strconv.Itoa(512*mib), "0")
	setter.want(set(above, 0, 64*mib), "0") // less than is held, so no more is granted
	b.want("alloc 4096", strconv.Itoa(outOfMemory))
	b.want("free", "0")
	setter.want(set(above, 0, noLimit), "0")
	setter.want("limits "+above, notFound)
	b.want("alloc "+strconv.Itoa(2*gib), "0")
	b.kill()
	late.kill()
}

func TestALimitGoesWithItsCgroupButWhatItReservedStays(t *testing.T) {
	_, setter := limited(t)
	above := newCgroup(t)
	leaf := filepath.Join(above, "leaf")
	for range 2 {
		must.Do(t, os.Mkdir(leaf, 0o755))
		setter.want("limits "+leaf, notFound)
		setter.want(set(leaf, gib, 2*gib), "0")
		setter.want("limits "+leaf, fmt.Sprintf("%d %d 0", gib, 2*gib))
		setter.want("limits "+above, fmt.Sprintf("%d %s 0", gib, noLimit))
		setter.want(set(leaf, 0, 2*gib), "0")
		setter.want("limits "+above, notFound)
		must.Do(t, os.Remove(leaf))
	}
	must.Do(t, os.Mkdir(leaf, 0o755))
	setter.want(set(leaf, gib, gib), "0")
	must.Do(t, os.Remove(leaf))
	setter.want("limits "+leaf, operatingSystem)
	setter.want("limits "+above, fmt.Sprintf("%d %s 0", gib, noLimit))
}

func TestLimitsThatMeanNothingAreRefused(t *testing.T) {
	_, setter := limited(t)
	cgroup := newCgroup(t)
	for command, want := range map[string]string{
		set(cgroup, 2, 1):                          invalidArgument,
		set(cgroup, 0, 9*gib):                      invalidArgument,
		set(cgroup+"-not", 0, gib):                 operatingSystem,
		set("/tmp", 0, gib):                        operatingSystem,
		set(strings.TrimPrefix(cgroup, "/"), 0, 1): operatingSystem,
	} {
		setter.want(command, want)
	}
	setter.want("limits "+cgroup, notFound)
	m := newMachine(t)
	old := m.start()
	old.want("nvml", "0")
	old.want(set(cgroup, 0, gib), notSupported)
	old.want("limits "+cgroup, notSupported)
}

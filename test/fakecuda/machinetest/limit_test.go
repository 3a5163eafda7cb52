// SPDX-License-Identifier: Apache-2.0

package machinetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const (
	notFound = "6"
	noLimit  = "18446744073709551615"
)

func newCgroup(t *testing.T) string {
	t.Helper()
	needs.Root(t)
	mount := testhost.UnifiedCgroups()
	if mount == "" {
		t.Skip("needs a cgroup v2 mount")
	}
	dir := must.Get(os.MkdirTemp(mount, "gpuslice-machinetest-"))(t)
	t.Cleanup(func() { os.Remove(dir) })
	return dir
}

// in returns words that start a program in a cgroup.
func in(cgroup string) []string {
	return []string{"sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, cgroup}
}

func set(cgroup string, bytes any) string {
	return fmt.Sprintf("limit %s %v", cgroup, bytes)
}

func TestALimitIsSharedByTheProcessesOfItsCgroup(t *testing.T) {
	m := newMachine(t, "FAKECUDA_LIMITS=1")
	setter := m.start()
	setter.want("nvml", "0")
	above := newCgroup(t)
	cgroup := filepath.Join(above, "below")
	must.Do(t, os.Mkdir(cgroup, 0o755))
	t.Cleanup(func() { os.Remove(cgroup) })
	setter.want(set(above, gib), "0")

	a, b, outside := m.startOnCard(in(above)...), m.startOnCard(in(cgroup)...), m.startOnCard()
	a.want("alloc "+strconv.Itoa(512*mib), "0")
	b.want("alloc "+strconv.Itoa(512*mib), strconv.Itoa(outOfMemory)) // beside two contexts of 64 MiB
	b.want("create "+strconv.Itoa(512*mib), strconv.Itoa(outOfMemory))
	b.want("async "+strconv.Itoa(512*mib), strconv.Itoa(outOfMemory))
	outside.want("alloc "+strconv.Itoa(4*gib), "0")
	b.want("alloc "+strconv.Itoa(gib-512*mib-2*64*mib), "0")
	b.want("info", "0 "+strconv.Itoa(gib))
	setter.want("limits "+above, fmt.Sprintf("%d %d", gib, gib))
	// A context counts as memory.
	late := m.start(in(cgroup)...)
	late.want("init", "0")
	late.want("use 0", strconv.Itoa(outOfMemory))

	a.kill()
	b.want("alloc "+strconv.Itoa(512*mib), "0")
	setter.want(set(above, 64*mib), "0") // less than is held, so no more is granted
	b.want("alloc 4096", strconv.Itoa(outOfMemory))
	b.want("free", "0")
	setter.want(set(above, noLimit), "0")
	setter.want("limits "+above, notFound)
	b.want("alloc "+strconv.Itoa(2*gib), "0")
	b.kill()
	late.kill()
}

// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/needs"
)

func TestNodesOfGPUsAreKnownByTheirNumbers(t *testing.T) {
	needs.Root(t)
	dir := t.TempDir()
	node := func(name string, mode, major, minor uint32) {
		t.Helper()
		if err := unix.Mknod(filepath.Join(dir, name), mode|0o600, int(unix.Mkdev(major, minor))); err != nil {
			t.Fatal(err)
		}
	}
	read := func() (n Nodes) {
		t.Helper()
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := n.read(f); err != nil {
			t.Fatal(err)
		}
		slices.Sort(n.Minors)
		return n
	}
	node("nvidia0", unix.S_IFCHR, GPUMajor, 0)
	node("again", unix.S_IFCHR, GPUMajor, 0)
	node("last", unix.S_IFCHR, GPUMajor, MaxGPUMinor)
	node("nvidia1", unix.S_IFCHR, GPUMajor, MaxGPUMinor+1)
	node("nvidia2", unix.S_IFBLK, GPUMajor, 2)
	node("nvidia3", unix.S_IFCHR, GPUMajor+1, 3)
	if n := read(); !slices.Equal(n.Minors, []uint32{0, MaxGPUMinor}) || n.Unclear {
		t.Errorf("%+v", n)
	}
	node("dxg", unix.S_IFCHR, 10, 125)
	if n := read(); !n.Unclear {
		t.Errorf("with the node of WSL: %+v", n)
	}
}

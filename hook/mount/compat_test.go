// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
)

// test/e2e/platforms_test.go tests the library with the loader of real containers.
func TestTheLibraryFor32BitProgramsHasASonameAndNoCode(t *testing.T) {
	const soname = "/.gpuslice/libgpuslice.so"
	file, err := elf.NewFile(bytes.NewReader(emptyLibrary32(soname)))
	if err != nil {
		t.Fatal(err)
	}
	if file.Class != elf.ELFCLASS32 || file.Machine != elf.EM_386 || file.Type != elf.ET_DYN {
		t.Errorf("%+v", file.FileHeader)
	}
	var dynamic, stack bool
	for _, p := range file.Progs {
		dynamic = dynamic || p.Type == elf.PT_DYNAMIC
		stack = stack || p.Type == elf.PT_GNU_STACK
		if p.Flags&elf.PF_X != 0 {
			t.Errorf("%v is executable", p.Type)
		}
	}
	if !dynamic || !stack {
		t.Errorf("segments: %+v", file.Progs)
	}
	if !bytes.HasSuffix(emptyLibrary32(soname), []byte("\x00"+soname+"\x00")) {
		t.Error("it does not end with its soname")
	}
}

// The quota depends on the plain line, so it must be present and last.
func TestPlainPreloadLineIsAlwaysPresent(t *testing.T) {
	plain := filepath.Join(api.ContainerDir, api.LibraryName)
	for has32, want := range map[bool]int{false: 1, true: 2} {
		lines := strings.Split(strings.TrimSuffix((&Container{has32: has32}).preloadLines(), "\n"), "\n")
		if len(lines) != want || lines[want-1] != plain {
			t.Errorf("with 32-bit programs: %v: %q", has32, lines)
		}
	}
}

func TestPlatformDirectoriesLeadToTheLibrary(t *testing.T) {
	dir := t.TempDir()
	c := &Container{has32: true}
	do(t, os.WriteFile(filepath.Join(dir, api.LibraryName), []byte("the interceptor"), 0o644), c.layPlatforms(dir))
	for _, name := range platforms64 {
		text, err := os.ReadFile(filepath.Join(dir, name, api.LibraryName))
		if err != nil || string(text) != "the interceptor" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	for _, name := range append([]string{platform32}, platforms32...) {
		text, err := os.ReadFile(filepath.Join(dir, name, api.LibraryName))
		if err != nil || !bytes.HasPrefix(text, []byte("\x7fELF\x01")) {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if err := c.layPlatforms(dir); err == nil {
		t.Error("what is there is taken over")
	}
}

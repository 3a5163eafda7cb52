// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
)

// A 32-bit program in an x86-64 image cannot load the interceptor, and need not, since there is no 32-bit CUDA driver. But its
// loader would complain about the wrong ELF class of the library in ld.so.preload. So the file has two lines:
//
//	/.gpuslice/$PLATFORM/libgpuslice.so
//	/.gpuslice/libgpuslice.so
//
// The loader replaces $PLATFORM by the kernel's name of the platform. In a 32-bit program i686 leads to an empty library with the
// second line as its DT_SONAME, and the loader skips a name that is the soname of a loaded library. In a 64-bit program x86_64
// leads to the interceptor, and the second line is the same file. The quota depends on the second line: on an unknown platform
// the loader complains about the first line and loads the interceptor by the second.

// loader32 is the loader of all dynamically linked 32-bit x86 programs.
const loader32 = "lib/ld-linux.so.2"

// Values of $PLATFORM in glibc: AT_PLATFORM from the kernel (arch/x86/include/asm/elf.h), or haswell and xeon_phi in glibc 2.26
// to 2.36 on such CPUs (sysdeps/x86/cpu-features.c).
var (
	platforms64 = []string{"x86_64", "haswell", "xeon_phi"}
	platform32  = "i686"
	platforms32 = []string{"i386", "i486", "i586"} // links to platform32
)

// inspectLoaders checks whether the image has programs of Nix, or 32-bit ones. On errors it assumes no 32-bit ones: at worst their loader
// complains.
func (c *Container) inspectLoaders() {
	if store, err := openObject(c.root.fd, nixStore, 0, inRoot); !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
		store.close()
		c.preloads = append(c.preloads, &preload{name: nixPreloadName})
	}
	if runtime.GOARCH != "amd64" {
		return
	}
	loader, err := openObject(c.root.fd, loader32, 0, inRoot)
	if err != nil {
		return
	}
	defer loader.close()
	c.has32 = loader.isRegular()
}

// preloadLines returns our lines of a preload file.
func (c *Container) preloadLines() string {
	library := filepath.Join(api.ContainerDir, api.LibraryName) + "\n"
	if !c.has32 {
		return library
	}
	return filepath.Join(api.ContainerDir, "$PLATFORM", api.LibraryName) + "\n" + library
}

// layPlatforms creates the targets of $PLATFORM in the directory that becomes api.ContainerDir.
func (c *Container) layPlatforms(dir string) (err error) {
	if !c.has32 {
		return nil
	}
	for _, name := range platforms64 {
		err = errors.Join(err, os.Symlink(".", filepath.Join(dir, name)))
	}
	for _, name := range platforms32 {
		err = errors.Join(err, os.Symlink(platform32, filepath.Join(dir, name)))
	}
	into := filepath.Join(dir, platform32)
	err = errors.Join(err, os.Mkdir(into, 0o755),
		write(filepath.Join(into, api.LibraryName), emptyLibrary32(filepath.Join(api.ContainerDir, api.LibraryName))))
	if err != nil {
		return fmt.Errorf("what 32-bit programs are to load: %w", err)
	}
	return nil
}

// emptyLibrary32 returns an i386 shared library with a soname, without symbols and code (System V ABI, chapters 4 and 5).
func emptyLibrary32(soname string) []byte {
	const (
		headerSize, programSize = 52, 32
		programs                = 3
		dynamicAt               = headerSize + programs*programSize
		dynamicSize             = 7 * 8
		hashAt                  = dynamicAt + dynamicSize
		symbolsAt               = hashAt + 4*4
		stringsAt               = symbolsAt + 16
	)
	names := "\x00" + soname + "\x00"
	size := uint32(stringsAt + len(names))
	words := func(b []byte, list ...uint32) []byte {
		for _, w := range list {
			b = binary.LittleEndian.AppendUint32(b, w)
		}
		return b
	}
	// ELFCLASS32, little-endian; ET_DYN, EM_386.
	b := append(make([]byte, 0, size), 0x7f, 'E', 'L', 'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 3, 0)
	b = words(b, 1, 0, headerSize, 0, 0, headerSize|programSize<<16, programs, 0)
	// PT_GNU_STACK keeps the stack from being executable. No segment is executable, so a noexec mount may hold the file. PT_LOAD
	// is writable because the loader relocates the dynamic section in place.
	b = words(b,
		unix.PT_LOAD, 0, 0, 0, size, size, 4|2, 0x1000,
		unix.PT_DYNAMIC, dynamicAt, dynamicAt, dynamicAt, dynamicSize, dynamicSize, 4|2, 4,
		unix.PT_GNU_STACK, 0, 0, 0, 0, 0, 4|2, 16)
	// DT_SONAME, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_NULL
	b = words(b, 14, 1, 4, hashAt, 5, stringsAt, 6, symbolsAt, 10, uint32(len(names)), 11, 16, 0, 0)
	b = words(b, 1, 1, 0, 0) // the hash table: one bucket with the null symbol
	b = words(b, 0, 0, 0, 0) // the null symbol
	return append(b, names...)
}

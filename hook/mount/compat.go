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

// 32-bit programs in an image of x86-64. They cannot load the interceptor, and need not, since there is no 32-bit CUDA
// driver; but their loader would say in each of them that what ld.so.preload names is of the wrong ELF class.
//
// So it gets two lines:
//
//	/.gpuslice/$PLATFORM/libgpuslice.so
//	/.gpuslice/libgpuslice.so
//
// The loader puts the kernel's name of the platform into the first: i686 leads a 32-bit program to a library
// that is empty but for its DT_SONAME, which is the second line. A name that is the soname of a library
// that is loaded is not looked up any more, so the second line is passed over without a word.
// x86_64 leads a 64-bit program to the interceptor, and so does the second line, which the loader finds to be the same
// file. It is the second line that the quota rests on: under a platform that is not known here the first
// is complained of, and the interceptor is loaded all the same.

// loader32 is where every 32-bit program of x86 that is linked dynamically has its loader.
const loader32 = "lib/ld-linux.so.2"

// What glibc makes of $PLATFORM: AT_PLATFORM, as the kernel gives it (arch/x86/include/asm/elf.h); or, of glibc 2.26
// to 2.36 on such CPUs, haswell and xeon_phi (sysdeps/x86/cpu-features.c).
var (
	platforms64 = []string{"x86_64", "haswell", "xeon_phi"}
	platform32  = "i686"
	platforms32 = []string{"i386", "i486", "i586"} // links to platform32
)

// inspectLoader32 looks whether the image has 32-bit programs. One that is not sure to has none: its
// programs then get the one line, and the worst is the loader's complaint.
func (c *Container) inspectLoader32() {
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

// preloadLines are ours of the container's ld.so.preload.
func (c *Container) preloadLines() string {
	library := filepath.Join(api.ContainerDir, api.LibraryName) + "\n"
	if !c.has32 {
		return library
	}
	return filepath.Join(api.ContainerDir, "$PLATFORM", api.LibraryName) + "\n" + library
}

// layPlatforms makes what the first of two lines leads to, in the directory that becomes api.ContainerDir.
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

// emptyLibrary32 returns a shared library of i386 that has a soname and nothing else: no symbol, no code.
// (System V ABI, chapters 4 and 5.)
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
	// Without the last the loader would make the program's stack executable. Nothing here is, so that the file may lie on
	// a mount that is noexec. PT_LOAD is writable, since the loader relocates the dynamic section in place.
	b = words(b,
		unix.PT_LOAD, 0, 0, 0, size, size, 4|2, 0x1000,
		unix.PT_DYNAMIC, dynamicAt, dynamicAt, dynamicAt, dynamicSize, dynamicSize, 4|2, 4,
		unix.PT_GNU_STACK, 0, 0, 0, 0, 0, 4|2, 16)
	// DT_SONAME, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_NULL
	b = words(b, 14, 1, 4, hashAt, 5, stringsAt, 6, symbolsAt, 10, uint32(len(names)), 11, 16, 0, 0)
	b = words(b, 1, 1, 0, 0) // the hash table: one bucket, with the one symbol that is none
	b = words(b, 0, 0, 0, 0) // which is this
	return append(b, names...)
}

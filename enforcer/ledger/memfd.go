// SPDX-License-Identifier: Apache-2.0

package ledger

/*
#include "native.h"
*/
import "C"

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memfdName is the name in /proc/PID/maps, for people. Other memfds may have the same name.
const memfdName = "gpuslice"

// seals keep a process of the slice from shrinking the file. Otherwise the next read of the page would kill the reader with SIGBUS, first
// of all the enforcer.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

func Create(name [16]byte) (*Ledger, error) {
	fd, err := unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot create the ledger's memfd: %w", err)
	}
	file := os.NewFile(uintptr(fd), "ledger")
	if err := file.Truncate(int64(Size)); err != nil {
		file.Close()
		return nil, fmt.Errorf("cannot resize the ledger's memfd to %d bytes: %w", Size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		file.Close()
		return nil, fmt.Errorf("cannot seal the ledger's memfd: %w", err)
	}
	l, err := mapFile(file)
	if err != nil {
		return nil, err
	}
	C.ledger_format(l.page, (*C.uint8_t)(unsafe.Pointer(&name[0])))
	l.id.Name = name
	return l, nil
}

// Open maps an existing ledger. It checks that the file is that of id, that it is sealed, and its size. It owns the file, and closes it on
// failure.
func Open(file *os.File, id Identity) (*Ledger, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		file.Close()
		return nil, fmt.Errorf("cannot stat a ledger's descriptor: %w", err)
	}
	got, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || got&seals != seals {
		file.Close()
		return nil, fmt.Errorf("%w: the file is not sealed", ErrDamaged)
	}
	if st.Dev != id.Dev || st.Ino != id.Inode || uint64(st.Size) != Size {
		file.Close()
		return nil, fmt.Errorf("%w: not the ledger's file", ErrDamaged)
	}
	l, err := mapFile(file)
	if err != nil {
		return nil, err
	}
	l.id.Name = id.Name
	return l, nil
}

func mapFile(file *os.File) (*Ledger, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		file.Close()
		return nil, fmt.Errorf("cannot stat the ledger's memfd: %w", err)
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, int(Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("cannot map the ledger: %w", err)
	}
	l := &Ledger{
		mem: mem, page: (*C.struct_ledger)(unsafe.Pointer(&mem[0])),
		id: Identity{Dev: st.Dev, Inode: st.Ino},
	}
	// Keep no descriptor if the mapping can be opened: thousands of slices would use up the descriptors.
	if again, err := reopen(l.link(), l.id); err == nil {
		again.Close()
		file.Close()
	} else { // without CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE, most likely
		l.file = file
	}
	return l, nil
}

// link returns the kernel's link to the mapping in /proc/self/map_files. Its range is exact: the kernel joins two mappings only if the
// second continues the first in the same file, and splits a mapping only by system calls that the enforcer does not make on it.
func (l *Ledger) link() string {
	begin, page := uintptr(unsafe.Pointer(l.page)), uintptr(os.Getpagesize())
	return fmt.Sprintf("/proc/self/map_files/%x-%x", begin, begin+(uintptr(Size)+page-1)/page*page)
}

// File returns a new descriptor of the memfd, for a process that attaches. The caller closes it.
func (l *Ledger) File() (*os.File, error) {
	if l.file == nil {
		return reopen(l.link(), l.id)
	}
	fd, err := unix.FcntlInt(l.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot duplicate the ledger's descriptor: %w", err)
	}
	return os.NewFile(uintptr(fd), "ledger"), nil
}

// Close unmaps the ledger. Mappings of other processes remain.
func (l *Ledger) Close() error {
	err := unix.Munmap(l.mem)
	if l.file != nil {
		err = errors.Join(err, l.file.Close())
	}
	return err
}

// Wanted is a set of ledgers to search for, by the device and inode of their files as /proc/PID/maps prints them.
type Wanted map[string]Identity

// Add adds a ledger.
func (w Wanted) Add(id Identity) {
	w[fmt.Sprintf("%02x:%02x %d", unix.Major(id.Dev), unix.Minor(id.Dev), id.Inode)] = id
}

// Found is a ledger that a process has mapped.
type Found struct {
	Identity Identity
	Ledger   *Ledger // nil if it was not opened
	Err      error   // why it could not be opened; os.ErrNotExist if the process has unmapped or moved it
}

// Find returns the wanted ledgers that a process has mapped, and opens those that open selects. So a restarted enforcer gets back the pages
// that its slices continued to charge. It fails if the process has no memory, since it has exited.
//
// A hostile process may map a look-alike. Device and inode prove that it is the same file, as long as any process has it open or mapped. A
// process that could forge the contents could write to the real page, too.
func Find(pid int, wanted Wanted, open func(Identity) bool) (all []Found, err error) {
	err = mappings(pid, wanted, func(link string, id Identity) bool {
		if slices.ContainsFunc(all, func(f Found) bool { return f.Identity == id }) {
			return true
		}
		f := Found{Identity: id}
		if open(id) {
			var file *os.File
			if file, f.Err = reopen(link, id); f.Err == nil {
				f.Ledger, f.Err = Open(file, id)
			}
		}
		all = append(all, f)
		return len(all) < len(wanted)
	})
	return all, err
}

// Mapped reports whether a process has mapped the ledger. It fails if the process has no memory, since it has exited.
func Mapped(pid int, id Identity) (mapped bool, err error) {
	only := make(Wanted)
	only.Add(id)
	err = mappings(pid, only, func(string, Identity) bool {
		mapped = true
		return false
	})
	return mapped, err
}

// mappings calls f for each mapping of the start of a wanted file, with its link in map_files, until f returns false. Ignore the rest of
// the kernel's line, above all the name: the process may have chosen it.
func mappings(pid int, wanted Wanted, f func(link string, id Identity) bool) error {
	some, err := mappingsOf(pid, wanted, f)
	if some || err != nil {
		return err
	}
	// After the exit of the first thread, the other threads still have the memory.
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, task := range tasks {
		if tid, err := strconv.Atoi(task.Name()); err == nil && tid != pid {
			some, err := mappingsOf(tid, wanted, f)
			if some || err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("process %d has no memory: %w", pid, os.ErrNotExist)
}

// mappingsOf reads the mappings of one thread. some reports whether it has any memory.
func mappingsOf(tid int, wanted Wanted, f func(link string, id Identity) bool) (some bool, err error) {
	defer func() {
		if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) { // it has exited in between
			some, err = false, nil
		}
	}()
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", tid))
	if err != nil {
		return false, err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		// 7f0c4c000000-7f0c4c441000 rw-s 00000000 00:01 2061  /memfd:gpuslice (deleted)
		some = true
		fields := bytes.SplitN(lines.Bytes(), []byte(" "), 4)
		if len(fields) < 4 || !bytes.Equal(fields[2], []byte("00000000")) {
			continue
		}
		device, rest, _ := bytes.Cut(fields[3], []byte(" "))
		inode, _, _ := bytes.Cut(rest, []byte(" "))
		id, ok := wanted[string(fields[3][:len(device)+1+len(inode)])]
		if ok && !f(fmt.Sprintf("/proc/%d/map_files/%s", tid, fields[0]), id) {
			return true, nil
		}
	}
	return some, lines.Err()
}

// reopen opens the file behind a link of map_files. It opens it with O_PATH first and checks it, since the process may have replaced the
// mapping, and opening a device can have side effects.
func reopen(link string, id Identity) (*os.File, error) {
	place, err := unix.Open(link, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: link, Err: err}
	}
	defer unix.Close(place)
	var st unix.Stat_t
	if err := unix.Fstat(place, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: link, Err: err}
	}
	if st.Dev != id.Dev || st.Ino != id.Inode {
		return nil, fmt.Errorf("%w: the mapping is of another file", ErrDamaged)
	}
	self := fmt.Sprintf("/proc/self/fd/%d", place)
	fd, err := unix.Open(self, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: link, Err: err}
	}
	return os.NewFile(uintptr(fd), strings.TrimPrefix(link, "/proc/")), nil
}

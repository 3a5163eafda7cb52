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

// memfdName is what /proc/PID/maps shows of a ledger. It is for people: many memfds may bear it.
const memfdName = "gpuslice"

// Without these, a process of the slice could shrink the file, and the next process that reads the page would die of
// SIGBUS: first of all the enforcer.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Create makes a new ledger.
func Create(name [16]byte) (*Ledger, error) {
	fd, err := unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("create the ledger's memfd: %w", err)
	}
	file := os.NewFile(uintptr(fd), "ledger")
	if err := file.Truncate(int64(Size)); err != nil {
		file.Close()
		return nil, fmt.Errorf("size the ledger's memfd to %d bytes: %w", Size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		file.Close()
		return nil, fmt.Errorf("seal the ledger's memfd: %w", err)
	}
	l, err := mapFile(file)
	if err != nil {
		return nil, err
	}
	C.ledger_format(l.page, (*C.uint8_t)(unsafe.Pointer(&name[0])))
	l.id.Name = name
	return l, nil
}

// Open maps a ledger that exists, after seeing that it is id's, that it cannot shrink and that it is a ledger.
// It takes the file, and closes it if it fails.
func Open(file *os.File, id Identity) (*Ledger, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		file.Close()
		return nil, fmt.Errorf("stat a ledger's descriptor: %w", err)
	}
	got, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || got&seals != seals {
		file.Close()
		return nil, fmt.Errorf("%w: the file is not sealed", ErrDamaged)
	}
	if st.Dev != id.Dev || st.Ino != id.Inode || uint64(st.Size) != Size {
		file.Close()
		return nil, fmt.Errorf("%w: the file is another one", ErrDamaged)
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
		return nil, fmt.Errorf("stat the ledger's memfd: %w", err)
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, int(Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("map the ledger: %w", err)
	}
	l := &Ledger{
		mem: mem, page: (*C.struct_ledger)(unsafe.Pointer(&mem[0])),
		id: Identity{Dev: st.Dev, Inode: st.Ino},
	}
	// Who has thousands of slices has no descriptor to spare for each.
	if again, err := reopen(l.link(), l.id); err == nil {
		again.Close()
		file.Close()
	} else { // without CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE, most likely
		l.file = file
	}
	return l, nil
}

// link is the kernel's name of the mapping. It is of exactly this range, from page to page: the kernel joins two mappings
// only where the second goes on in the same file, and divides one only by calls that nobody makes for a ledger.
func (l *Ledger) link() string {
	begin, page := uintptr(unsafe.Pointer(l.page)), uintptr(os.Getpagesize())
	return fmt.Sprintf("/proc/self/map_files/%x-%x", begin, begin+(uintptr(Size)+page-1)/page*page)
}

// File is a new descriptor of the memfd, to be sent to a process that attaches. Whoever asks closes it.
func (l *Ledger) File() (*os.File, error) {
	if l.file == nil {
		return reopen(l.link(), l.id)
	}
	fd, err := unix.FcntlInt(l.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate the ledger's descriptor: %w", err)
	}
	return os.NewFile(uintptr(fd), "ledger"), nil
}

// Close unmaps the ledger. Processes that have it mapped keep it.
func (l *Ledger) Close() error {
	err := unix.Munmap(l.mem)
	if l.file != nil {
		err = errors.Join(err, l.file.Close())
	}
	return err
}

// Wanted are ledgers to find in many processes, by how /proc/PID/maps writes their files.
type Wanted map[string]Identity

// Add makes it one more.
func (w Wanted) Add(id Identity) {
	w[fmt.Sprintf("%02x:%02x %d", unix.Major(id.Dev), unix.Minor(id.Dev), id.Inode)] = id
}

// Found is a ledger that a process has mapped.
type Found struct {
	Identity Identity
	Ledger   *Ledger // nil if it was not to be opened
	Err      error   // why it could not be opened; os.ErrNotExist if the process has it no more, or elsewhere
}

// Find says which of the wanted ledgers a process has mapped, and opens those that open says: so a restarted enforcer comes back to
// the pages that its slices went on charging. It is an error if the process has no memory at all: it has ended.
//
// The process may be hostile and map a look-alike: device and inode say that it is the very file, for as long as
// any process has it; and a process that could forge the rest can write into the real page as well.
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

// Mapped says whether a process has the ledger id. It is an error if the process has no memory at all: it has ended.
func Mapped(pid int, id Identity) (mapped bool, err error) {
	only := make(Wanted)
	only.Add(id)
	err = mappings(pid, only, func(string, Identity) bool {
		mapped = true
		return false
	})
	return mapped, err
}

// mappings calls f for each mapping that is the beginning of one of these files, as long as f says so, with its link in map_files. What
// else the kernel says of a mapping, its name above all, the process may have chosen.
func mappings(pid int, wanted Wanted, f func(link string, id Identity) bool) error {
	some, err := mappingsOf(pid, wanted, f)
	if some || err != nil {
		return err
	}
	// The first thread may have exited, and others go on: they have the memory.
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

// mappingsOf is mappings by one thread. It says whether that has any memory.
func mappingsOf(tid int, wanted Wanted, f func(link string, id Identity) bool) (some bool, err error) {
	defer func() {
		if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) { // it has ended meanwhile
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
		id, is := wanted[string(fields[3][:len(device)+1+len(inode)])]
		if is && !f(fmt.Sprintf("/proc/%d/map_files/%s", tid, fields[0]), id) {
			return true, nil
		}
	}
	return some, lines.Err()
}

// reopen opens the file behind a link of map_files. First only as a place: the process may have put something
// else there meanwhile, and to open a device can have effects.
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
		return nil, fmt.Errorf("%w: another file is mapped there", ErrDamaged)
	}
	self := fmt.Sprintf("/proc/self/fd/%d", place)
	fd, err := unix.Open(self, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: link, Err: err}
	}
	return os.NewFile(uintptr(fd), strings.TrimPrefix(link, "/proc/")), nil
}

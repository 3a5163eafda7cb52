// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// Subordinate says whether a process has its uid from a user namespace only: a namespace's uids are ranges of which whoever made it may have
// thousands (subuid(5)). One with the uid of who made the namespace is that user himself. Namespaces are counted from the caller's: who is
// not below it is not known, which is an error.
func Subordinate(pid int, uid uint32) (bool, error) {
	guard.MayWait("a process's files")
	own, err := os.Stat("/proc/self/ns/user")
	if err != nil {
		return false, err
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		return false, vanished(pid, err)
	}
	for owner := uid; ; {
		info, err := ns.Stat()
		if err == nil && os.SameFile(own, info) {
			ns.Close()
			return owner != uid, nil
		}
		if err == nil {
			owner, err = madeBy(ns)
		}
		parent := -1
		if err == nil {
			parent, err = unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_PARENT) // EPERM: it is not below the caller's
		}
		ns.Close()
		if err != nil {
			return false, fmt.Errorf("the user namespace of process %d: %w", pid, err)
		}
		ns = os.NewFile(uintptr(parent), "user namespace")
	}
}

// PIDNamespace is the inode of the caller's pid namespace, in which all pids here are.
func PIDNamespace() (uint64, error) {
	info, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		return 0, err
	}
	return info.Sys().(*syscall.Stat_t).Ino, nil
}

// PIDNamespaces are the inodes of the pid namespaces that a process is in: first its own, then each that is around it, up to the caller's.
func PIDNamespaces(pid int) (inodes []uint64, err error) {
	guard.MayWait("a process's files")
	own, err := PIDNamespace()
	if err != nil {
		return nil, err
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return nil, vanished(pid, err)
	}
	for {
		info, err := ns.Stat()
		if err != nil {
			ns.Close()
			return nil, err
		}
		inode := info.Sys().(*syscall.Stat_t).Ino
		inodes = append(inodes, inode)
		if inode == own {
			ns.Close()
			return inodes, nil
		}
		parent, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_PARENT)
		ns.Close()
		if err != nil {
			return nil, fmt.Errorf("the pid namespaces of process %d: %w", pid, err)
		}
		ns = os.NewFile(uintptr(parent), "pid namespace")
	}
}

// madeBy is the user who made a user namespace (ioctl_nsfs(2)).
func madeBy(ns *os.File) (uid uint32, err error) {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, ns.Fd(), unix.NS_GET_OWNER_UID, uintptr(unsafe.Pointer(&uid)))
	if errno != 0 {
		return 0, errno
	}
	return uid, nil
}

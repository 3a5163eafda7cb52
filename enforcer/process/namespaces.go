// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// PIDNamespace returns the inode of the caller's pid namespace. All pids in this package are pids of that namespace.
func PIDNamespace() (uint64, error) {
	info, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		return 0, err
	}
	return info.Sys().(*syscall.Stat_t).Ino, nil
}

// PIDNamespaces returns the inodes of a process's pid namespaces, from its own outwards to the caller's.
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
			return nil, fmt.Errorf("cannot read the pid namespaces of process %d: %w", pid, err)
		}
		ns = os.NewFile(uintptr(parent), "pid namespace")
	}
}

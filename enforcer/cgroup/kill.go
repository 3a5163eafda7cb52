// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// ErrNoKill means that the kernel has no cgroup.kill: before Linux 5.14, and on v1.
var ErrNoKill = errors.New("the kernel cannot kill a cgroup as a whole: cgroup v2 and Linux 5.14 are needed")

// Kill sends SIGKILL to all processes in p and below it, including those being forked. It does nothing if the cgroup is gone or its path
// was reused. On Linux 6.18 one process once remained in a cgroup in which processes forked all the time: a caller that needs an empty cgroup has
// to check, and to call Kill again.
func Kill(p Path) error {
	guard.MayWait("a cgroup's file")
	// Open cgroup.kill below the same directory as the check of the inode.
	dir, err := unix.Open(p.Dir(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot kill the processes of %s: %w", p, err)
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return fmt.Errorf("cannot kill the processes of %s: %w", p, err)
	}
	if p.Inode != 0 && st.Ino != p.Inode {
		return nil
	}
	fd, err := unix.Openat(dir, "cgroup.kill", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return ErrNoKill
	}
	if err != nil {
		return fmt.Errorf("cannot kill the processes of %s: %w", p, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte("1")); err != nil && !isGone(err) {
		return fmt.Errorf("cannot kill the processes of %s: %w", p, err)
	}
	return nil
}

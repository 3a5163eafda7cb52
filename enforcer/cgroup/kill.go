// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// ErrNoKill says that the kernel cannot kill a cgroup as a whole, and so has no file for that: one before Linux 5.14, and v1.
var ErrNoKill = errors.New("the kernel cannot kill that cgroup as a whole")

// Kill sends SIGKILL to all processes in p and below it, also those that are just being forked. Where they fork without end one
// was seen to remain, once (Linux 6.18): a caller that wants a cgroup empty checks, and kills again. A cgroup that is gone, or whose path
// another one has now, has none.
func Kill(p Path) error {
	guard.MayWait("a cgroup's file")
	// Its file is opened below the very directory that was checked.
	dir, err := unix.Open(p.Dir(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill %s: %w", p, err)
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return fmt.Errorf("kill %s: %w", p, err)
	}
	if p.Inode != 0 && st.Ino != p.Inode {
		return nil
	}
	fd, err := unix.Openat(dir, "cgroup.kill", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return ErrNoKill
	}
	if err != nil {
		return fmt.Errorf("kill %s: %w", p, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte("1")); err != nil && !gone(err) {
		return fmt.Errorf("kill %s: %w", p, err)
	}
	return nil
}

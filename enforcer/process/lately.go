// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// lately are the identities of processes of which a Handle was made, so that one who asks again and again is not looked up in /proc
// each time: by the inode of their pidfds, which is one process's alone until the next boot (pidfs, from Linux 6.9 on).
var lately identities

type identities struct {
	mu guard.Mutex[guard.Leaf] // guards by
	by map[uint64]Identity
}

// maxLately is of how many processes they are kept: about 100 KiB. Then all are forgotten.
const maxLately = 1024

// unique says whether each process's pidfds have an inode of its own.
var unique = sync.OnceValue(func() bool {
	const pidfs = 0x50494446
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && st.Type == pidfs
})

// of is the identity of the process that a pidfd is of, if it is kept. The process may have ended.
func (i *identities) of(pidfd int) (id Identity, known bool) {
	var st unix.Stat_t
	if !unique() || unix.Fstat(pidfd, &st) != nil {
		return id, false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	id, known = i.by[st.Ino]
	return id, known
}

// keep keeps it.
func (i *identities) keep(pidfd int, id Identity) {
	var st unix.Stat_t
	if !unique() || unix.Fstat(pidfd, &st) != nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.by == nil || len(i.by) >= maxLately {
		i.by = make(map[uint64]Identity)
	}
	i.by[st.Ino] = id
}

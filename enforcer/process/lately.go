// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// identityCache caches the identities of processes by the inodes of their pidfds, so that repeated requests of one process do not read /proc each
// time. Such an inode is unique to a process until reboot (pidfs, since Linux 6.9).
var identityCache identities

type identities struct {
	mu      guard.Mutex[guard.Leaf] // guards by
	byInode map[uint64]Identity
}

// cacheCapacity is the capacity of the cache, about 100 KiB. A full cache is cleared.
const cacheCapacity = 1024

// pidfdInodesAreUnique reports whether each process's pidfds have an inode of their own.
var pidfdInodesAreUnique = sync.OnceValue(func() bool {
	const pidfs = 0x50494446
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && st.Type == pidfs
})

// of returns the cached identity of a pidfd's process, which may have exited.
func (i *identities) of(pidfd int) (id Identity, known bool) {
	var st unix.Stat_t
	if !pidfdInodesAreUnique() || unix.Fstat(pidfd, &st) != nil {
		return id, false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	id, known = i.byInode[st.Ino]
	return id, known
}

// keep adds an identity to the cache.
func (i *identities) keep(pidfd int, id Identity) {
	var st unix.Stat_t
	if !pidfdInodesAreUnique() || unix.Fstat(pidfd, &st) != nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.byInode == nil || len(i.byInode) >= cacheCapacity {
		i.byInode = make(map[uint64]Identity)
	}
	i.byInode[st.Ino] = id
}

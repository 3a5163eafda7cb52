// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/unixsocket"
)

// backlog bounds those who wait to be accepted; the next connect() waits in the peer.
const backlog = 128

// Place says where a slice's attach socket is, and who may connect.
type Place struct {
	Dir  string
	Mode uint32
	// UID and GID own the socket; -1 leaves them.
	UID, GID int
}

// listen makes the socket under a new name, with its final mode, and renames it over an old one: a
// process that connects meanwhile finds the old or the new, never none and never one that it may not use.
func listen(p Place) (*net.UnixListener, error) {
	// Relative to a descriptor of the directory: the address of a Unix socket has 108 bytes, a path may have more;
	// and what the directory is cannot change between the steps.
	dir, err := unix.Open(p.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: p.Dir, Err: err}
	}
	defer unix.Close(dir)
	const fresh = "." + api.AttachSocketName
	if err := unix.Unlinkat(dir, fresh, 0); err != nil && err != unix.ENOENT {
		return nil, &os.PathError{Op: "unlink", Path: p.Dir + "/" + fresh, Err: err}
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), p.Dir)
	defer file.Close() // net.FileListener duplicates it
	if err := unixsocket.RefuseDescriptors(fd); err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, fresh)}); err != nil {
		return nil, fmt.Errorf("bind %s/%s: %w", p.Dir, fresh, err)
	}
	if err := unix.Fchmodat(dir, fresh, p.Mode, 0); err != nil {
		return nil, &os.PathError{Op: "chmod", Path: p.Dir + "/" + fresh, Err: err}
	}
	if p.UID >= 0 || p.GID >= 0 {
		if err := unix.Fchownat(dir, fresh, p.UID, p.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil, &os.PathError{Op: "chown", Path: p.Dir + "/" + fresh, Err: err}
		}
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", p.Dir, err)
	}
	if err := unix.Renameat(dir, fresh, dir, api.AttachSocketName); err != nil {
		listener.Close()
		return nil, &os.PathError{Op: "rename", Path: p.Dir + "/" + fresh, Err: err}
	}
	return listener.(*net.UnixListener), nil
}

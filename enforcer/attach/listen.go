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

// backlog bounds the connections that wait to be accepted. Further peers wait in connect(2).
const backlog = 128

// Place is the location and the permissions of a slice's attach socket.
type Place struct {
	Dir  string
	Mode uint32
	// UID and GID own the socket; -1 leaves them unchanged.
	UID, GID int
}

// listen creates the socket under a temporary name with its final mode, and renames it over an old one. A process that connects at the same
// time finds the old socket or the new one, with the right mode.
func listen(p Place) (*net.UnixListener, error) {
	// Bind by a descriptor of the directory: a Unix socket's address has at most 108 bytes, and the directory cannot be replaced between
	// the steps.
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

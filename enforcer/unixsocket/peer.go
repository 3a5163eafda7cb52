// SPDX-License-Identifier: Apache-2.0

package unixsocket

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/process"
)

// Ask calls question with the connection's file descriptor.
func Ask[T any](conn *net.UnixConn, question func(fd int) (T, error)) (answer T, failed error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return answer, err
	}
	if err := raw.Control(func(fd uintptr) { answer, failed = question(int(fd)) }); err != nil {
		return answer, err
	}
	return answer, failed
}

// Credentials returns the peer's credentials as of connect(2). The peer may have exited since.
func Credentials(fd int) (*unix.Ucred, error) {
	credentials, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return nil, os.NewSyscallError("SO_PEERCRED", err)
	}
	if credentials.Pid <= 0 {
		return nil, errors.New("the peer is not in the enforcer's pid namespace, nor below it")
	}
	return credentials, nil
}

// Identify opens a handle on the process that connected.
func Identify(fd int) (*process.Handle, error) {
	credentials, err := Credentials(fd)
	if err != nil {
		return nil, err
	}
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err == nil {
		return process.FromPidfd(pidfd, int(credentials.Pid))
	}
	if !errors.Is(err, unix.ENOPROTOOPT) && !errors.Is(err, unix.EINVAL) {
		return nil, os.NewSyscallError("SO_PEERPIDFD", err)
	}
	return openNamed(fd, int(credentials.Pid))
}

// openNamed identifies a peer by its pid, before Linux 6.5. If the pid was reused since the peer connected, the peer is dead and its end of
// the connection is closed.
func openNamed(fd, pid int) (*process.Handle, error) {
	peer, err := process.Open(pid)
	if err != nil {
		return nil, err
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	if n, err := unix.Poll(poll, 0); err != nil || n != 0 {
		peer.Close()
		return nil, process.ErrDead
	}
	return peer, nil
}

// maxGroups is NGROUPS_MAX.
const maxGroups = 1 << 16

// Groups returns the peer's supplementary groups as of connect(2) (SO_PEERGROUPS, since Linux 4.13).
func Groups(fd int) ([]uint32, error) {
	for n := 32; n <= maxGroups; n *= 2 {
		buffer := make([]byte, 4*n)
		length := uint32(len(buffer))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&buffer[0])), uintptr(unsafe.Pointer(&length)), 0)
		if errno == unix.ERANGE {
			continue
		}
		if errno != 0 {
			return nil, errno
		}
		var groups []uint32
		for b := buffer[:length]; len(b) >= 4; b = b[4:] {
			groups = append(groups, binary.NativeEndian.Uint32(b))
		}
		return groups, nil
	}
	return nil, unix.ERANGE
}

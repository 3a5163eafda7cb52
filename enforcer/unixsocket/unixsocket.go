// SPDX-License-Identifier: Apache-2.0

// Package unixsocket is what the enforcer's sockets, to which hostile peers may connect, have in common.
package unixsocket

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// PassRights is SO_PASSRIGHTS of include/uapi/asm-generic/socket.h, which Linux has from 6.16 on.
const PassRights = 83

// RefuseDescriptors has the kernel refuse, to the sender, what is sent to a socket with descriptors (SCM_RIGHTS). Said of a socket
// before it listens, it holds for all that connect. An older kernel lets go of them where the receiver has no room for them, as in
// Read: none gets in the enforcer's table there either, but the last reference is the receiver's to drop, and to drop that of a
// socket with SO_LINGER takes as long as its sender likes.
func RefuseDescriptors(fd int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, PassRights, 0)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return nil
	}
	return os.NewSyscallError("SO_PASSRIGHTS", err)
}

// Listen creates a socket that refuses descriptors.
func Listen(network, path string) (*net.UnixListener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (failed error) {
		return errors.Join(c.Control(func(fd uintptr) { failed = RefuseDescriptors(int(fd)) }), failed)
	}}
	l, err := config.Listen(context.Background(), network, path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// Refuses says whether the kernel can.
func Refuses() bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, PassRights)
	return err == nil
}

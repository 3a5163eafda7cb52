// SPDX-License-Identifier: Apache-2.0

// Package unixsocket has what the enforcer's Unix sockets share. Hostile peers may connect to them.
package unixsocket

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// PassRights is SO_PASSRIGHTS of include/uapi/asm-generic/socket.h, since Linux 6.16.
const PassRights = 83

// RefuseDescriptors makes the kernel fail a send of descriptors (SCM_RIGHTS) to a socket. Set on a listening socket before listen(2), it
// holds for all its connections. An older kernel drops the descriptors when the receiver offers no room for them, as Read does. They do not
// get into the enforcer's table there either, but the receiver drops the last reference, and dropping a socket with SO_LINGER takes as long
// as the sender chose.
func RefuseDescriptors(fd int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, PassRights, 0)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return nil
	}
	return os.NewSyscallError("SO_PASSRIGHTS", err)
}

// Listen creates a listening socket that refuses descriptors.
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

// Refuses reports whether the kernel has SO_PASSRIGHTS.
func Refuses() bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, PassRights)
	return err == nil
}

// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net"

	"golang.org/x/sys/unix"
)

// Peer is who asks, as the kernel says: the process that connected.
type Peer struct {
	PID int // a hint for logs: it may have ended since
	UID uint32
	GID uint32
}

type peerKey struct{}

// PeerOf returns who asks, for the context that a Service is called with; false if that is not known.
func PeerOf(ctx context.Context) (Peer, bool) {
	p, ok := ctx.Value(peerKey{}).(Peer)
	return p, ok
}

func withPeer(ctx context.Context, conn net.Conn) context.Context {
	if c, ok := conn.(*limitedConn); ok {
		conn = c.Conn
	}
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return ctx
	}
	var credentials *unix.Ucred
	if raw.Control(func(fd uintptr) {
		credentials, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}) != nil || err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, Peer{PID: int(credentials.Pid), UID: credentials.Uid, GID: credentials.Gid})
}

// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"net"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/unixsocket"
)

// Peer is the process that connected, as the kernel reports it.
type Peer struct {
	PID   int    // a hint for logs: it may have ended since, and the pid be another's; 0 if it cannot be seen from here
	Start uint64 // with PID, the process that connected (process.Again); 0 if it had ended by the time that it was asked for
	UID   uint32
	GID   uint32

	counts uint32 // the user whose place it has, and whose pace
}

type (
	peerKey   struct{}
	groupsKey struct{}
)

// PeerOf returns the process that asks, for the context that a Service is called with; false if that is not known.
func PeerOf(ctx context.Context) (Peer, bool) {
	p, ok := ctx.Value(peerKey{}).(Peer)
	return p, ok
}

// GroupsOf returns the groups of the process that asks, when it connected: its own, and then those that it is in beside.
func GroupsOf(ctx context.Context) []uint32 {
	groups, _ := ctx.Value(groupsKey{}).([]uint32)
	return groups
}

func withPeer(ctx context.Context, conn net.Conn) context.Context {
	p, known := peerOf(conn)
	if !known {
		return ctx
	}
	// At once: an older kernel names the process by its pid alone.
	if process, err := askKernel(conn, unixsocket.Identify); err == nil {
		p.Start = process.Start
		process.Close()
	}
	if c, ok := conn.(*limitedConn); ok {
		p.counts = c.counts
	}
	groups, _ := askKernel(conn, unixsocket.Groups) // before Linux 4.13 nobody says: its own is known
	ctx = context.WithValue(ctx, groupsKey{}, append([]uint32{p.GID}, groups...))
	return context.WithValue(ctx, peerKey{}, p)
}

func peerOf(conn net.Conn) (Peer, bool) {
	credentials, err := askKernel(conn, func(fd int) (*unix.Ucred, error) {
		return unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil {
		return Peer{}, false
	}
	return Peer{PID: int(credentials.Pid), UID: credentials.Uid, GID: credentials.Gid}, true
}

// askKernel asks the kernel about a connection.
func askKernel[T any](conn net.Conn, question func(fd int) (T, error)) (answer T, failed error) {
	if c, ok := conn.(*limitedConn); ok {
		conn = c.Conn
	}
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return answer, errors.ErrUnsupported
	}
	return unixsocket.Ask(c, question)
}

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
	PID   int    // for logs only: the process may have exited and the pid be reused; 0 if not visible from here
	Start uint64 // with PID identifies the process (process.Again); 0 if it had exited before it was read
	UID   uint32
	GID   uint32

	counts uint32 // user charged with its connection and pace
}

type (
	peerKey   struct{}
	groupsKey struct{}
)

// PeerOf returns the requesting process from the context of a Service's call, or false if unknown.
func PeerOf(ctx context.Context) (Peer, bool) {
	p, ok := ctx.Value(peerKey{}).(Peer)
	return p, ok
}

// GroupsOf returns the groups that the requesting process had when it connected: its gid first, then the supplementary groups.
func GroupsOf(ctx context.Context) []uint32 {
	groups, _ := ctx.Value(groupsKey{}).([]uint32)
	return groups
}

func withPeer(ctx context.Context, conn net.Conn) context.Context {
	p, known := peerOf(conn)
	if !known {
		return ctx
	}
	// First, as an older kernel identifies the process by pid only.
	if process, err := askKernel(conn, unixsocket.Identify); err == nil {
		p.Start = process.Start
		process.Close()
	}
	if c, ok := conn.(*limitedConn); ok {
		p.counts = c.counts
	}
	groups, _ := askKernel(conn, unixsocket.Groups) // unknown before Linux 4.13: only the gid then
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

// askKernel calls question with the descriptor of a connection.
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

// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/gpuslice/gpuslice/enforcer/pace"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/enforcer/unixsocket"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Peer is the user that makes a call: from the kernel's credentials of a local process, or from a certificate.
type Peer struct {
	credentials.CommonAuthInfo
	UID    uint32
	Groups []uint32 // primary group first

	refusal error  // why the uid is not a user of this host
	counts  uint32 // user whose limits apply
	remote  string // address on another machine; "" if local
}

// AuthType implements credentials.AuthInfo.
func (Peer) AuthType() string { return "unix" }

// may reports whether the peer may see and change leases of that user.
func (p Peer) may(uid uint32) bool { return p.UID == 0 || p.UID == uid }

func (p Peer) gid() uint32 {
	if len(p.Groups) == 0 {
		return p.UID
	}
	return p.Groups[0]
}

func peerOf(ctx context.Context) (Peer, error) {
	if from, ok := ctx.Value(remoteKey{}).(*remote); ok {
		return from.who, from.refusal
	}
	if p, ok := peer.FromContext(ctx); ok {
		if who, ok := p.AuthInfo.(Peer); ok {
			if who.refusal != nil {
				return who, refusal(who.refusal)
			}
			return who, nil
		}
	}
	return Peer{}, failed(leasepb.Code_REFUSED, "", "the kernel does not report the client's process")
}

const (
	// userPatience limits the lookup of a connection's user.
	userPatience = time.Second
	// Limits of concurrent connections.
	maxConnections = 1024 // of all users except root
	maxOfUser      = 64

	// burstOfUser is the number of connections, and of calls, of a user without a delay. A delayed call also delays its connection.
	burstOfUser          = 512
	connectionsPerSecond = 64
	callsPerSecond       = 128
)

func newCalls() *pace.Users { return &pace.Users{PerSecond: callsPerSecond, Burst: burstOfUser} }

// waitsForCall waits until the peer may make a call. ctx is the call's.
func (s *Service) waitsForCall(ctx context.Context, _ *tap.Info) (context.Context, error) {
	p, _ := peer.FromContext(ctx)
	if who, local := p.AuthInfo.(Peer); local && who.UID != 0 {
		if err := s.calls.Of(who.counts).Wait(ctx); err != nil {
			return ctx, status.FromContextError(err).Err()
		}
	}
	return ctx, nil
}

// kernel implements credentials.TransportCredentials for Unix sockets, with the kernel's credentials of the peer. It limits
// the connections per user.
type kernel struct {
	users *session.HostUsers
	pace  pace.Users // of connections

	mu  sync.Mutex // guards all below
	all int
	by  map[uint32]int
}

func newKernel(users *session.HostUsers) *kernel {
	return &kernel{users: users, pace: pace.Users{PerSecond: connectionsPerSecond, Burst: burstOfUser}, by: make(map[uint32]int)}
}

func (k *kernel) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, nil, errors.ErrUnsupported
	}
	credentialsOf, err := unixsocket.Ask(c, unixsocket.Credentials)
	if err != nil {
		return nil, nil, err
	}
	who := Peer{UID: credentialsOf.Uid, CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	groups, _ := unixsocket.Ask(c, unixsocket.Groups) // unavailable before Linux 4.13: primary group only
	who.Groups = append([]uint32{credentialsOf.Gid}, groups...)
	if who.UID == 0 {
		return conn, who, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), userPatience)
	defer cancel()
	counted, refusal := k.users.Of(ctx, who.UID)
	who.counts, who.refusal = counted, refusal
	if err := k.addConnection(counted); err != nil {
		return nil, nil, err
	}
	time.Sleep(k.pace.Of(counted).Reserve(time.Now(), 1))
	return &counting{Conn: conn, release: sync.OnceFunc(func() { k.removeConnection(counted) })}, who, nil
}

func (k *kernel) addConnection(uid uint32) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all >= maxConnections || k.by[uid] >= maxOfUser {
		return fmt.Errorf("uid %d has %d connections, and all users have %d: %d and %d are accepted", uid, k.by[uid], k.all, maxOfUser, maxConnections)
	}
	k.all++
	k.by[uid]++
	return nil
}

func (k *kernel) removeConnection(uid uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all--
	if k.by[uid]--; k.by[uid] == 0 {
		delete(k.by, uid)
	}
}

type counting struct {
	net.Conn
	release func()
}

func (c *counting) Close() error {
	defer c.release()
	return c.Conn.Close()
}

func (k *kernel) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.ErrUnsupported
}
func (k *kernel) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}
func (k *kernel) Clone() credentials.TransportCredentials { return k }
func (k *kernel) OverrideServerName(string) error         { return nil }

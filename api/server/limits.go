// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/pace"
	"github.com/gpuslice/gpuslice/enforcer/session"
)

// limits bound what the clients of a socket can take from one another.
type limits struct {
	connections // at a time

	header time.Duration // to receive a request's head
	read   time.Duration // to receive all of it
	write  time.Duration // to write the answer, or each batch of a stream of events
	idle   time.Duration // between two requests
	lookUp time.Duration // of a connection's user in the host's database; 0: placePatience

	pace float64 // KiB of requests per second of each user but root and the enforcer's own; 0: unlimited
}

// connections bounds the connections served at a time. Beyond the bound, connections of root and of the enforcer's own user wait in the kernel's
// queue. The server refuses and closes others, which would stand before root's in that queue.
type connections struct {
	all     int
	others  int // of users but root and the enforcer's own
	perUser int // of each of those
}

var (
	controlLimits = limits{
		connections: connections{all: 256, others: 128, perUser: 48},
		header:      5 * time.Second, read: 10 * time.Second, write: 30 * time.Second, idle: time.Minute,
	}
	userLimits = limits{
		connections: connections{all: 256, others: 192, perUser: 8},
		header:      2 * time.Second, read: 5 * time.Second, write: 10 * time.Second, idle: 10 * time.Second,
		pace: 256,
	}
)

// privileged returns whether a user's requests and connections are not counted.
func privileged(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// limited applies the limits on connections. Each user has a pace of its own: a connection beyond it is refused and closed at once, and costs other
// users none of their pace or places.
type limited struct {
	net.Listener
	connections
	lookUp time.Duration
	free   chan struct{}
	closed chan struct{}
	once   sync.Once
	users  session.HostUsers
	paces  *pace.Users // of connections; nil: unlimited
	pause  func()      // after each restAfter rejections

	rejected int // by Accept, which has one caller

	mu     sync.Mutex
	others int
	by     map[uint32]int // users but root and the enforcer's own, as session.HostUsers has them
}

// Rejecting a connection costs more than opening it. The pause bounds that cost. It is also the longest time for which a flood delays others'
// connections in the kernel's queue.
const (
	restAfter = usersQueue
	restFor   = 30 * time.Millisecond
)

func limit(l net.Listener, s limits) net.Listener {
	limited := &limited{
		Listener: l, connections: s.connections, lookUp: cmp.Or(s.lookUp, placePatience), paces: connectionPaces(s), free: make(chan struct{}, s.all), closed: make(chan struct{}), by: make(map[uint32]int),
	}
	limited.pause = func() {
		select {
		case <-time.After(restFor):
		case <-limited.closed:
		}
	}
	return limited
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.free <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			<-l.free
			return nil, err
		}
		leave, counts, refusal := l.enter(conn)
		if refusal != nil {
			reject(conn, refusal)
			if l.rejected++; l.rejected%restAfter == 0 {
				l.pause()
			}
			continue
		}
		return &limitedConn{Conn: conn, counts: counts, release: sync.OnceFunc(func() {
			leave()
			<-l.free
		})}, nil
	}
}

// placePatience is how long a connection waits for the host's user database. Without an answer it counts as NoUser's.
const placePatience = 50 * time.Millisecond

// enter counts a connection, or returns a refusal if there are too many. counts is the user that it counts for.
func (l *limited) enter(conn net.Conn) (leave func(), counts uint32, refusal *api.Error) {
	p, known := peerOf(conn)
	if known && privileged(p.UID) {
		return func() {}, p.UID, nil
	}
	counts = session.NoUser
	if known {
		ctx, cancel := context.WithTimeout(context.Background(), l.lookUp)
		defer cancel()
		counts, _ = l.users.Of(ctx, p.UID) // an unknown uid has a place until its request is refused
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.paces != nil && !l.paces.Of(counts).Allow(time.Now()):
		return nil, counts, api.Errorf(api.CodeBusy, "uid %d makes too many connections, more than %v a second: try again later", p.UID, l.paces.PerSecond)
	case l.by[counts] >= l.perUser:
		return nil, counts, api.Errorf(api.CodeBusy, "uid %d has %d open connections, the limit of a user: try again later", p.UID, l.perUser)
	case l.others >= l.connections.others:
		return nil, counts, api.Errorf(api.CodeBusy, "%d connections are open, which is the limit: try again later", l.others)
	}
	l.others++
	l.by[counts]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.others--
		if l.by[counts]--; l.by[counts] == 0 {
			delete(l.by, counts)
		}
	}, counts, nil
}

// reject answers without reading the request. The answer fits into the kernel's buffer, so it does not block.
func reject(conn net.Conn, why *api.Error) {
	defer conn.Close()
	body, err := json.Marshal(why)
	if err != nil {
		return
	}
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = fmt.Fprintf(conn, "HTTP/1.0 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s\n", len(body)+1, body)
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	release func()
	counts  uint32 // the user that it counts for
}

func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

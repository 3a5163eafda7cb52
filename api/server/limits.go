// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// limits of one socket: on what those who ask can take from one another.
type limits struct {
	connections // at one time

	header time.Duration // until a request's head is there
	read   time.Duration // until all of it is
	write  time.Duration // for the answer, or for each batch of a stream of events
	idle   time.Duration // between two requests

	pace rate.Limit // KiB of requests of each user but root and the enforcer's own, in a second; 0: as many as are asked
}

// connections that are served at one time. Those of root and of the enforcer's own user wait in the kernel's queue when
// there are as many as may be; others are told so and closed, or they would stand in that queue before root's.
type connections struct {
	all    int
	others int // of users but root and the enforcer's own
	each   int // of each of those

	people bool // users of user namespaces alone are told apart: of them one user may have thousands

	// accepts is how many of all users together are accepted in a second, after as many at once; others wait in the kernel's queue. 0:
	// as many as come.
	accepts rate.Limit
}

var (
	controlLimits = limits{
		connections: connections{all: 256, others: 128, each: 48},
		header:      5 * time.Second, read: 10 * time.Second, write: 30 * time.Second, idle: time.Minute,
	}
	userLimits = limits{
		connections: connections{all: 256, others: 192, each: 8, people: true, accepts: 100},
		header:      2 * time.Second, read: 5 * time.Second, write: 10 * time.Second, idle: 10 * time.Second,
		pace: 256,
	}
)

// privileged says whose requests and connections are not counted.
func privileged(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// limited keeps to the limits on connections.
type limited struct {
	net.Listener
	connections
	free   chan struct{}
	closed chan struct{}
	once   sync.Once
	pace   *rate.Limiter // of accepts

	mu     sync.Mutex
	others int
	by     map[uint32]int // users but root and the enforcer's own
}

func limit(l net.Listener, c connections) net.Listener {
	pace := rate.NewLimiter(rate.Inf, 0)
	if c.accepts > 0 {
		pace = rate.NewLimiter(c.accepts, int(c.accepts))
	}
	return &limited{Listener: l, connections: c, free: make(chan struct{}, c.all), closed: make(chan struct{}), pace: pace, by: make(map[uint32]int)}
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
		// To accept and to hang up costs more than to connect. Some at once cost less than one by one.
		if wait := l.pace.Reserve().Delay(); wait > 0 {
			select {
			case <-time.After(max(wait, paceStep)):
			case <-l.closed:
				conn.Close()
				<-l.free
				return nil, net.ErrClosed
			}
		}
		leave, subordinate, refusal := l.enter(conn)
		if refusal != nil {
			reject(conn, refusal)
			continue
		}
		return &limitedConn{Conn: conn, subordinate: subordinate, release: sync.OnceFunc(func() {
			leave()
			<-l.free
		})}, nil
	}
}

// paceStep is how long nobody is accepted once there were too many.
const paceStep = 100 * time.Millisecond

// noUID is no user's.
const noUID = math.MaxUint32

// enter counts a connection, or says why there are too many. subordinate: it is not known to be of a user of the host.
func (l *limited) enter(conn net.Conn) (leave func(), subordinate bool, refusal *api.Error) {
	p, known := peerOf(conn)
	if known && privileged(p.UID) {
		return func() {}, false, nil
	}
	if l.people && (!known || !ofHost(p)) {
		p.UID, subordinate = noUID, true // all of them together are one, or a user would have the places of thousands
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.by[p.UID] >= l.each:
		return nil, false, api.Errorf(api.CodeBusy, "uid %d has %d connections open, as many as a user may have: ask again later", p.UID, l.each)
	case l.others >= l.connections.others:
		return nil, false, api.Errorf(api.CodeBusy, "%d connections are open, as many as may be: ask again later", l.others)
	}
	l.others++
	l.by[p.UID]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.others--
		if l.by[p.UID]--; l.by[p.UID] == 0 {
			delete(l.by, p.UID)
		}
	}, subordinate, nil
}

// ofHost says whether a peer is known to be a user of the host: a peer that has exited, or cannot be seen from here, is not.
func ofHost(p Peer) bool {
	if p.PID <= 0 {
		return false
	}
	subordinate, err := process.Subordinate(p.PID, p.UID)
	return err == nil && !subordinate
}

// reject answers without having read what is asked: there is room for that in the kernel, so it waits for nobody.
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
	release     func()
	subordinate bool
}

func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

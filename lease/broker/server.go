// SPDX-License-Identifier: Apache-2.0

package broker

import (
	gocontext "context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Defaults of a [Config], and its bounds.
const (
	DefaultClients     = 16
	DefaultLoadTimeout = 30 * time.Second
	defaultShared      = 256 << 20
	MaxClients         = 1 << 10
)

const (
	maxMessage     = 66 << 20
	greetTimeout   = 5 * time.Second  // for a connection's first bytes
	idleTimeout    = 10 * time.Second // of a connection without a call
	farewell       = 2 * time.Second  // for clients to learn that it ends; the lease service waits for less
	queuedParts    = 16
	maxHeaderBytes = 16 << 10
)

// Broker serves one lease's session.
type Broker struct {
	leasepb.UnimplementedSessionServer

	config Config
	engine *engine
	work   chan func()
	// ended is closed when the session ends; farewells are what its clients get.
	ended chan struct{}
	end   sync.Once
	exit  int
	why   string

	mutex   sync.Mutex
	clients int
	linger  *time.Timer
	// sharedBytes are taken, or about to be.
	sharedBytes uint64
}

// New starts a session on a device, in a goroutine of its own. open is called there.
func New(config Config, open func() (Device, error)) (*Broker, error) {
	if config.Clients == 0 {
		config.Clients = DefaultClients
	}
	if config.LoadTimeout == 0 {
		config.LoadTimeout = DefaultLoadTimeout
	}
	if config.SharedBytes == 0 {
		config.SharedBytes = defaultShared
	}
	b := &Broker{config: config, work: make(chan func(), queuedParts), ended: make(chan struct{})}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // the context is current in this thread alone
		device, err := open()
		if err == nil {
			b.engine = newEngine(device, config.VRAM)
			b.engine.watch = b.watch
		}
		ready <- err
		if err != nil {
			return
		}
		for f := range b.work {
			f()
		}
	}()
	return b, <-ready
}

// watch ends the session if a load takes too long: nothing else stops the driver's compiler.
func (b *Broker) watch() func() {
	timer := time.AfterFunc(b.config.LoadTimeout, func() {
		b.stop(ExitLoadTimeout, fmt.Sprintf("the driver compiled a module for %v, which is load_timeout", b.config.LoadTimeout))
	})
	return func() { timer.Stop() }
}

// stop ends the session; the first reason counts.
func (b *Broker) stop(code int, why string) {
	b.end.Do(func() {
		b.exit, b.why = code, why
		close(b.ended)
	})
}

// Stop ends the session because its lease has ended.
func (b *Broker) Stop() { b.stop(0, "the lease has expired, or was dropped") }

// Serve answers on both sockets until the session ends, and says with which code the broker shall exit, and why.
func (b *Broker) Serve(sessions, shared net.Listener) (code int, why string) {
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(uint32(b.config.Clients)+1), grpc.ConnectionTimeout(greetTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTimeout}),
		grpc.InitialWindowSize(4<<20), grpc.InitialConnWindowSize(8<<20),
		grpc.ReadBufferSize(128<<10), grpc.WriteBufferSize(128<<10),
	)
	leasepb.RegisterSessionServer(server, b)
	go func() { _ = server.Serve(netutil.LimitListener(sessions, 4*b.config.Clients)) }() // ends with the server
	go b.serveShared(shared)
	<-b.ended
	stopped := make(chan struct{})
	go func() { server.GracefulStop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(farewell): // a client that reads nothing is not waited for
	}
	server.Stop()
	_ = shared.Close()
	return b.exit, b.why
}

// do runs it in the session's order.
func (b *Broker) do(f func()) bool {
	select {
	case b.work <- f:
		return true
	case <-b.ended:
		return false
	}
}

func refused(code codes.Code, format string, args ...any) error {
	return failed(leasepb.Code_REFUSED, format, args...).Status(code)
}

func (b *Broker) authorize(ctx gocontext.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("authorization")
	if len(values) != 1 {
		return refused(codes.Unauthenticated, "the call has no token: `authorization: Bearer TOKEN`, from the lease's token file")
	}
	token, ok := strings.CutPrefix(values[0], "Bearer ")
	if !ok || !b.knows(token) {
		return refused(codes.Unauthenticated, "that is not this lease's token")
	}
	return nil
}

func (b *Broker) knows(token string) bool {
	return subtle.ConstantTimeCompare([]byte(token), []byte(b.config.Token)) == 1
}

func (b *Broker) expired() error {
	code := leasepb.Code_LEASE_EXPIRED
	return failed(code, "the session has ended: %s", b.why).Status(codes.Aborted)
}

func (b *Broker) join() error {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.clients >= b.config.Clients {
		return refused(codes.ResourceExhausted, "the session has %d clients, which is as many as its lease lets it have", b.clients)
	}
	b.clients++
	if b.linger != nil {
		b.linger.Stop()
	}
	return nil
}

func (b *Broker) leave() {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.clients--
	if b.clients == 0 && b.config.Linger > 0 {
		b.linger = time.AfterFunc(b.config.Linger, b.lingered)
	}
}

func (b *Broker) lingered() {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.clients == 0 { // nobody came while the timer fired
		b.stop(ExitLinger, fmt.Sprintf("its last connection was closed %v ago", b.config.Linger))
	}
}

// Work serves one client.
func (b *Broker) Work(stream leasepb.Session_WorkServer) error {
	if err := b.authorize(stream.Context()); err != nil {
		return err
	}
	if err := b.join(); err != nil {
		return err
	}
	defer b.leave()
	if err := stream.SendHeader(nil); err != nil { // says to the client that it is connected
		return err
	}
	c := newClient()
	result := make(chan error, 2)
	done := make(chan struct{})
	defer close(done)
	go func() {
		result <- b.receive(stream, c)
		c.end()
	}()
	go func() {
		select {
		case <-b.ended:
			result <- b.expired()
			c.end()
		case <-done:
		}
	}()
	if err := send(stream, c); err != nil {
		c.end()
		return err
	}
	return <-result // the receiver ends with the stream, when this returns
}

// receive ends without an error when the client has sent its last request, and everything is answered.
func (b *Broker) receive(stream leasepb.Session_WorkServer, c *client) error {
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			c.drain()
			return nil
		}
		if err != nil {
			return err
		}
		for requests := message.GetRequests(); len(requests) > 0; {
			first, rest, p := cut(requests)
			requests = rest
			if !c.admit(p) || !b.do(func() { b.answer(c, first) }) {
				return b.expired()
			}
		}
	}
}

// answer carries out a part. What can wait for the device does not keep back the replies to what was before it.
func (b *Broker) answer(c *client, requests []*leasepb.Request) {
	replies := make([]*leasepb.Reply, 0, len(requests))
	for _, r := range requests {
		if _, ok := r.GetOperation().(*leasepb.Request_Launch); !ok && len(replies) > 0 {
			c.push(replies)
			replies = nil
		}
		replies = append(replies, b.engine.do(&c.history, r))
	}
	c.push(replies)
	if gone := b.engine.gone; gone != nil {
		b.stop(ExitContext, gone.GetMessage())
	}
}

func send(stream leasepb.Session_WorkServer, c *client) error {
	for {
		replies := c.next()
		if replies == nil {
			return nil
		}
		if err := stream.Send(&leasepb.Replies{Replies: replies}); err != nil {
			return err
		}
		c.sent(len(replies))
	}
}

// Stats answers from the counters, whatever the session is doing.
func (b *Broker) Stats(ctx gocontext.Context, _ *leasepb.StatsRequest) (*leasepb.StatsReply, error) {
	if err := b.authorize(ctx); err != nil {
		return nil, err
	}
	b.mutex.Lock()
	clients, shared := b.clients, b.sharedBytes
	b.mutex.Unlock()
	s := &b.engine.stats
	return &leasepb.StatsReply{
		Vram: b.config.VRAM, Allocated: s.allocated.Load(), Buffers: s.buffers.Load(), Modules: s.modules.Load(),
		Clients: uint64(clients), Shared: shared,
		Requests: s.requests.Load(), Failures: s.failures.Load(),
		Launches: s.launches.Load(), LaunchFailures: s.launchFailures.Load(),
		Syncs: s.syncs.Load(), SyncFailures: s.syncFailures.Load(),
		Written: s.bytesWritten.Load(), Read: s.bytesRead.Load(),
	}, nil
}

// SPDX-License-Identifier: Apache-2.0

package broker

import (
	gocontext "context"
	"crypto/subtle"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Defaults and limits of a [Config].
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
	returnTimeout  = 10 * time.Second // for clients to reconnect to a new broker
	maxHeaderBytes = 16 << 10
)

// Farewell is how long a session that ends waits for its clients to hear why.
const Farewell = 250 * time.Millisecond

// Broker serves the session of one lease.
type Broker struct {
	leasepb.UnimplementedSessionServer

	config  Config
	working sync.Mutex // guards the engine
	engine  *engine
	ended   chan struct{}
	end     sync.Once
	exit    int
	why     string
	// closeTimeout is Farewell; tests wait for all clients.
	closeTimeout time.Duration

	mutex   sync.Mutex
	clients int
	linger  *time.Timer
	// sharedBytes counts shared memory in use, and requests in progress.
	sharedBytes uint64
}

// New starts a session on the device returned by open.
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
	device, err := open()
	if err != nil {
		return nil, err
	}
	killpoint.Pass("broker.opened")
	b := &Broker{config: config, engine: newEngine(device, config.VRAM), ended: make(chan struct{}), closeTimeout: Farewell}
	b.engine.watch = b.watch
	b.engine.succeed(config)
	return b, nil
}

// watch ends the session if a load takes too long: the driver's compiler cannot be interrupted.
func (b *Broker) watch() func() {
	timer := time.AfterFunc(b.config.LoadTimeout, func() {
		b.stop(ExitLoadTimeout, fmt.Sprintf("the driver compiled a module for %v, which is load_timeout: all buffers and modules are gone", b.config.LoadTimeout))
	})
	return func() { timer.Stop() }
}

// stop ends the session. The first call sets exit code and reason.
func (b *Broker) stop(code int, why string) {
	b.end.Do(func() {
		b.exit, b.why = code, why
		close(b.ended)
	})
}

// Stop ends the session at the end of its lease.
func (b *Broker) Stop() { b.stop(0, "the lease has expired, or was dropped") }

// Serve serves both sockets until the session ends. It returns the exit code of the process, and the reason.
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
	b.expectClients()
	<-b.ended
	stopped := make(chan struct{})
	go func() { server.GracefulStop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(b.closeTimeout): // do not wait for clients that read nothing
	}
	server.Stop()
	_ = shared.Close()
	return b.exit, b.why
}

func (b *Broker) hasEnded() bool {
	select {
	case <-b.ended:
		return true
	default:
		return false
	}
}

// do runs f between requests, and waits for it. It returns false if the session ended before.
func (b *Broker) do(f func()) bool {
	done := make(chan struct{})
	go func() {
		b.working.Lock()
		defer b.working.Unlock()
		if !b.hasEnded() {
			f()
			close(done)
		}
	}()
	select {
	case <-done:
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

// endedStatus is the status of calls after the session's end.
func (b *Broker) endedStatus() error {
	f := failed(leasepb.Code_LEASE_EXPIRED, "the session has ended: %s", b.why)
	if b.config.Followed && b.exit != 0 && b.exit != ExitLinger {
		f = goesOn(b.why)
	}
	return f.Status(codes.Aborted)
}

func (b *Broker) addClient() error {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.clients >= b.config.Clients {
		return refused(codes.ResourceExhausted, "the session has %d clients, which is the limit of its lease", b.clients)
	}
	b.clients++
	if b.linger != nil {
		b.linger.Stop()
	}
	return nil
}

func (b *Broker) removeClient() {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.clients--
	if b.clients == 0 && b.config.Linger > 0 {
		b.linger = time.AfterFunc(b.config.Linger, b.lingered)
	}
}

// expectClients gives the clients of a former broker time to reconnect. If none does, no disconnect would start the linger
// timer.
func (b *Broker) expectClients() {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.config.Number > 0 && b.config.Linger > 0 && b.clients == 0 && b.linger == nil {
		b.linger = time.AfterFunc(max(b.config.Linger, returnTimeout), b.lingered)
	}
}

func (b *Broker) lingered() {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.clients == 0 { // no client joined while the timer fired
		b.stop(ExitLinger, fmt.Sprintf("its last connection was closed %v ago", b.config.Linger))
	}
}

// header returns the metadata that describes the device, and announces a successor.
func (b *Broker) header() metadata.MD {
	header := metadata.Pairs(leasepb.CapabilityHeader, b.engine.device.Capability())
	if b.config.Followed {
		header.Set(leasepb.FollowedHeader, "true")
	}
	return header
}

// Work serves one client.
func (b *Broker) Work(stream leasepb.Session_WorkServer) error {
	if err := b.authorize(stream.Context()); err != nil {
		return err
	}
	if b.hasEnded() {
		return b.endedStatus()
	}
	if err := b.addClient(); err != nil {
		return err
	}
	defer b.removeClient()
	if err := stream.SendHeader(b.header()); err != nil { // confirms the connection to the client
		return err
	}
	killpoint.Pass("broker.joined")
	c := &client{broker: b, stream: stream}
	result := make(chan error, clientGoroutines)
	for range clientGoroutines {
		go func() { result <- c.serve() }() // ends with the stream, when Work returns
	}
	select {
	case err := <-result:
		return err
	case <-b.ended:
		return b.endedStatus()
	}
}

// Stats returns the counters. It does not wait for the session's work.
func (b *Broker) Stats(ctx gocontext.Context, _ *leasepb.StatsRequest) (*leasepb.StatsReply, error) {
	if err := b.authorize(ctx); err != nil {
		return nil, err
	}
	b.mutex.Lock()
	clients, shared := b.clients, b.sharedBytes
	b.mutex.Unlock()
	s := &b.engine.stats
	return &leasepb.StatsReply{
		Vram: b.config.VRAM, Allocated: s.allocated.Load(), Peak: s.peak.Load(), Buffers: s.buffers.Load(), Modules: s.modules.Load(),
		Clients: uint64(clients), Shared: shared,
		Requests: s.requests.Load(), Failures: s.failures.Load(),
		Launches: s.launches.Load(), LaunchFailures: s.launchFailures.Load(),
		Syncs: s.syncs.Load(), SyncFailures: s.syncFailures.Load(),
		Written: s.bytesWritten.Load(), Read: s.bytesRead.Load(), FreesRefused: s.freesRefused.Load(),
	}, nil
}

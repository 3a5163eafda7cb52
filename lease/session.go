// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Limits of a session's requests in flight. Calls wait while a limit is reached.
const (
	maxWaiting      = 1 << 12 // unanswered requests
	maxWaitingBytes = 32 << 20
	maxMessages     = 4   // unanswered messages; requests that arrive at the limit share the next one
	maxBatch        = 512 // requests per message
	maxBatchBytes   = 1 << 20
	maxDirectBytes  = 32 << 10 // in flight, up to which gRPC sends at once: half its buffer of 64 KiB
	maxMessage      = 66 << 20
	chunk           = 4 << 20 // of a longer transfer
)

// ErrClosed is returned by calls on a closed session.
var ErrClosed = errors.New("the session was closed")

// Session is a connection to a lease's GPU session. Requests of all connections are executed in order of arrival; buffers and
// modules exist until they are freed or the lease ends. A Session is safe for concurrent use.
//
// A call returns at once when its context ends; its request is still executed.
//
// After a device fault, or another end of the broker, calls in flight fail with [SyncFailed], and the session connects to the
// next broker; calls wait until that serves. Earlier buffers, modules and shared memory are gone, and their use fails with
// [InvalidHandle]: create them again.
type Session struct {
	client     leasepb.SessionClient
	connection *grpc.ClientConn
	live       context.Context // until Close
	quit       context.CancelFunc
	token      string
	metadata   []string // of each call, including the token
	socket     string   // with directory, where shared.sock is; both "" over TCP
	directory  string
	ended      sync.WaitGroup
	staging    staging

	mutex      sync.Mutex
	stream     leasepb.Session_WorkClient
	capability string
	followed   bool             // another broker follows if this one ends
	away       bool             // the broker has ended, and the next has not answered yet
	launches   uint64           // total
	synced     uint64           // launches reported by a Sync, or to be reported by lost
	lost       *leasepb.Failure // failure of launches lost with a broker
	room       chan struct{}    // closed when there is room or the session ends; nil if no call waits
	send       chan struct{}    // wakes sendAll
	outgoing   []*leasepb.Request
	waiting    []call   // unanswered, in request order: the last has number `sequence`, the others precede it without gaps
	messages   []uint64 // last request of each unanswered message
	sending    bool     // a message is being sent
	bytes      int      // of unanswered requests
	sequence   uint64
	err        error // why the session has ended
}

type call struct {
	bytes int
	done  chan *leasepb.Reply // closed at the session's end; nil if no caller waits
}

// Open connects to the session at an address such as unix:/run/gpuslice/leases/ID/session.sock, with the token in tokenFile.
func Open(ctx context.Context, address, tokenFile string) (*Session, error) {
	text, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, fmt.Errorf("open a GPU session: %w", err)
	}
	s := newSession(string(bytes.TrimSpace(text)))
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		s.socket, s.directory = path, filepath.Dir(path)
	}
	return s.open(ctx, address, insecure.NewCredentials())
}

// OpenTLS connects to a session on another machine, at an address such as tls:gpu1.example.org:9837/lease-0f3c5e2a9b8d7614,
// with its token.
func OpenTLS(ctx context.Context, address, token string, files TLS) (*Session, error) {
	at, err := parseAddress(address)
	if err == nil && at.lease == "" {
		err = fmt.Errorf("%q names no lease: tls:HOST:PORT/LEASE is accepted", address)
	}
	if err != nil {
		return nil, fmt.Errorf("open a GPU session: %w", err)
	}
	of, err := files.credentials()
	if err != nil {
		return nil, fmt.Errorf("open a GPU session: %w", err)
	}
	s := newSession(token)
	s.metadata = append(s.metadata, "lease", at.lease)
	return s.open(ctx, at.target(), of)
}

func newSession(token string) *Session {
	return &Session{token: token, metadata: []string{"authorization", "Bearer " + token}, send: make(chan struct{}, 1)}
}

func (s *Session) open(ctx context.Context, target string, of credentials.TransportCredentials) (_ *Session, err error) {
	s.live, s.quit = context.WithCancel(context.WithoutCancel(ctx))
	s.connection, err = grpc.NewClient(target, grpc.WithTransportCredentials(of), dialing(target),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithInitialWindowSize(4<<20), grpc.WithInitialConnWindowSize(8<<20),
		grpc.WithReadBufferSize(128<<10), grpc.WithWriteBufferSize(128<<10))
	if err != nil {
		return nil, fmt.Errorf("open a GPU session: %w", err)
	}
	s.client = leasepb.NewSessionClient(s.connection)
	if err := s.enter(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open a GPU session: %w", s.wrapError(err)), s.connection.Close())
	}
	s.ended.Go(s.sendAll)
	return s, nil
}

func (s *Session) authorized(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, s.metadata...)
}

// connect opens the stream, and returns once the broker has accepted it by sending its headers.
func (s *Session) connect(ctx context.Context) error {
	streaming, cancel := context.WithCancel(s.authorized(s.live))
	stop := context.AfterFunc(ctx, cancel)
	stream, err := s.client.Work(streaming)
	var header metadata.MD
	if err == nil {
		header, err = stream.Header()
		if err == nil && header == nil { // the call has ended
			_, err = stream.Recv()
		}
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = s.connected(stream, header)
	}
	if err != nil {
		cancel()
	}
	return err
}

// wrapError returns the error of a call. A broker on this host that does not answer has ended, and so has the session unless
// another broker follows.
func (s *Session) wrapError(err error) error {
	if s.directory == "" || status.Code(err) != codes.Unavailable {
		return fromStatus(err)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.followed && !s.isGone() {
		return failure(s.lossOf(err))
	}
	return &Error{Code: Expired, Message: "the session has ended: its broker does not answer: " + status.Convert(err).Message(), Lost: true}
}

// Close closes the connection. The lease keeps the session's buffers and modules.
func (s *Session) Close() error {
	s.fail(ErrClosed)
	s.quit()
	s.ended.Wait()
	s.staging.close()
	return s.connection.Close()
}

// notify wakes waiting calls and sendAll as needed. The mutex must be held.
func (s *Session) notify() {
	if s.room != nil && (s.err != nil || s.hasRoom(0)) {
		close(s.room)
		s.room = nil
	}
	if s.err != nil || s.mayForward() {
		select {
		case s.send <- struct{}{}:
		default: // a wake-up is pending
		}
	}
}

func (s *Session) hasRoom(bytes int) bool {
	return !s.away && (len(s.waiting) == 0 || len(s.waiting) < maxWaiting && s.bytes+bytes <= maxWaitingBytes)
}

func (s *Session) mayForward() bool {
	return len(s.outgoing) > 0 && !s.sending && len(s.messages) < maxMessages
}

func (s *Session) fail(err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.err != nil {
		return
	}
	s.err = err
	for _, c := range s.waiting {
		if c.done != nil {
			close(c.done)
		}
	}
	s.waiting, s.outgoing = nil, nil
	s.notify()
}

func (s *Session) sendAll() {
	for range s.send {
		s.mutex.Lock()
		for s.err == nil && s.mayForward() {
			s.forward(true)
		}
		ended := s.err != nil
		s.mutex.Unlock()
		if ended {
			return
		}
	}
}

// forward sends one message of queued requests. The mutex must be held; it is released during the send.
func (s *Session) forward(answered bool) {
	n, size := 0, 0
	for n < len(s.outgoing) && n < maxBatch && size < maxBatchBytes {
		size += s.waiting[len(s.waiting)-len(s.outgoing)+n].bytes
		n++
	}
	batch := s.outgoing[:n:n]
	if s.outgoing = s.outgoing[n:]; len(s.outgoing) == 0 {
		s.outgoing = nil
	}
	if answered {
		s.messages = append(s.messages, batch[n-1].GetSequence())
	}
	s.sending = true
	stream := s.stream
	s.mutex.Unlock()
	_ = stream.Send(&leasepb.Requests{Requests: batch, Quiet: true, AnswerLast: answered}) // receive gets the error
	killpoint.Pass("client.sent")
	s.mutex.Lock()
	s.sending = false
}

func (s *Session) receive(stream leasepb.Session_WorkClient) {
	for {
		message, err := stream.Recv()
		if err == nil {
			killpoint.Pass("client.received")
			err = s.take(message.GetReplies())
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			s.handleDisconnect(err)
			return
		}
	}
}

func (s *Session) take(replies []*leasepb.Reply) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, reply := range replies {
		// A reply also answers the launches before it.
		first, sent := s.sequence-uint64(len(s.waiting))+1, len(s.waiting)-len(s.outgoing)
		n := reply.GetSequence() - first
		if n >= uint64(sent) {
			return errors.New("the broker sent an answer without a request")
		}
		for _, c := range s.waiting[:n] {
			if c.done != nil {
				return errors.New("the broker left out an answer")
			}
			s.bytes -= c.bytes
		}
		c := s.waiting[n]
		s.waiting = s.waiting[n+1:]
		s.bytes -= c.bytes
		if reply.GetFailure().GetLost() && s.followed {
			s.away = true // later requests are for the next broker
		}
		if c.done != nil {
			c.done <- reply // buffered
		}
		for len(s.messages) > 0 && s.messages[0] <= reply.GetSequence() {
			s.messages = s.messages[1:]
		}
	}
	s.notify()
	return nil
}

// enqueue adds a request to the session's queue, once there is room.
func (s *Session) enqueue(ctx context.Context, r *leasepb.Request, wait bool) (chan *leasepb.Reply, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	c := call{bytes: proto.Size(r)}
	if wait {
		c.done = make(chan *leasepb.Reply, 1)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for s.err == nil && !s.hasRoom(c.bytes) {
		if s.room == nil {
			s.room = make(chan struct{})
		}
		room := s.room
		s.mutex.Unlock()
		select {
		case <-room:
			s.mutex.Lock()
		case <-ctx.Done():
			s.mutex.Lock()
			return nil, context.Cause(ctx)
		}
	}
	if s.err != nil {
		return nil, s.err
	}
	if !wait {
		s.launches++
	}
	s.sequence++
	r.Sequence = s.sequence
	s.waiting = append(s.waiting, c)
	s.bytes += c.bytes
	s.outgoing = append(s.outgoing, r)
	// A waiting caller sends the message itself, and so does one with nothing else in flight: this is fastest, and does not
	// block. The reply to a lone launch comes with the next message's.
	if alone := len(s.waiting) == 1; (wait || alone) && s.mayForward() && s.bytes <= maxDirectBytes {
		s.forward(wait)
	}
	s.notify()
	return c.done, nil
}

func (s *Session) wait(ctx context.Context, done chan *leasepb.Reply) (*leasepb.Reply, error) {
	select {
	case reply, ok := <-done:
		if err := s.result(reply, ok); err != nil {
			return nil, err
		}
		return reply, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *Session) ask(ctx context.Context, r *leasepb.Request) (*leasepb.Reply, error) {
	done, err := s.enqueue(ctx, r, true)
	if err != nil {
		return nil, err
	}
	return s.wait(ctx, done)
}

// Sync waits for all earlier launches. It returns a failure since the last Sync, if any.
func (s *Session) Sync(ctx context.Context) error {
	s.mutex.Lock()
	n := s.launches
	s.mutex.Unlock()
	_, err := s.ask(ctx, &leasepb.Request{Operation: &leasepb.Request_Sync{Sync: &leasepb.Sync{}}})
	var answered *Error
	if err != nil && !errors.As(err, &answered) {
		return err
	}
	if lost := s.takeLost(n); err == nil {
		err = lost
	}
	return err
}

// ComputeCapability returns the compute capability of the session's device, such as "9.0". It is empty if the broker is of an older version.
func (s *Session) ComputeCapability() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.capability
}

// Stats holds the session's resources and counters.
type Stats = leasepb.StatsReply

// Stats returns the session's statistics. It does not wait for the session's work.
func (s *Session) Stats(ctx context.Context) (*Stats, error) {
	stats, err := s.client.Stats(s.authorized(ctx), &leasepb.StatsRequest{})
	if err != nil {
		return nil, s.wrapError(err)
	}
	return stats, nil
}

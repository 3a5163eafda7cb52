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
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// What a session keeps on its way to the broker; a call waits while there is as much.
const (
	maxWaiting      = 1 << 12 // requests without an answer
	maxWaitingBytes = 32 << 20
	maxBatch        = 512 // requests in a message
	maxBatchBytes   = 1 << 20
	maxMessage      = 66 << 20
	chunk           = 4 << 20 // of a longer write or read
)

// ErrClosed is what a session's calls return after its Close.
var ErrClosed = errors.New("the session was closed")

// Session is a connection to a lease's GPU session. Requests of all its connections are carried out in the order in which they arrive;
// what they made stays until it is given back, or the lease ends. It may be used by several goroutines.
//
// A call whose context ends returns at once; what it asked for is carried out all the same.
type Session struct {
	client     leasepb.SessionClient
	connection *grpc.ClientConn
	cancel     context.CancelFunc
	token      string
	directory  string // of shared.sock; "" over TCP
	ended      sync.WaitGroup

	mutex    sync.Mutex
	changed  chan struct{} // closed, and made again, when there is something to send, room, or an end
	outgoing []*leasepb.Request
	waiting  []*call // in the order of their requests
	bytes    int     // of their requests
	sequence uint64
	err      error // why there is nothing more to be had
}

type call struct {
	sequence uint64
	bytes    int
	done     chan *leasepb.Reply // nil: nobody waits. Closed at the session's end
}

// Open connects to the session at that address, such as unix:/run/gpuslice/leases/ID/session.sock, with the token that the file has.
func Open(ctx context.Context, address, tokenFile string) (*Session, error) {
	text, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, fmt.Errorf("open a GPU session: %w", err)
	}
	s := &Session{token: string(bytes.TrimSpace(text)), changed: make(chan struct{})}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		s.directory = filepath.Dir(path)
	}
	s.connection, err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithInitialWindowSize(4<<20), grpc.WithInitialConnWindowSize(8<<20),
		grpc.WithReadBufferSize(128<<10), grpc.WithWriteBufferSize(128<<10))
	if err != nil {
		return nil, fmt.Errorf("open a GPU session: %w", err)
	}
	s.client = leasepb.NewSessionClient(s.connection)
	if err := s.connect(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open a GPU session: %w", err), s.connection.Close())
	}
	return s, nil
}

func (s *Session) authorized(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+s.token)
}

// connect begins the stream, and returns when the broker has taken it: it sends its headers at once.
func (s *Session) connect(ctx context.Context) error {
	streaming, cancel := context.WithCancel(s.authorized(context.WithoutCancel(ctx)))
	stop := context.AfterFunc(ctx, cancel)
	stream, err := s.client.Work(streaming)
	if err == nil {
		var header metadata.MD
		header, err = stream.Header()
		if err == nil && header == nil { // the call has ended already
			_, err = stream.Recv()
		}
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel()
		return s.called(err)
	}
	s.cancel = cancel
	s.ended.Go(func() { s.send(stream) })
	s.ended.Go(func() { s.receive(stream) })
	return nil
}

// called is the error of a call. A broker on this host that does not answer has ended, and its lease with it.
func (s *Session) called(err error) error {
	if s.directory != "" && status.Code(err) == codes.Unavailable {
		return &Error{Code: Expired, Message: "the session has ended: its broker does not answer: " + status.Convert(err).Message()}
	}
	return called(err)
}

// Close ends the connection. What the session holds stays with the lease.
func (s *Session) Close() error {
	s.fail(ErrClosed)
	s.cancel()
	s.ended.Wait()
	return s.connection.Close()
}

// notify wakes all who wait; the mutex is held.
func (s *Session) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
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

func (s *Session) send(stream leasepb.Session_WorkClient) {
	for {
		batch := s.next()
		if batch == nil {
			return
		}
		if err := stream.Send(&leasepb.Requests{Requests: batch}); err != nil {
			return // the receiver learns why
		}
	}
}

// next waits for requests: as many as fit into a message.
func (s *Session) next() []*leasepb.Request {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for len(s.outgoing) == 0 && s.err == nil {
		changed := s.changed
		s.mutex.Unlock()
		<-changed
		s.mutex.Lock()
	}
	if s.err != nil {
		return nil
	}
	n, size := 0, 0
	for n < len(s.outgoing) && n < maxBatch && size < maxBatchBytes {
		size += s.waiting[len(s.waiting)-len(s.outgoing)+n].bytes
		n++
	}
	batch := s.outgoing[:n:n]
	if s.outgoing = s.outgoing[n:]; len(s.outgoing) == 0 {
		s.outgoing = nil
	}
	return batch
}

func (s *Session) receive(stream leasepb.Session_WorkClient) {
	for {
		message, err := stream.Recv()
		if err == nil {
			err = s.take(message.GetReplies())
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			s.fail(s.called(err))
			return
		}
	}
}

func (s *Session) take(replies []*leasepb.Reply) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, reply := range replies {
		if len(s.waiting) == len(s.outgoing) || s.waiting[0].sequence != reply.GetSequence() {
			return errors.New("the broker answered what it was not asked")
		}
		c := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.bytes -= c.bytes
		if c.done != nil {
			c.done <- reply // it has room for one
		}
	}
	s.notify()
	return nil
}

// enqueue puts a request into the session's order, once there is room.
func (s *Session) enqueue(ctx context.Context, r *leasepb.Request, wait bool) (*call, error) {
	c := &call{bytes: proto.Size(r)}
	if wait {
		c.done = make(chan *leasepb.Reply, 1)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for s.err == nil && len(s.waiting) > 0 && (len(s.waiting) >= maxWaiting || s.bytes+c.bytes > maxWaitingBytes) {
		changed := s.changed
		s.mutex.Unlock()
		select {
		case <-changed:
			s.mutex.Lock()
		case <-ctx.Done():
			s.mutex.Lock()
			return nil, context.Cause(ctx)
		}
	}
	if s.err != nil {
		return nil, s.err
	}
	s.sequence++
	r.Sequence, c.sequence = s.sequence, s.sequence
	s.waiting = append(s.waiting, c)
	s.bytes += c.bytes
	s.outgoing = append(s.outgoing, r)
	if len(s.outgoing) == 1 {
		s.notify()
	}
	return c, nil
}

func (s *Session) wait(ctx context.Context, c *call) (*leasepb.Reply, error) {
	select {
	case reply, ok := <-c.done:
		if !ok {
			s.mutex.Lock()
			defer s.mutex.Unlock()
			return nil, s.err
		}
		if f := reply.GetFailure(); f != nil {
			return nil, failure(f)
		}
		return reply, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// ask sends a request and waits for its reply.
func (s *Session) ask(ctx context.Context, r *leasepb.Request) (*leasepb.Reply, error) {
	c, err := s.enqueue(ctx, r, true)
	if err != nil {
		return nil, err
	}
	return s.wait(ctx, c)
}

// Sync waits for everything that was launched before it. Its error is that of what failed since the last Sync.
func (s *Session) Sync(ctx context.Context) error {
	_, err := s.ask(ctx, &leasepb.Request{Operation: &leasepb.Request_Sync{Sync: &leasepb.Sync{}}})
	return err
}

// Stats has what the session holds, and what it has done.
type Stats = leasepb.StatsReply

// Stats does not wait for the session's work.
func (s *Session) Stats(ctx context.Context) (*Stats, error) {
	stats, err := s.client.Stats(s.authorized(ctx), &leasepb.StatsRequest{})
	if err != nil {
		return nil, s.called(err)
	}
	return stats, nil
}

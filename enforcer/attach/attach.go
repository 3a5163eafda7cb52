// SPDX-License-Identifier: Apache-2.0

// Package attach serves a slice's attach socket (the protocol is in interceptor/attach.h). It owns the socket and its connections, and
// identifies the peers. The Handler decides each reply.
//
// All input is hostile. The peer's identity comes from the kernel, never from a message. A connection lives for at most twice Patience. A
// slice has at most InFlight connections, and Rate messages per second, so a flood on one socket harms only its own slice. No allocation
// depends on what a peer sends.
package attach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/pace"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/unixsocket"
)

const (
	// InFlight is the number of connections of one slice that are served at a time.
	InFlight = 64
	// Rate is the number of messages of one slice that are answered per second, after a burst of Burst. A process sends a few in its life;
	// a flooding process waits in the kernel's queue with its siblings. Burst lets five hundred processes start at once.
	Rate  = 100
	Burst = 2048
	// paceStep is the shortest wait once the rate is exceeded. It batches the replies, which costs less than pacing each.
	paceStep = 100 * time.Millisecond
	// Patience is the timeout for a peer's request, and for a peer to take its reply.
	Patience = time.Second
)

// NewPace returns the rate limiter of one slice, or of several slices that share it.
func NewPace() *pace.Limiter { return pace.New(Rate, Burst) }

// memberFor is how long a positive answer of Member is cached.
const memberFor = time.Second

// maxMembers bounds the number of cached members.
const maxMembers = 64

// Member reports whether a process belongs to the slice. Calls are serialised: a call can take thousands of reads of /proc, since the peer
// controls the depth of its process tree, so a flood costs one processor only. A positive answer is cached for memberFor.
type Member func(peer *process.Handle) bool

// Handler answers one request of peer, and owns peer. The caller closes the files after sending them with the reply. If ok is false, the
// connection is closed without a reply, and the peer tries again, as it does after a crash of the enforcer.
type Handler func(peer *process.Handle, member bool, request ledger.Request) (reply ledger.Reply, files []*os.File, ok bool)

// Server is one slice's attach socket.
type Server struct {
	listener *net.UnixListener
	asking   chan struct{}                  // held while member is called, or members is used
	members  map[process.Identity]time.Time // expiry of each cached member
	member   Member
	handler  Handler
	log      *slog.Logger
	slots    chan struct{}
	pace     *pace.Limiter
	stop     context.CancelFunc
	stopped  context.Context
	foreign  sync.Once
}

// Serve listens at place until Close. replies limits its answers.
func Serve(place Place, replies *pace.Limiter, member Member, handler Handler, log *slog.Logger) (*Server, error) {
	listener, err := listen(place)
	if err != nil {
		return nil, fmt.Errorf("attach socket: %w", err)
	}
	s := &Server{
		listener: listener, member: member, handler: handler, log: log,
		asking: make(chan struct{}, 1), slots: make(chan struct{}, InFlight), pace: replies,
		members: make(map[process.Identity]time.Time),
	}
	s.stopped, s.stop = context.WithCancel(context.Background())
	go s.accept()
	return s, nil
}

// Close stops listening. Open connections are served to their end, within twice Patience.
func (s *Server) Close() error {
	s.stop()
	return s.listener.Close()
}

func (s *Server) accept() {
	short := false // short of descriptors, most likely temporarily
	for {
		// Take a slot before accepting, so that excess connections wait in the backlog.
		select {
		case s.slots <- struct{}{}:
		case <-s.stopped.Done():
			return
		}
		conn, err := s.listener.AcceptUnix()
		switch {
		case s.stopped.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return
		case err != nil:
			<-s.slots
			if !short { // log once, not ten times a second for each slice
				s.log.Error("cannot accept connections on the attach socket: processes wait until a retry succeeds", "err", err)
			}
			short = true
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.stopped.Done():
				return
			}
		default:
			short = false
			if wait := s.pace.Reserve(time.Now(), 1); wait > 0 {
				select {
				case <-time.After(max(wait, paceStep)):
				case <-s.stopped.Done():
					conn.Close()
					return
				}
			}
			go func() {
				defer func() { <-s.slots }()
				s.serve(conn)
			}()
		}
	}
}

func (s *Server) serve(conn *net.UnixConn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(Patience))
	// Use Read, not ReadMsgUnix: a kernel that did not refuse a peer's descriptors (listen) drops them if the receiver has no room for
	// them. The buffer's extra byte reveals a message that is too long.
	var buffer [ledger.MessageSize + 1]byte
	n, err := conn.Read(buffer[:])
	if err != nil {
		s.log.Debug("a peer connected and sent no request", "err", err)
		return
	}
	request, err := ledger.DecodeRequest(buffer[:n])
	if err != nil {
		s.complain(err)
		s.send(conn, ledger.Reply{Status: ledger.StatusMalformed}, nil)
		return
	}
	peer, err := unixsocket.Ask(conn, unixsocket.Identify)
	if err != nil {
		s.log.Debug("cannot identify a peer", "err", err)
		status := ledger.StatusNotMember
		if errors.Is(err, process.ErrHidden) {
			status = ledger.StatusHidden
		}
		s.send(conn, ledger.Reply{Status: status}, nil)
		return
	}
	reply, files, ok := s.handler(peer, s.ask(peer), request)
	for _, file := range files {
		defer file.Close()
	}
	if ok {
		s.send(conn, reply, files)
	}
}

func (s *Server) ask(peer *process.Handle) bool {
	s.asking <- struct{}{}
	defer func() { <-s.asking }()
	now := time.Now()
	if now.Before(s.members[peer.Identity]) && peer.Alive() {
		return true
	}
	if !s.member(peer) {
		delete(s.members, peer.Identity)
		return false
	}
	if len(s.members) >= maxMembers {
		clear(s.members)
	}
	s.members[peer.Identity] = now.Add(memberFor)
	return true
}

// send sends a reply, and then waits for the peer to close the connection. The peer relies on this order: if the connection is still open
// after the peer has mapped the ledger, then the enforcer that granted it knows the peer, and an enforcer restarted from then on finds the
// mapping.
func (s *Server) send(conn *net.UnixConn, reply ledger.Reply, files []*os.File) {
	_ = conn.SetDeadline(time.Now().Add(Patience))
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, file := range files {
			fds[i] = int(file.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := conn.WriteMsgUnix(reply.Encode(), rights, nil); err != nil {
		s.log.Debug("cannot send a reply to a peer", "err", err)
		return
	}
	killpoint.Pass("attach.replied")
	var rest [1]byte
	_, _ = conn.Read(rest[:])
}

// complain logs the first malformed request as a warning, since it may show an interceptor of another version. Later ones are debug
// messages, so that a process cannot fill the host's log.
func (s *Server) complain(err error) {
	level := slog.LevelDebug
	s.foreign.Do(func() { level = slog.LevelWarn })
	s.log.Log(s.stopped, level, "received a malformed attach request", "err", err)
}

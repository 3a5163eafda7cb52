// SPDX-License-Identifier: Apache-2.0

// Package attach answers the processes of a slice on the slice's own socket (the protocol is
// interceptor/attach.h). It owns the socket, its connections, and the question who is asking; what the
// answer is, the Handler decides.
//
// Everything that arrives is hostile. The peer's identity is taken from the kernel and never from a message; a
// connection lives for at most Patience twice; a slice has at most InFlight of them, and Rate in a second, so that
// a flood on one socket costs its own slice only. Nothing here allocates by what a peer sends.
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
	"golang.org/x/time/rate"

	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/unixsocket"
)

const (
	// InFlight is how many connections of one slice are served at one time.
	InFlight = 64
	// Rate is how many messages of one slice are answered per second, once Burst of them were: a process of the
	// slice sends a few in its life, and one that sends more waits in the kernel's queue with its siblings. Burst
	// is so many that five hundred processes may start at once.
	Rate  = 100
	Burst = 2048
	// paceStep is how long there is no answer once there were too many; then there are some at once, which costs less than one by one.
	paceStep = 100 * time.Millisecond
	// Patience with a peer that connected and says nothing, or does not take its answer.
	Patience = time.Second
)

// NewPace returns the pace of one slice, or of several that share it.
func NewPace() *rate.Limiter { return rate.NewLimiter(Rate, Burst) }

// memberFor is how long a process that was found to be of the slice is taken for it without another look.
const memberFor = time.Second

// maxMembers is of how many processes that is known at a time.
const maxMembers = 64

// Member says whether a process is of the slice. It is asked about one process at a time: the answer can take thousands of reads of
// /proc, as a process tree is as deep as who makes it likes, so a flood of questions costs one processor and not all of them. Of one that is,
// it is asked once in a second.
type Member func(peer *process.Handle) bool

// Handler answers one request of peer, which it owns from then on. The files go to the peer with the
// reply, and are closed by the caller. If ok is false there is no answer: the connection is closed, and the
// peer asks again, as it does when an enforcer died.
type Handler func(peer *process.Handle, member bool, request ledger.Request) (reply ledger.Reply, files []*os.File, ok bool)

// Listener hears what a process says without waiting for an answer (ledger.OpRefused). pid is who connected, as
// the kernel says; it may have ended since, as a program that was refused often does at once, and then nothing
// more can be found out about it here.
type Listener func(pid int, request ledger.Request)

// Server is one slice's attach socket.
type Server struct {
	listener *net.UnixListener
	asking   chan struct{}                  // taken while member is asked, which reads /proc: one process at a time
	members  map[process.Identity]time.Time // until when they are; for who has taken asking
	member   Member
	handler  Handler
	hear     Listener
	log      *slog.Logger
	slots    chan struct{}
	pace     *rate.Limiter
	stop     context.CancelFunc
	stopped  context.Context
	foreign  sync.Once
}

// Serve listens in the place and answers at this pace until Close.
func Serve(place Place, pace *rate.Limiter, member Member, handler Handler, hear Listener, log *slog.Logger) (*Server, error) {
	listener, err := listen(place)
	if err != nil {
		return nil, fmt.Errorf("attach socket: %w", err)
	}
	s := &Server{
		listener: listener, member: member, handler: handler, hear: hear, log: log,
		asking: make(chan struct{}, 1), slots: make(chan struct{}, InFlight), pace: pace,
		members: make(map[process.Identity]time.Time),
	}
	s.stopped, s.stop = context.WithCancel(context.Background())
	go s.accept()
	return s, nil
}

// Close stops listening. Connections that were accepted are served to their end, which is near.
func (s *Server) Close() error {
	s.stop()
	return s.listener.Close()
}

func (s *Server) accept() {
	short := false // of descriptors, most likely: some will come back
	for {
		// A slot before a connection: those who are too many wait in the backlog, not in here.
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
			if !short { // once, not ten times a second for each slice
				s.log.Error("accept on the attach socket: who connects waits", "err", err)
			}
			short = true
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.stopped.Done():
				return
			}
		default:
			short = false
			if wait := s.pace.Reserve().Delay(); wait > 0 {
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
	// Read, not ReadMsgUnix: where no room for them is offered, a kernel that did not refuse the descriptors that a peer sends
	// along (listen) drops them. One byte more than a message has, so that a longer one is seen to be longer.
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
	if request.Op == ledger.OpRefused {
		if credentials, err := unixsocket.Ask(conn, unixsocket.Credentials); err != nil {
			s.log.Debug("a peer that said something cannot be identified", "err", err)
		} else {
			s.hear(int(credentials.Pid), request)
		}
		return
	}
	peer, err := unixsocket.Ask(conn, unixsocket.Identify)
	if err != nil {
		s.log.Debug("a peer cannot be identified", "err", err)
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

// send answers, and then waits for the peer to hang up. That order is a promise to the peer: as long as it sees
// the connection open after it mapped the ledger, the enforcer that gave it knows it (or will find it
// mapped, if it is restarted from now on).
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
		s.log.Debug("a peer did not take its answer", "err", err)
		return
	}
	killpoint.Pass("attach.replied")
	var rest [1]byte
	_, _ = conn.Read(rest[:])
}

// complain once in full view (an interceptor of another version is something to know), then quietly: a
// process must not be able to fill the host's log.
func (s *Server) complain(err error) {
	level := slog.LevelDebug
	s.foreign.Do(func() { level = slog.LevelWarn })
	s.log.Log(s.stopped, level, "a process sent what is no attach request", "err", err)
}

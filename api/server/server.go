// SPDX-License-Identifier: Apache-2.0

// Package server puts the enforcer's control API on a Unix socket: HTTP and JSON, described in
// api/openapi.yaml, which a test holds against what is here.
//
// It owns the wire: routes, limits, decoding, statuses, the socket file. It decides nothing about slices, which
// is for the Service behind it, and must never let a request, however malformed, slow or large, get in
// the way of others. Who may ask is decided by the socket's mode alone, but for the users' socket (users.go); who asks
// is in Peer.
package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/audit"
)

// Service is what the handlers call. An *api.Error is answered as it is, and any other error as
// api.CodeInternal.
type Service interface {
	Info(ctx context.Context) (api.Info, error)
	Register(ctx context.Context, r api.RegisterRequest) (api.RegisterReply, error)
	// Release gives back a slice of that generation; 0 is any. With force, even if its processes are alive.
	Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error)
	Change(ctx context.Context, id string, r api.ChangeRequest) (api.Slice, error)
	Renew(ctx context.Context, id string, r api.RenewRequest) (api.Slice, error)
	// Suspend moves the memory of a slice to host memory, and Resume back.
	Suspend(ctx context.Context, id string) (api.Slice, error)
	Resume(ctx context.Context, id string) (api.Slice, error)
	// Join makes a process one of a session's, by the session's token, which is in ctx (api.TokenOf).
	Join(ctx context.Context, id string, r api.JoinRequest) (api.RegisterReply, error)
	Slices(ctx context.Context) ([]api.Slice, error)
	// Released are those that were released while processes were alive.
	Released(ctx context.Context) ([]api.Slice, error)
	Slice(ctx context.Context, id string) (api.Slice, error)
	PoolService
	Devices(ctx context.Context) ([]api.Device, error)
	// History is what slices needed that run, and of late ran.
	History(ctx context.Context) ([]api.Run, error)
	// Health waits for nothing.
	Health(ctx context.Context) (api.Health, error)
	// Events are some of those after number since, the oldest first; with wait one at least, or an error when there
	// will be none.
	Events(ctx context.Context, instance string, since uint64, wait bool) ([]api.Event, error)
}

const (
	maxBody   = 64 << 10
	maxHeader = 16 << 10 // the line of the request and all headers, with what is between them
	// headerSlop is what net/http reads of a head beyond its MaxHeaderBytes.
	headerSlop = 4 << 10
	// maxStreams is how many of them may be told events: the hook's must find room.
	maxStreams = 32
	// drainTimeout is how long a stopping enforcer waits for the requests under way.
	drainTimeout = 5 * time.Second
)

// Server answers the control API.
type Server struct {
	http   *http.Server
	share  audit.Share // of what is recorded, unless more is known of who asks
	limits limits
	log    *slog.Logger
}

// New returns a Server for service.
func New(service Service, log *slog.Logger) *Server {
	return newServer(Handler(service, log), controlLimits, log)
}

func newServer(h http.Handler, l limits, log *slog.Logger) *Server {
	return &Server{
		limits: l,
		log:    log,
		http: &http.Server{
			Handler:           paced(h, l.pace),
			ReadHeaderTimeout: l.header,
			ReadTimeout:       l.read,
			WriteTimeout:      l.write,
			IdleTimeout:       l.idle,
			MaxHeaderBytes:    maxHeader - headerSlop,
			ConnContext:       withPeer,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
	}
}

// Serve answers on l until ctx ends, then lets the requests under way finish, and returns nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	drained := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		err := s.http.Shutdown(drain)
		if err != nil {
			err = errors.Join(err, s.http.Close())
		}
		drained <- err
	})
	err := s.http.Serve(limit(l, s.limits.connections))
	if stop() || !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-drained
}

// SPDX-License-Identifier: Apache-2.0

// Package server serves the enforcer's control API on a Unix socket: HTTP and JSON, as in api/openapi.yaml, which a test compares
// with the code.
//
// It owns routes, limits, decoding, statuses and the socket file; a Service makes all decisions about slices. It must never let a
// request, however malformed, slow or large, delay others. The socket's mode decides about access, except on the users' socket
// (users.go).
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

// Service carries out the requests. The handlers answer an *api.Error as it is, and any other error as api.From does.
type Service interface {
	Info(ctx context.Context) (api.Info, error)
	Register(ctx context.Context, r api.RegisterRequest) (api.RegisterReply, error)
	// Release releases the slice with this generation; 0 matches any. With force, even if its processes are alive.
	Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error)
	Change(ctx context.Context, id string, r api.ChangeRequest) (api.Slice, error)
	Renew(ctx context.Context, id string, r api.RenewRequest) (api.Slice, error)
	// Suspend moves the memory of a slice to host memory, Resume back.
	Suspend(ctx context.Context, id string) (api.Slice, error)
	Resume(ctx context.Context, id string) (api.Slice, error)
	// Join adds a process to a session. ctx carries the session's token (api.TokenOf).
	Join(ctx context.Context, id string, r api.JoinRequest) (api.RegisterReply, error)
	Slices(ctx context.Context) ([]api.Slice, error)
	// SlicesWithCommands returns the same with Slice.Command.
	SlicesWithCommands(ctx context.Context) ([]api.Slice, error)
	// Released returns the released slices that still have live processes.
	Released(ctx context.Context) ([]api.Slice, error)
	Slice(ctx context.Context, id string) (api.Slice, error)
	PoolService
	Devices(ctx context.Context) ([]api.Device, error)
	// History returns the memory needs of active and recently ended slices.
	History(ctx context.Context) ([]api.Run, error)
	// Limits shows what a user may have; nil is the calling user.
	Limits(ctx context.Context, of *api.User) (api.UserLimits, error)
	// Health must not block.
	Health(ctx context.Context) (api.Health, error)
	// Events returns some events after number since, the oldest first. With wait it returns at least one, or an error if there
	// will be none.
	Events(ctx context.Context, instance string, since uint64, wait bool) ([]api.Event, error)
}

const (
	maxBody   = 64 << 10
	maxHeader = 16 << 10 // request line, headers and separators
	// headerSlop is the bytes that net/http reads beyond its MaxHeaderBytes.
	headerSlop = 4 << 10
	// maxStreams limits the connections that follow events, to leave room for those of the hook.
	maxStreams = 32
	// drainTimeout limits the wait for open requests when the enforcer stops.
	drainTimeout = 5 * time.Second
)

// Server serves the control API.
type Server struct {
	http   *http.Server
	share  audit.Share // of audit records, unless the user determines it
	limits limits
	log    *slog.Logger
}

// New returns a Server of the control socket for service.
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

// Serve serves on l until ctx ends, then lets open requests finish, and returns nil.
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
	err := s.http.Serve(limit(l, s.limits))
	if stop() || !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-drained
}

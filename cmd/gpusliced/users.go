// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/gpuslice/gpuslice/api/server"
	"github.com/gpuslice/gpuslice/daemon/audit"
	"github.com/gpuslice/gpuslice/daemon/config"
	"github.com/gpuslice/gpuslice/daemon/users"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/session"
)

// callerOf returns the requesting process, as the kernel reports it.
func callerOf(ctx context.Context) (session.Asker, bool) {
	p, known := server.PeerOf(ctx)
	return session.Asker{PID: p.PID, Start: p.Start, UID: p.UID}, known
}

// serveUsers creates the users' socket and returns the function that serves it, or nil if the configuration allows users no
// sessions.
func serveUsers(c config.Sessions, e *enforcer.Enforcer, record *audit.Writer, log *slog.Logger) (func(context.Context) error, error) {
	if !c.Serve() {
		if c.Socket == "" {
			return nil, nil
		}
		// A stale socket of an earlier gpusliced would refuse connections, as if gpusliced were not running.
		if err := server.RemoveStale(c.Socket); err != nil {
			log.Warn("removing the unused session socket failed", "socket", c.Socket, "err", err)
		}
		return nil, nil
	}
	if err := os.MkdirAll(filepath.Dir(c.Socket), 0o755); err != nil {
		return nil, fmt.Errorf("sessions.socket: %w", err)
	}
	listener, err := server.ListenForUsers(c.Socket)
	if err != nil {
		return nil, fmt.Errorf("sessions.socket: %w", err)
	}
	s := server.NewForUsers(users.New(e, users.Options{Limits: c.ForUsers(), Log: log, Caller: callerOf, Groups: server.GroupsOf}), log)
	if record != nil {
		s.AuditWith(record.Put)
	}
	log.Info("users may have sessions", "socket", c.Socket, "limits", len(c.Limits))
	return func(ctx context.Context) error {
		if err := s.Serve(ctx, listener); err != nil {
			return errors.Join(errors.New("the users' socket"), err)
		}
		return nil
	}, nil
}

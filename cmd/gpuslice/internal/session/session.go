// SPDX-License-Identifier: Apache-2.0

// Package session runs a command and all its descendants as one slice, without a container. It registers the slice, preloads the
// interceptor, forwards signals and the exit code, and releases the slice when the last descendant has ended.
//
// It limits cooperative programs only: unlike in a container, a process that clears its environment loses the interceptor
// (docs/evidence/security.md).
//
// The package must never hide the command's exit code from the caller, nor a signal from the command.
package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
)

// Exit codes of gpuslice itself, as in env(1) and docker-run(1).
const (
	ExitFailed      = 125 // gpuslice itself failed
	ExitNotRunnable = 126 // the command was found, but cannot be run
	ExitNotFound    = 127
)

// Enforcer has the methods of an enforcer that a session needs.
type Enforcer interface {
	Register(ctx context.Context, request api.RegisterRequest) (api.RegisterReply, error)
	Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error)
	Join(ctx context.Context, id string, request api.JoinRequest) (api.RegisterReply, error)
}

// Session is a command to run in a slice.
type Session struct {
	Enforcer Enforcer
	// Request describes the slice. ID may be ""; Run sets PID and Session.
	Request api.RegisterRequest
	// Token is the token of the session Request.ID to join; "" to begin a new one.
	Token api.Token
	// Library returns the interceptor's path; preferred is the enforcer's value.
	Library func(preferred string) (string, error)
	// Devices returns the host's devices. It is called if the session is limited to some of them and CUDA_VISIBLE_DEVICES is set.
	Devices func() ([]api.Device, error)
	// Registered, if not nil, is called with the slice before the command starts.
	Registered func(api.RegisterReply)
	// Wait is how long to wait for the quota if it cannot be granted now; 0 is not at all, and Forever without end. Waiting sessions have no
	// order.
	Wait time.Duration
	// Waiting, if not nil, is called with the refusal before it waits.
	Waiting func(error)
	// Released, if not nil, is called with the slice's last state after its release.
	Released func(api.Slice)
	// Noticed, if not nil, is called with events that the user has to see while the command runs: memory past the ledger, and processes
	// killed for it.
	Noticed func(api.Event)
	Command []string
	Env     []string

	sleep func(context.Context, time.Duration) // for tests; nil: real time
}

// Error carries the exit code of gpuslice. Without Err nothing is printed.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

func failed(code int, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// Run runs the command until it and its descendants have ended, and returns its exit code: 128 + n if signal n killed it. An
// error is always an *Error.
func (s *Session) Run(ctx context.Context) (code int, err error) {
	path, err := lookPath(s.Command[0])
	if err != nil {
		return 0, err
	}
	if dir, _ := lookup(s.Env, api.DirEnv); dir != "" {
		return 0, failed(ExitFailed, "this process is in a slice already (%s=%s), and slices do not nest: run the command without `gpuslice run`", api.DirEnv, dir)
	}
	if _, err := os.Lstat(filepath.Join(api.ContainerDir, api.AttachSocketName)); err == nil {
		return 0, failed(ExitFailed, "this container has a slice already (%s), and all of its processes share that quota: run the command without `gpuslice run`", api.ContainerDir)
	}
	// Orphaned descendants become children of this process instead of init: the enforcer finds a session's processes by their
	// ancestor, and this process sees the last one end.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, failed(ExitFailed, "become the reaper of the command's descendants: %w", err)
	}

	reply, leave, err := s.enter(ctx)
	if err != nil {
		return 0, failed(ExitFailed, "%w", err)
	}
	defer leave()

	library, err := s.Library(reply.Library)
	if err != nil {
		return 0, failed(ExitFailed, "%w", err)
	}
	env, err := s.show(s.Env, &reply.Slice)
	if err != nil {
		return 0, failed(ExitFailed, "%w", err)
	}
	if s.Registered != nil {
		s.Registered(reply)
	}
	env = environment(env, library, filepath.Join(reply.Dir, "bind"), reply.Slice.ID)
	// An enforcer in this process makes no token, as no process could use one. A token that a joining process cannot see is set
	// nevertheless.
	token := filepath.Join(reply.Dir, api.TokenName)
	if _, err := os.Lstat(token); !errors.Is(err, fs.ErrNotExist) {
		env = append(env, api.TokenEnv+"="+token)
	}
	if s.Noticed != nil && s.Token == "" {
		defer follow(filepath.Join(reply.Dir, api.NoticeName), s.Noticed)()
	}
	return s.start(path, env)
}

// enter adds this process to a session; leave ends the session if it began here.
func (s *Session) enter(ctx context.Context) (reply api.RegisterReply, leave func(), err error) {
	if s.Token != "" {
		reply, err = s.Enforcer.Join(api.WithToken(ctx, s.Token), s.Request.ID, api.JoinRequest{PID: os.Getpid()})
		return reply, func() {}, err
	}
	request := s.Request
	request.Session = true
	request.PID = os.Getpid()
	if request.ID == "" {
		request.ID = newID()
	}
	err = s.await(ctx, func() error {
		return client.AwaitRoom(ctx, func() error {
			reply, err = s.Enforcer.Register(ctx, request)
			return err
		})
	})
	return reply, func() {
		// Only this process is left in the slice, hence the force. If the release fails, the enforcer releases the slice when
		// this process ends; the command's exit code matters more than the error.
		was, err := s.Enforcer.Release(context.WithoutCancel(ctx), reply.Slice.ID, reply.Slice.Generation, true)
		if err == nil && s.Released != nil {
			s.Released(was)
		}
	}, err
}

// environment returns env with the interceptor first in LD_PRELOAD, the slice's directory, and its id.
func environment(env []string, library, dir, id string) []string {
	const preload = "LD_PRELOAD"
	result := make([]string, 0, len(env)+3)
	value := library
	for _, entry := range env {
		name, old, _ := strings.Cut(entry, "=")
		switch name {
		case api.DirEnv, api.TokenEnv, api.SessionEnv:
			continue
		case preload:
			if old != "" {
				value += ":" + old
			}
			continue
		}
		result = append(result, entry)
	}
	return append(result, preload+"="+value, api.DirEnv+"="+dir, api.SessionEnv+"="+id)
}

func (s *Session) start(path string, env []string) (int, error) {
	signals := make(chan os.Signal, 64)
	for _, sig := range forwarded {
		// Do not catch ignored signals (nohup): the command would get the default action.
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	defer signal.Stop(signals)

	// The terminal sends SIGINT and the like to the whole process group, so the child stays in this one.
	pid, err := spawn(path, s.Command, env)
	if err != nil {
		code := ExitNotRunnable
		if errors.Is(err, fs.ErrNotExist) {
			code = ExitNotFound
		}
		return 0, failed(code, "run %s: %w", path, err)
	}
	return wait(pid, signals)
}

func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot):
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", failed(ExitNotFound, "%s: command not found", name)
	}
	return "", failed(ExitNotRunnable, "%s: %w", name, errors.Unwrap(err))
}

func lookup(env []string, name string) (value string, ok bool) {
	for _, entry := range env {
		if key, value, _ := strings.Cut(entry, "="); key == name {
			return value, true
		}
	}
	return "", false
}

func newID() string {
	var b [5]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return "run-" + hex.EncodeToString(b[:])
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// caller returns the process that made the request; the enforcer itself if no other can.
func (e *Enforcer) caller(ctx context.Context) (who session.Asker, known bool) {
	if e.options.Caller == nil {
		start, err := process.StartTime(os.Getpid())
		return session.Asker{PID: os.Getpid(), Start: start, UID: uint32(os.Geteuid())}, err == nil
	}
	return e.options.Caller(ctx)
}

// authenticate returns the session to which the request's token belongs. A refusal does not reveal whether that session exists.
func (e *Enforcer) authenticate(ctx context.Context, id string) (*slice, error) {
	asker, known := e.caller(ctx)
	uid, now := asker.UID, time.Now()
	switch {
	case !known:
		return nil, api.Errorf(api.CodeForbidden, "the kernel does not report the process with the token")
	case e.guesses.Wait(now, uid):
		e.countJoined("limited")
		return nil, api.Errorf(api.CodeBusy, "uid %d has sent too many wrong tokens: try again in %s", uid, e.guesses.Interval)
	}
	s := e.find(id)
	if s == nil {
		s = &slice{} // the same work, and no token matches
	}
	if s.token.Is(api.TokenOf(ctx)) {
		return s, nil
	}
	e.countJoined("wrong_token")
	if e.guesses.Did(now, uid) { // so that callers cannot flood the log
		e.log.Warn("wrong session token", "slice", id, "pid", asker.PID, "uid", uid)
	}
	return nil, api.Errorf(api.CodeForbidden, "there is no session %s with that token: the file that %s names in the session has it", id, api.TokenEnv)
}

// Authenticate returns an error if the request lacks the token of that session.
func (e *Enforcer) Authenticate(ctx context.Context, id string) error {
	_, err := e.authenticate(ctx, id)
	return err
}

func (e *Enforcer) countJoined(result string) {
	e.count(func(c Counter) { c.Joined(result) })
}

// Join makes a process, and its later descendants, members of a session by the session's token (api.TokenOf). That is stored when it returns. When the
// session ends the process can charge nothing more, and its memory counts until it exits.
func (e *Enforcer) Join(ctx context.Context, id string, r api.JoinRequest) (api.RegisterReply, error) {
	if err := errors.Join(api.CheckID(id), r.Validate()); err != nil {
		return api.RegisterReply{}, err
	}
	s, err := e.authenticate(ctx, id)
	if err != nil {
		return api.RegisterReply{}, err
	}
	asker, _ := e.caller(ctx)
	if err := e.join(ctx, s, r.PID, asker); err != nil {
		e.countJoined("refused")
		return api.RegisterReply{}, err
	}
	killpoint.Pass("join.done")
	e.countJoined("ok")
	s.log.Info("process joined the session", "pid", r.PID, "uid", asker.UID)
	return api.RegisterReply{Slice: s.show(false), Dir: s.dir, Library: e.options.Library}, nil
}

func (e *Enforcer) join(ctx context.Context, s *slice, pid int, asker session.Asker) error {
	p, err := s.mayJoin(pid, asker)
	if err != nil {
		return api.Errorf(api.CodeBadRequest, "process %d cannot join session %s: %v", pid, s.id(), err)
	}
	err = s.turn.Take(ctx)
	if err == nil && !e.has(s) {
		s.turn.Give()
		err = api.Errorf(api.CodeNotFound, "session %s has ended", s.id())
	}
	if err != nil {
		p.Close()
		return err
	}
	defer s.turn.Give()
	s.mu.Lock()
	active := s.quota.State == api.Active
	s.mu.Unlock()
	if !active || !s.group.Alive() {
		p.Close()
		return api.Errorf(api.CodeNotFound, "session %s has ended", s.id())
	}
	if err := s.group.Join(p, asker.UID); err != nil {
		return api.Errorf(api.CodeBusy, "%v %s: end one of them first", err, s.id())
	}
	if err = s.put(); err == nil {
		killpoint.Pass("join.stored")
		err = s.openTo(asker.UID)
	}
	if err == nil {
		err = s.group.WatchJoined(p)
	}
	if err != nil {
		s.group.Leave(p) // its record may stay, and a restart finds that it has exited
	}
	return err
}

// mayJoin returns a handle of a process that may join. As at a session's beginning, it must be the caller's own.
func (s *slice) mayJoin(pid int, asker session.Asker) (*process.Handle, error) {
	if err := asker.MayName(pid); err != nil {
		return nil, err
	}
	p, err := process.Open(pid)
	if err != nil {
		return nil, err
	}
	if err = owns(asker, pid); err == nil {
		err = s.group.MayJoin(p)
	}
	if err != nil {
		p.Close()
	}
	return p, err
}

// serveJoined opens the attach socket of a restored slice to the users of joined processes, and watches these.
func (s *slice) serveJoined() error {
	for _, j := range s.group.Joined() {
		if err := errors.Join(s.openTo(j.UID), s.group.WatchJoined(j.Handle)); err != nil {
			return err
		}
	}
	return nil
}

// openTo lets a user connect to another user's attach socket.
func (s *slice) openTo(uid uint32) error {
	owner := s.request.UID
	if uid == 0 || uid == owner || s.e.options.Unprivileged {
		return nil
	}
	users := []uint32{uid}
	for _, j := range s.group.Joined() {
		if j.UID != 0 && j.UID != owner {
			users = append(users, j.UID)
		}
	}
	if err := session.AllowUsers(filepath.Join(s.dir, bindName, api.AttachSocketName), users); err != nil {
		return fmt.Errorf("let uid %d use the session's attach socket: %w", uid, err)
	}
	return nil
}

// noteRemaining notes the session's living processes at its release. Descendants of its first process can no longer be found by ancestry, so only those
// with a lane are noted. Called in the slice's turn, when no process can attach any more.
func (s *slice) noteRemaining() {
	if !s.request.Session {
		return
	}
	var attached []process.Identity
	s.mu.Lock()
	for l := range s.quota.Lanes() {
		attached = append(attached, l.Process.Identity)
	}
	s.mu.Unlock()
	for _, p := range attached {
		s.group.Remains(process.Again(p.PID, p.Start))
	}
}

// findRemaining restores the noted processes of a former enforcer. If the session ended while none ran, it finds those that have its ledger. Called in
// the slice's turn.
func (s *slice) findRemaining(noted []store.Process) {
	if !s.request.Session {
		return
	}
	for _, p := range noted {
		s.group.Remains(process.Again(p.PID, p.Start))
	}
	if len(noted) > 0 || s.quota.Ledger == nil {
		return
	}
	for _, pid := range s.e.pages.HeldBy(s.quota.Identity) {
		s.group.Remains(process.Open(pid))
	}
	for _, owner := range s.quota.Owners() {
		if s.e.pages.MayHold(s.quota.Identity, owner.PID) {
			s.group.Remains(process.Again(owner.PID, owner.Start))
		}
	}
}

// watchRemaining clears the session once the last remaining process has exited. Called in the slice's turn, once.
func (e *Enforcer) watchRemaining(s *slice) error {
	return s.group.WatchRemaining(func() {
		if !e.waitForReleased(s) {
			return
		}
		defer s.turn.Give()
		e.clearOnceEmpty(s)
	})
}

// SPDX-License-Identifier: Apache-2.0

// Package users is what users without privileges may ask of the enforcer: they begin sessions within the operator's limits, and see, renew, move and
// release their own. The kernel reports the user of a request; a session's token gives access to that session, too.
//
// The package must never believe a request about its user, or reveal another user's session.
package users

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
	"github.com/gpuslice/gpuslice/enforcer/session"
)

// Enforcer carries out what users may ask for.
type Enforcer interface {
	Info(ctx context.Context) (api.Info, error)
	// RegisterWithin calls limit first, which may change the request, and returns its error. A refused request is counted, too.
	RegisterWithin(ctx context.Context, r api.RegisterRequest, limit func(context.Context, *api.RegisterRequest) (*refusal.User, error)) (api.RegisterReply, error)
	Join(ctx context.Context, id string, r api.JoinRequest) (api.RegisterReply, error)
	Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error)
	Renew(ctx context.Context, id string, r api.RenewRequest) (api.Slice, error)
	Suspend(ctx context.Context, id string) (api.Slice, error)
	Resume(ctx context.Context, id string) (api.Slice, error)
	Slice(ctx context.Context, id string) (api.Slice, error)
	SlicesOf(uid uint32) []api.Slice
	SlicesWithCommandsOf(ctx context.Context, uid uint32) []api.Slice
	ReleasedOf(uid uint32) []api.Slice
	History(ctx context.Context) ([]api.Run, error)
	LimitsWithin(uid uint32, limit *refusal.User) api.UserLimits

	// UserOf returns the user that a slice is accounted to; nil if it is no user's. known is false if there is no such slice.
	UserOf(id string) (uid *uint32, known bool)
	// Authenticate returns an error if the request lacks the token of that session.
	Authenticate(ctx context.Context, id string) error
	// MayChange returns an error if the user has changed slices too often.
	MayChange(uid uint32) error
}

// Options of Users.
type Options struct {
	Limits []session.Limit // the first match applies
	Log    *slog.Logger
	// Caller returns the requesting process, Groups its groups, the primary one first, as the kernel reports them.
	Caller func(context.Context) (asker session.Asker, known bool)
	Groups func(context.Context) []uint32
}

// Users is the enforcer for users.
type Users struct {
	enforcer Enforcer
	options  Options
}

func New(e Enforcer, o Options) *Users {
	for _, l := range o.Limits {
		if _, err := l.ID(); err != nil {
			o.Log.Warn("a limit of sessions has no effect until its user or group exists", "user", l.User, "group", l.Group, "err", err)
		}
	}
	return &Users{e, o}
}

func (u *Users) who(ctx context.Context) (uid uint32, err error) {
	asker, known := u.options.Caller(ctx)
	if !known {
		return 0, api.Errorf(api.CodeForbidden, "the kernel does not report the requesting user, and a session belongs to a user")
	}
	return asker.UID, nil
}

// May returns an error if the user may not change that session, or, without an id, begin one; and whether there is a limit for the user. Of the
// request it needs only the id.
func (u *Users) May(ctx context.Context, id string) (limited bool, err error) {
	_, l, err := u.limit(ctx)
	if id != "" {
		err = u.own(ctx, id)
	}
	return l != nil, err
}

func (u *Users) limit(ctx context.Context) (uid uint32, l *refusal.User, err error) {
	if uid, err = u.who(ctx); err != nil {
		return uid, nil, err
	}
	if l, err = session.For(u.options.Limits, uid, u.options.Groups(ctx)); err != nil {
		err = api.Errorf(api.CodeForbidden, "%v (`gpuslice run --embedded` does without)", err)
	}
	return uid, l, err
}

// own returns an error unless the session of that id is the user's, or the request has its token. The message does not reveal another user's
// session, but the error wraps api.ErrForbidden then, for the audit log.
func (u *Users) own(ctx context.Context, id string) error {
	uid, err := u.who(ctx)
	if err != nil {
		return err
	}
	owner, known := u.enforcer.UserOf(id)
	if owner != nil && *owner == uid {
		return nil
	}
	if api.TokenOf(ctx) != "" {
		return u.enforcer.Authenticate(ctx, id)
	}
	notFound := api.Errorf(api.CodeNotFound, "you have no session %.255s", id)
	if known {
		return errors.Join(notFound, api.ErrForbidden)
	}
	return notFound
}

func (u *Users) Info(ctx context.Context) (api.Info, error) { return u.enforcer.Info(ctx) }

// Slices shows the user's sessions.
func (u *Users) Slices(ctx context.Context) ([]api.Slice, error) {
	return u.list(ctx, u.enforcer.SlicesOf)
}

// SlicesWithCommands shows them with their commands.
func (u *Users) SlicesWithCommands(ctx context.Context) ([]api.Slice, error) {
	return u.list(ctx, func(uid uint32) []api.Slice { return u.enforcer.SlicesWithCommandsOf(ctx, uid) })
}

// Released shows the user's sessions that were released with living processes.
func (u *Users) Released(ctx context.Context) ([]api.Slice, error) {
	return u.list(ctx, u.enforcer.ReleasedOf)
}

// list returns a list of slices of the calling user.
func (u *Users) list(ctx context.Context, of func(uid uint32) []api.Slice) ([]api.Slice, error) {
	uid, err := u.who(ctx)
	if err != nil {
		return nil, err
	}
	return of(uid), nil
}

// History returns what the user's sessions needed.
func (u *Users) History(ctx context.Context) ([]api.Run, error) {
	uid, err := u.who(ctx)
	if err != nil {
		return nil, err
	}
	all, err := u.enforcer.History(ctx)
	return slices.DeleteFunc(all, func(r api.Run) bool { return r.UID == nil || *r.UID != uid }), err
}

// Slice shows one of the user's sessions.
func (u *Users) Slice(ctx context.Context, id string) (api.Slice, error) {
	if err := u.own(ctx, id); err != nil {
		return api.Slice{}, err
	}
	return u.enforcer.Slice(ctx, id)
}

// Release ends one of the user's sessions.
func (u *Users) Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error) {
	if err := u.own(ctx, id); err != nil {
		return api.Slice{}, err
	}
	return u.enforcer.Release(ctx, id, generation, force)
}

// Renew sets the time to live of one of the user's sessions, from now.
func (u *Users) Renew(ctx context.Context, id string, r api.RenewRequest) (api.Slice, error) {
	if err := u.own(ctx, id); err != nil {
		return api.Slice{}, err
	}
	uid, err := u.who(ctx)
	if err == nil {
		err = u.enforcer.MayChange(uid)
	}
	if err != nil {
		return api.Slice{}, err
	}
	return u.enforcer.Renew(ctx, id, r)
}

// Suspend moves the memory of one of the user's sessions to host memory.
func (u *Users) Suspend(ctx context.Context, id string) (api.Slice, error) {
	if err := u.mayMove(ctx, id); err != nil {
		return api.Slice{}, err
	}
	return u.enforcer.Suspend(ctx, id)
}

// Resume brings it back.
func (u *Users) Resume(ctx context.Context, id string) (api.Slice, error) {
	if err := u.mayMove(ctx, id); err != nil {
		return api.Slice{}, err
	}
	return u.enforcer.Resume(ctx, id)
}

// mayMove returns an error if the user may not move that session. A token is not enough.
func (u *Users) mayMove(ctx context.Context, id string) error {
	if err := u.own(ctx, id); err != nil {
		return err
	}
	uid, _, err := u.limit(ctx)
	if err != nil {
		return err
	}
	if owner, known := u.enforcer.UserOf(id); known && (owner == nil || *owner != uid) {
		return session.Refuse("session %s is another user's, and its token does not allow this", id)
	}
	return u.enforcer.MayChange(uid)
}

// Limits shows what the user may have.
func (u *Users) Limits(ctx context.Context, _ *api.User) (api.UserLimits, error) {
	uid, l, err := u.limit(ctx)
	if err != nil {
		return api.UserLimits{}, err
	}
	return u.enforcer.LimitsWithin(uid, l), nil
}

// Join is the enforcer's, which requires a token in any case.
func (u *Users) Join(ctx context.Context, id string, r api.JoinRequest) (api.RegisterReply, error) {
	return u.enforcer.Join(ctx, id, r)
}

// Register begins a session of the user. Its id is that of api.UserSessionID.
func (u *Users) Register(ctx context.Context, r api.RegisterRequest) (api.RegisterReply, error) {
	return u.enforcer.RegisterWithin(ctx, r, u.admit)
}

// admit completes the user's request, and returns the limit that applies to it.
func (u *Users) admit(ctx context.Context, r *api.RegisterRequest) (*refusal.User, error) {
	uid, l, err := u.limit(ctx)
	if err == nil {
		err = mayAsk(r)
	}
	if err == nil {
		err = u.enforcer.MayChange(uid)
	}
	if err != nil {
		return nil, err
	}
	r.UID = uid
	r.Visible = nil // a user's claim makes no device invisible: the session counts on all devices of its quotas
	if groups := u.options.Groups(ctx); len(groups) > 0 {
		r.GID = groups[0]
	}
	r.ID = api.UserSessionID(uid, r.ID)
	return l, nil
}

// mayAsk returns an error if a user may not make such a request.
func mayAsk(r *api.RegisterRequest) error {
	switch {
	case r.For != nil:
		return session.Refuse("slice %s is for uid %d: only root can request slices for other users", r.ID, r.For.UID)
	case !r.Session:
		return session.Refuse("slice %s is a container's", r.ID)
	}
	return session.MayHave(r)
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"errors"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/session"
)

// Users is the enforcer's interface for users without privileges: they begin sessions within the operator's limits, and see, renew and release their
// own. The kernel reports the user of a request; a session's token gives access to that session, too.
type Users struct {
	e      *Enforcer
	groups func(context.Context) []uint32
}

// Users returns the enforcer for users, within Options.Users. groups returns the groups of the requesting process, as the kernel reports them, with
// its primary group first.
func (e *Enforcer) Users(groups func(context.Context) []uint32) *Users {
	for _, l := range e.options.Users {
		if _, err := l.ID(); err != nil {
			e.log.Warn("a limit of sessions has no effect until its user or group exists", "user", l.User, "group", l.Group, "err", err)
		}
	}
	return &Users{e: e, groups: groups}
}

func (u *Users) who(ctx context.Context) (uid uint32, err error) {
	asker, known := u.e.caller(ctx)
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

func (u *Users) limit(ctx context.Context) (uid uint32, l *session.Limit, err error) {
	if uid, err = u.who(ctx); err != nil {
		return uid, nil, err
	}
	if l, err = session.For(u.e.options.Users, uid, u.groups(ctx)); err != nil {
		err = api.Errorf(api.CodeForbidden, "%v (`gpuslice run --embedded` does without)", err)
	}
	return uid, l, err
}

// limitFor returns the limit of the user for which root makes the request (r.For); nil if there is none, or it is root.
func (e *Enforcer) limitFor(ctx context.Context, r *api.RegisterRequest) (*admission.User, error) {
	if r.For == nil {
		return nil, nil
	}
	if asker, known := e.caller(ctx); !known || asker.UID != 0 {
		return nil, api.Errorf(api.CodeForbidden, "slice %s is for uid %d: only root can request slices for other users", r.ID, r.For.UID)
	}
	if r.For.UID == 0 {
		return nil, nil
	}
	l, err := session.For(e.options.Users, r.For.UID, r.For.Groups)
	if err == nil {
		err = mayHave(r)
	}
	if err == nil {
		err = e.changes.Change(r.For.UID)
	}
	if err != nil {
		return nil, err
	}
	return within(r.For.UID, l), nil
}

// own returns an error unless the session of that id is the user's, or the request has its token. The message does not reveal another user's
// session, but the error wraps api.ErrForbidden then, for the audit log.
func (u *Users) own(ctx context.Context, id string) error {
	uid, err := u.who(ctx)
	if err != nil {
		return err
	}
	s := u.e.find(id)
	if s != nil && s.isOf(uid) {
		return nil
	}
	if api.TokenOf(ctx) != "" {
		_, err := u.e.authenticate(ctx, id)
		return err
	}
	none := api.Errorf(api.CodeNotFound, "you have no session %.255s", id)
	if s != nil {
		return errors.Join(none, api.ErrForbidden)
	}
	return none
}

// isOf reports whether the slice is a session of that user, or one that root began on the user's behalf.
func (s *slice) isOf(uid uint32) bool { return s.holder.UID != nil && *s.holder.UID == uid }

// Info returns facts about the enforcer.
func (u *Users) Info(ctx context.Context) (api.Info, error) { return u.e.Info(ctx) }

// Slices shows the user's sessions.
func (u *Users) Slices(ctx context.Context) ([]api.Slice, error) {
	uid, err := u.who(ctx)
	if err != nil {
		return nil, err
	}
	return u.e.showAll(func(s *slice) bool { return s.isOf(uid) }), nil
}

// SlicesWithCommands shows the user's sessions with their commands.
func (u *Users) SlicesWithCommands(ctx context.Context) ([]api.Slice, error) {
	uid, err := u.who(ctx)
	if err != nil {
		return nil, err
	}
	return u.e.showCommands(ctx, func(s *slice) bool { return s.isOf(uid) }), nil
}

// Released shows the user's sessions that were released with living processes.
func (u *Users) Released(ctx context.Context) ([]api.Slice, error) {
	uid, err := u.who(ctx)
	if err != nil {
		return nil, err
	}
	return u.e.showReleased(func(s *slice) bool { return s.isOf(uid) }), nil
}

// History returns what the user's sessions needed.
func (u *Users) History(ctx context.Context) ([]api.Run, error) {
	uid, err := u.who(ctx)
	if err != nil {
		return nil, err
	}
	return u.e.needs(func(r api.Run) bool { return r.UID != nil && *r.UID == uid }), nil
}

// Slice shows one of the user's sessions.
func (u *Users) Slice(ctx context.Context, id string) (api.Slice, error) {
	if err := u.own(ctx, id); err != nil {
		return api.Slice{}, err
	}
	return u.e.Slice(ctx, id)
}

// Release ends one of the user's sessions.
func (u *Users) Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error) {
	if err := u.own(ctx, id); err != nil {
		return api.Slice{}, err
	}
	return u.e.Release(ctx, id, generation, force)
}

// Renew sets the time to live of one of the user's sessions, from now.
func (u *Users) Renew(ctx context.Context, id string, r api.RenewRequest) (api.Slice, error) {
	if err := u.own(ctx, id); err != nil {
		return api.Slice{}, err
	}
	uid, err := u.who(ctx)
	if err == nil {
		err = u.e.changes.Change(uid)
	}
	if err != nil {
		return api.Slice{}, err
	}
	return u.e.Renew(ctx, id, r)
}

// Suspend moves the memory of one of the user's sessions to host memory.
func (u *Users) Suspend(ctx context.Context, id string) (api.Slice, error) {
	if err := u.mayMove(ctx, id); err != nil {
		return api.Slice{}, err
	}
	return u.e.Suspend(ctx, id)
}

// Resume brings it back.
func (u *Users) Resume(ctx context.Context, id string) (api.Slice, error) {
	if err := u.mayMove(ctx, id); err != nil {
		return api.Slice{}, err
	}
	return u.e.Resume(ctx, id)
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
	if s := u.e.find(id); s != nil && !s.isOf(uid) {
		return refuse("session %s is another user's, and its token does not allow this", id)
	}
	return u.e.changes.Change(uid)
}

func within(uid uint32, l *session.Limit) *admission.User {
	return &admission.User{UID: uid, MaxVRAM: l.MaxVRAM, MaxSessions: l.MaxSessions}
}

// userLimit returns the operator's limit for the slice's user; nil if there is none. The groups are those of the session's first process, as the
// kernel reports them.
func (s *slice) userLimit() *admission.User {
	if s.holder.UID == nil || *s.holder.UID == 0 {
		return nil
	}
	var groups []uint32
	if s.request.For != nil {
		groups = s.request.For.Groups
	} else {
		groups = process.Groups(s.request.PID)
	}
	if l, err := session.For(s.e.options.Users, *s.holder.UID, groups); err == nil {
		return within(*s.holder.UID, l)
	}
	return nil
}

// Limits shows what the user may have.
func (u *Users) Limits(ctx context.Context, _ *api.User) (api.UserLimits, error) {
	uid, l, err := u.limit(ctx)
	if err != nil {
		return api.UserLimits{}, err
	}
	return u.e.limits(uid, within(uid, l)), nil
}

// Limits shows what a user may have; nil is the calling user, which has no limit on the control socket.
func (e *Enforcer) Limits(ctx context.Context, of *api.User) (api.UserLimits, error) {
	if of == nil {
		asker, _ := e.caller(ctx)
		return e.limits(asker.UID, nil), nil
	}
	if of.UID == 0 {
		return e.limits(0, nil), nil
	}
	l, err := session.For(e.options.Users, of.UID, of.Groups)
	if err != nil {
		return api.UserLimits{}, err
	}
	return e.limits(of.UID, within(of.UID, l)), nil
}

func (e *Enforcer) limits(uid uint32, l *admission.User) api.UserLimits {
	shown := api.UserLimits{UID: uid, MaxTTL: e.options.MaxTTL, Devices: []api.DeviceLimit{}}
	if l != nil {
		shown.MaxVRAM, shown.MaxSessions = l.MaxVRAM.String(), l.MaxSessions
	}
	var devices map[string]api.DeviceLimit
	shown.Sessions, devices = e.book.Left(uid, l)
	if e.truth == nil {
		return shown
	}
	for _, g := range e.truth.devices {
		d := devices[g.UUID]
		d.Index, d.Name = g.Index, g.Name
		shown.Devices = append(shown.Devices, d)
	}
	return shown
}

// Join is the enforcer's, which requires a token in any case.
func (u *Users) Join(ctx context.Context, id string, r api.JoinRequest) (api.RegisterReply, error) {
	return u.e.Join(ctx, id, r)
}

// Register begins a session of the user. Its id is that of api.UserSessionID.
func (u *Users) Register(ctx context.Context, r api.RegisterRequest) (api.RegisterReply, error) {
	return u.e.counted(func() (api.RegisterReply, error) {
		uid, l, err := u.limit(ctx)
		if err != nil {
			return api.RegisterReply{}, err
		}
		if err := mayAsk(&r); err != nil {
			return api.RegisterReply{}, err
		}
		if err := u.e.changes.Change(uid); err != nil {
			return api.RegisterReply{}, err
		}
		r.UID = uid
		r.Visible = nil // a user's claim makes no device invisible: the session counts on all devices of its quotas
		if groups := u.groups(ctx); len(groups) > 0 {
			r.GID = groups[0]
		}
		r.ID = api.UserSessionID(uid, r.ID)
		return u.e.register(ctx, r, within(uid, l))
	})
}

// mayAsk returns an error if a user may not make such a request.
func mayAsk(r *api.RegisterRequest) error {
	switch {
	case r.For != nil:
		return refuse("slice %s is for uid %d: only root can request slices for other users", r.ID, r.For.UID)
	case !r.Session:
		return refuse("slice %s is a container's", r.ID)
	}
	return mayHave(r)
}

// mayHave returns an error if a user may not have what a request contains.
func mayHave(r *api.RegisterRequest) error {
	switch {
	case r.Tenant != "":
		return refuse("the session would be accounted to tenant %s", r.Tenant)
	case len(r.Pools) > 0:
		return refuse("the session would use the quota of pool %s", r.Pools)
	case r.Mode == api.Record:
		return refuse("mode %s refuses no memory, so limits would have no effect", r.Mode)
	}
	return nil
}

func refuse(format string, args ...any) error {
	return api.Errorf(api.CodeForbidden, format+": users can begin only sessions of their own (root and the socket's group use the control socket)", args...)
}

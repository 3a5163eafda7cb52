// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/session"
)

// UserOf returns the user that a slice is accounted to: the owner of a session, or the user named by root; nil if there is none.
func (e *Enforcer) UserOf(id string) (uid *uint32, known bool) {
	s := e.find(id)
	if s == nil {
		return nil, false
	}
	return s.holder.UID, true
}

func (s *slice) isOf(uid uint32) bool { return s.holder.UID != nil && *s.holder.UID == uid }

func ofUser(uid uint32) func(*slice) bool { return func(s *slice) bool { return s.isOf(uid) } }

func anyones(*slice) bool { return true }

// MayChange returns an error if a user changes slices too often.
func (e *Enforcer) MayChange(uid uint32) error { return e.changes.Change(uid) }

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
		err = session.MayHave(r)
	}
	if err == nil {
		err = e.MayChange(r.For.UID)
	}
	return l, err
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
	l, _ := session.For(s.e.options.Users, *s.holder.UID, groups)
	return l
}

// Limits shows what a user may have; nil is the calling user, which has no limit on the control socket.
func (e *Enforcer) Limits(ctx context.Context, of *api.User) (api.UserLimits, error) {
	if of == nil {
		asker, _ := e.caller(ctx)
		return e.LimitsWithin(asker.UID, nil), nil
	}
	if of.UID == 0 {
		return e.LimitsWithin(0, nil), nil
	}
	l, err := session.For(e.options.Users, of.UID, of.Groups)
	if err != nil {
		return api.UserLimits{}, err
	}
	return e.LimitsWithin(of.UID, l), nil
}

// LimitsWithin shows what a user with this limit may have.
func (e *Enforcer) LimitsWithin(uid uint32, l *admission.User) api.UserLimits {
	shown := api.UserLimits{UID: uid, MaxTTL: e.options.MaxTTL, Devices: []api.DeviceLimit{}}
	if l != nil {
		shown.MaxVRAM, shown.MaxSessions = l.MaxVRAM.String(), l.MaxSessions
	}
	var devices map[string]api.DeviceLimit
	shown.Sessions, devices = e.book.Left(uid, l)
	if e.truth == nil {
		return shown
	}
	for _, g := range e.truth.All() {
		d := devices[g.UUID]
		d.Index, d.Name = g.Index, g.Name
		shown.Devices = append(shown.Devices, d)
	}
	return shown
}

// SPDX-License-Identifier: Apache-2.0

package session

import (
	"os/user"
	"slices"
	"strconv"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

// Limit limits the sessions of each user that it applies to.
type Limit struct {
	User, Group string    // exactly one is set: the name or number of a user or of a group
	MaxVRAM     api.Share // of each device, for all sessions of a user together
	MaxSessions int       // concurrent sessions
}

// ID returns the number of the user or the group. It looks the number up for each session, since users may change while the enforcer runs.
func (l *Limit) ID() (uint32, error) {
	name, lookUp := l.User, func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	}
	if l.Group != "" {
		name, lookUp = l.Group, func(name string) (string, error) {
			g, err := user.LookupGroup(name)
			if err != nil {
				return "", err
			}
			return g.Gid, nil
		}
	}
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(n), nil
	}
	number, err := lookUp(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(number, 10, 32)
	return uint32(n), err
}

// For returns what the first limit that applies to the user or one of the groups allows. A user without a limit may have no session.
func For(limits []Limit, uid uint32, groups []uint32) (*refusal.User, error) {
	for i := range limits {
		l := &limits[i]
		id, err := l.ID()
		if err == nil && (l.User != "" && id == uid || l.Group != "" && slices.Contains(groups, id)) {
			return &refusal.User{UID: uid, MaxVRAM: l.MaxVRAM, MaxSessions: l.MaxSessions}, nil
		}
	}
	return nil, api.Errorf(api.CodeForbidden, "uid %d may have no session on this host: ask the operator to add the user in [[sessions.limits]] of the configuration", uid)
}

// MayHave returns an error if a user may not have what a request contains.
func MayHave(r *api.RegisterRequest) error {
	switch {
	case r.Tenant != "":
		return Refuse("the session would be accounted to tenant %s", r.Tenant)
	case len(r.Pools) > 0:
		return Refuse("the session would use the quota of pool %s", r.Pools)
	case r.Mode == api.Record:
		return Refuse("mode %s refuses no memory, so limits would have no effect", r.Mode)
	}
	return nil
}

// Refuse returns the error for a request that is not a user's to make.
func Refuse(format string, args ...any) error {
	return api.Errorf(api.CodeForbidden, format+": users can begin only sessions of their own (root and the socket's group use the control socket)", args...)
}

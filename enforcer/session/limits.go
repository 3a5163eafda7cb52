// SPDX-License-Identifier: Apache-2.0

package session

import (
	"os/user"
	"slices"
	"strconv"

	"github.com/gpuslice/gpuslice/api"
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

// For returns the first limit that applies to the user or one of the groups. A user without a limit may have no session.
func For(limits []Limit, uid uint32, groups []uint32) (*Limit, error) {
	for i := range limits {
		l := &limits[i]
		id, err := l.ID()
		if err == nil && (l.User != "" && id == uid || l.Group != "" && slices.Contains(groups, id)) {
			return l, nil
		}
	}
	return nil, api.Errorf(api.CodeForbidden, "uid %d may have no session on this host: ask the operator to add the user in [[sessions.limits]] of the configuration", uid)
}

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"

	"github.com/gpuslice/gpuslice/enforcer/session"
)

// Sessions is what users who may not use the control socket can have.
type Sessions struct {
	Socket string         `toml:"socket"`
	Limits []SessionLimit `toml:"limits"`
}

// SessionLimit is what the sessions of each user that it is for may have together.
type SessionLimit struct {
	User        string `toml:"user"`  // a name or a number; exactly one of User and Group is set
	Group       string `toml:"group"` // one that the user is in
	MaxVRAM     Share  `toml:"max_vram"`
	MaxSessions int    `toml:"max_sessions"` // 0 is DefaultMaxSessions
}

const (
	// DefaultMaxSessions is that of a limit that says none: each session costs the enforcer descriptors and memory.
	DefaultMaxSessions = 16
	maxSessions        = 10000
)

// Serve says whether there is to be a socket: one that nobody may use is of no use.
func (s *Sessions) Serve() bool { return s.Socket != "" && len(s.Limits) > 0 }

// ForUsers returns the limits as the daemons apply them.
func (s *Sessions) ForUsers() []session.Limit {
	limits := make([]session.Limit, 0, len(s.Limits))
	for _, l := range s.Limits {
		limits = append(limits, session.Limit{User: l.User, Group: l.Group, MaxVRAM: l.MaxVRAM.Share, MaxSessions: cmp.Or(l.MaxSessions, DefaultMaxSessions)})
	}
	return limits
}

func (s *Sessions) check() error {
	if s.Socket != "" && !isPath(s.Socket) {
		return fmt.Errorf("sessions.socket = %q: an absolute path is accepted, or \"\" for none", s.Socket)
	}
	for i, l := range s.Limits {
		who := fmt.Sprintf("sessions.limits, number %d", i+1)
		switch {
		case (l.User == "") == (l.Group == ""):
			return fmt.Errorf("%s: user = %q and group = %q: exactly one of them is accepted", who, l.User, l.Group)
		case l.MaxVRAM.IsZero():
			return fmt.Errorf("%s has no max_vram: a size such as \"4G\", or a share such as \"50%%\", is accepted", who)
		case l.MaxSessions < 0 || l.MaxSessions > maxSessions:
			return fmt.Errorf("%s: max_sessions = %d: 1 to %d are accepted", who, l.MaxSessions, maxSessions)
		}
	}
	return nil
}

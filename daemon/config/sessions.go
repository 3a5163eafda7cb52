// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"

	"github.com/gpuslice/gpuslice/enforcer/session"
)

// Sessions is the section [sessions]: limits of users without access to the control socket.
type Sessions struct {
	Socket string         `toml:"socket"`
	Limits []SessionLimit `toml:"limits"`
}

// SessionLimit limits the sessions of each matching user together.
type SessionLimit struct {
	User        string `toml:"user"`  // name or number; exactly one of User and Group is set
	Group       string `toml:"group"` // one of the user's groups
	MaxVRAM     Share  `toml:"max_vram"`
	MaxSessions int    `toml:"max_sessions"` // 0 is DefaultMaxSessions
}

const (
	// DefaultMaxSessions applies to limits without max_sessions: each session costs the enforcer descriptors and memory.
	DefaultMaxSessions = 16
	maxSessions        = 10000
)

// Serve reports whether the users' socket is needed, that is, whether any user may use it.
func (s *Sessions) Serve() bool { return s.Socket != "" && len(s.Limits) > 0 }

// ForUsers returns the limits in the form of package session.
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

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"strconv"

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

func (s *Sessions) check(f *faults) {
	f.unless(s.Socket == "" || isPath(s.Socket), "sessions.socket", s.Socket, `an absolute path is accepted, or "" for none`)
	for i, l := range s.Limits {
		section := "sessions.limits" + numbered + strconv.Itoa(i+1)
		if (l.User == "") == (l.Group == "") {
			f.add(below(section, "user"), "%s: user = %q and group = %q: exactly one of them is accepted", section, l.User, l.Group)
		}
		if key := below(section, "max_vram"); l.MaxVRAM.IsZero() {
			f.add(key, `%s has no max_vram: a size such as "4G", or a share such as "50%%", is accepted`, section)
		}
		f.unless(l.MaxSessions >= 0 && l.MaxSessions <= maxSessions, below(section, "max_sessions"), l.MaxSessions, "1 to %d are accepted", maxSessions)
	}
}

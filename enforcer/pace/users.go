// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"maps"
	"sync"
	"time"
)

// Users has a limiter for each recent user.
type Users struct {
	PerSecond float64
	Burst     int

	mu sync.Mutex
	by map[uint32]*Limiter
}

// Of returns the limiter of a user.
func (u *Users) Of(uid uint32) *Limiter {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.by[uid] == nil {
		if u.by == nil {
			u.by = make(map[uint32]*Limiter)
		}
		maps.DeleteFunc(u.by, func(_ uint32, l *Limiter) bool { return l.Tokens(time.Now()) >= float64(u.Burst) })
		u.by[uid] = New(u.PerSecond, u.Burst)
	}
	return u.by[uid]
}

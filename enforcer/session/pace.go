// SPDX-License-Identifier: Apache-2.0

package session

import (
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/pace"
)

// Pace limits how often each user may do something: Burst times at once, and then once per Interval.
type Pace struct {
	Burst    int
	Interval time.Duration

	mu guard.Mutex[guard.Leaf] // guards by
	by map[uint32]*pace.Limiter
}

// WrongTokens returns the pace of wrong tokens. No token can be guessed; the limit bounds the cost of attempts, and makes them visible.
func WrongTokens() *Pace { return &Pace{Burst: wrongAtOnce, Interval: wrongInterval} }

// Changes returns the pace at which a user creates and renews sessions. Each change is stored, and has events.
func Changes() *Pace { return &Pace{Burst: changesAtOnce, Interval: changesInterval} }

const (
	wrongAtOnce     = 10
	wrongInterval   = 6 * time.Second
	changesAtOnce   = 64
	changesInterval = time.Second
)

// maxPaced bounds the users with a limiter. Further users are not limited, so a crowd of users cannot lock out another.
const maxPaced = 1024

// Wait reports whether a user has used up the burst, and has to wait.
func (p *Pace) Wait(now time.Time, uid uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wait(now, uid)
}

func (p *Pace) wait(now time.Time, uid uint32) bool {
	for user, limiter := range p.by {
		if limiter.Tokens(now) >= float64(p.Burst) {
			delete(p.by, user)
		}
	}
	limiter := p.by[uid]
	return limiter != nil && limiter.Tokens(now) < 1
}

// Change counts a change of a user's sessions, or returns an error if there were too many.
func (p *Pace) Change(uid uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.wait(now, uid) {
		return api.Errorf(api.CodeBusy, "uid %d has created and renewed sessions %d times in a short time: one more is accepted every %s: try again later", uid, p.Burst, p.Interval)
	}
	p.did(now, uid)
	return nil
}

// Did counts an action of a user, and reports whether it is the first one in a while.
func (p *Pace) Did(now time.Time, uid uint32) (first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.did(now, uid)
}

func (p *Pace) did(now time.Time, uid uint32) (first bool) {
	limiter := p.by[uid]
	if limiter == nil {
		if len(p.by) >= maxPaced {
			return false
		}
		if p.by == nil {
			p.by = make(map[uint32]*pace.Limiter)
		}
		limiter, first = pace.Every(p.Interval, p.Burst), true
		p.by[uid] = limiter
	}
	limiter.Allow(now)
	return first
}

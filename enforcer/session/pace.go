// SPDX-License-Identifier: Apache-2.0

package session

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// Pace is how often each user may do something: Burst times at once, and then once each Interval.
type Pace struct {
	Burst    int
	Interval time.Duration

	mu guard.Mutex[guard.Leaf] // guards by
	by map[uint32]*rate.Limiter
}

// WrongTokens is the pace of wrong tokens. A token cannot be guessed in the age of the universe; this is so that guessing costs nobody
// anything, and is noticed.
func WrongTokens() *Pace { return &Pace{Burst: wrongAtOnce, Interval: wrongInterval} }

// Changes is the pace at which a user begins and renews sessions: each is stored, and has events.
func Changes() *Pace { return &Pace{Burst: changesAtOnce, Interval: changesInterval} }

const (
	wrongAtOnce     = 10
	wrongInterval   = 6 * time.Second
	changesAtOnce   = 64
	changesInterval = time.Second
)

// maxPaced is of how many users at a time it is known what they did. Others may do it: a crowd of users keeps nobody from it.
const maxPaced = 1024

// Wait says whether a user has done it so often that he has to wait.
func (p *Pace) Wait(now time.Time, uid uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for user, limiter := range p.by {
		if limiter.TokensAt(now) >= float64(p.Burst) {
			delete(p.by, user)
		}
	}
	limiter := p.by[uid]
	return limiter != nil && limiter.TokensAt(now) < 1
}

// Change counts a change of a user's sessions, or says that there were too many.
func (p *Pace) Change(uid uint32) error {
	now := time.Now()
	if p.Wait(now, uid) {
		return api.Errorf(api.CodeBusy, "uid %d has begun and renewed sessions %d times in a short time: once each %s is accepted after that, ask again then", uid, p.Burst, p.Interval)
	}
	p.Did(now, uid)
	return nil
}

// Did notes that a user did it, and says whether that is the first time lately.
func (p *Pace) Did(now time.Time, uid uint32) (first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	limiter := p.by[uid]
	if limiter == nil {
		if len(p.by) >= maxPaced {
			return false
		}
		if p.by == nil {
			p.by = make(map[uint32]*rate.Limiter)
		}
		limiter, first = rate.NewLimiter(rate.Every(p.Interval), p.Burst), true
		p.by[uid] = limiter
	}
	limiter.AllowN(now, 1)
	return first
}

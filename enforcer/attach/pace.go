// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"time"
)

// pace lets so many through in a second, and so many more at once if there were few before. It is one goroutine's.
type pace struct {
	each  time.Duration // one more may go after that
	burst int
	full  time.Time // when all of burst may go at once again
}

func newPace(perSecond, burst int) pace {
	return pace{each: time.Second / time.Duration(perSecond), burst: burst}
}

// take is how long one who comes now has to wait.
func (p *pace) take(now time.Time) time.Duration {
	if p.full.Before(now) {
		p.full = now
	}
	p.full = p.full.Add(p.each)
	return max(0, p.full.Sub(now)-time.Duration(p.burst)*p.each)
}

// wait for one's turn; false if stopped ends before.
func (p *pace) wait(stopped context.Context) bool {
	d := p.take(time.Now())
	if d == 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-stopped.Done():
		return false
	}
}

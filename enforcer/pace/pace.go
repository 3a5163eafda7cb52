// SPDX-License-Identifier: Apache-2.0

// Package pace limits the rate of events that concurrent callers cause.
package pace

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limiter lets a burst of events pass, and then a number per second. A time older than that of an earlier call counts as the latter: a rate.Limiter
// moves its clock back instead, and lets the events of that period pass twice.
type Limiter struct {
	mu      sync.Mutex
	latest  time.Time
	limiter *rate.Limiter
}

// New returns a limiter that lets burst events pass at once.
func New(perSecond float64, burst int) *Limiter {
	return &Limiter{limiter: rate.NewLimiter(rate.Limit(perSecond), burst)}
}

// Every returns a limiter that lets burst events pass at once, and then one per interval.
func Every(interval time.Duration, burst int) *Limiter {
	return New(1/interval.Seconds(), burst)
}

// at returns the later one of t and the latest time. Called with mu held.
func (l *Limiter) at(t time.Time) time.Time {
	if t.After(l.latest) {
		l.latest = t
	}
	return l.latest
}

// Allow reports whether an event may pass now, and counts it if so.
func (l *Limiter) Allow(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limiter.AllowN(l.at(now), 1)
}

// Tokens returns the number of events that may pass at once. It is negative while reserved events wait.
func (l *Limiter) Tokens(now time.Time) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limiter.TokensAt(l.at(now))
}

// Reserve counts n events, and returns the time to wait before them. n is at most the burst.
func (l *Limiter) Reserve(now time.Time, n int) time.Duration {
	wait, _ := l.reserve(now, n)
	return wait
}

func (l *Limiter) reserve(now time.Time, n int) (time.Duration, *rate.Reservation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.limiter.ReserveN(l.at(now), n)
	return r.DelayFrom(l.latest), r
}

// Wait waits until an event may pass. It returns an error, and counts nothing, if ctx ends before.
func (l *Limiter) Wait(ctx context.Context) error {
	wait, r := l.reserve(time.Now(), 1)
	err := ctx.Err()
	if end, ends := ctx.Deadline(); err == nil && ends && time.Until(end) < wait {
		err = context.DeadlineExceeded
	}
	if err == nil {
		select {
		case <-time.After(wait):
			return nil
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r.CancelAt(l.at(time.Now()))
	return err
}

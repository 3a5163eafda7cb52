// SPDX-License-Identifier: Apache-2.0

package server

import (
	"maps"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/gpuslice/gpuslice/enforcer/session"
)

// paceBurst is how many seconds' requests a user has at once.
const paceBurst = 8

// paced has a user wait who asks for more than perSecond KiB of requests, head and body, whatever they are and on however many
// connections: to read 64 KiB of JSON takes up to 5 ms of a processor. Who waits keeps his place, so that others are no later.
func paced(next http.Handler, perSecond rate.Limit) http.Handler {
	if perSecond == 0 {
		return next
	}
	burst := int(paceBurst * perSecond)
	var mu sync.Mutex
	by := make(map[uint32]*rate.Limiter) // of those who asked lately
	of := func(uid uint32) *rate.Limiter {
		mu.Lock()
		defer mu.Unlock()
		if by[uid] == nil {
			maps.DeleteFunc(by, func(_ uint32, l *rate.Limiter) bool { return l.Tokens() >= float64(burst) })
			by[uid] = rate.NewLimiter(perSecond, burst)
		}
		return by[uid]
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, known := PeerOf(r.Context())
		if !known {
			p.counts = session.NoUser
		}
		if !privileged(p.counts) {
			time.Sleep(of(p.counts).ReserveN(time.Now(), kibibytes(r)).Delay())
		}
		next.ServeHTTP(w, r)
	})
}

// perRequest is the KiB that each request counts as, beside its body: to accept a connection and answer takes some 300 µs.
const perRequest = 8

// kibibytes that a request counts as, of which no more is read than may be.
func kibibytes(r *http.Request) int {
	body := r.ContentLength
	if body < 0 || body > maxBody { // it does not say, or it will be refused
		body = maxBody
	}
	return perRequest + int((body+1<<10-1)>>10)
}

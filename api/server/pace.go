// SPDX-License-Identifier: Apache-2.0

package server

import (
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/pace"
	"github.com/gpuslice/gpuslice/enforcer/session"
)

// paceBurst is the number of seconds of requests that a user may send at once.
const paceBurst = 8

// paces has a limiter for each recent user.
type paces struct {
	perSecond float64
	burst     int

	mu sync.Mutex
	by map[uint32]*pace.Limiter
}

func newPaces(perSecond float64, burst int) *paces {
	return &paces{perSecond: perSecond, burst: burst, by: make(map[uint32]*pace.Limiter)}
}

func (p *paces) of(uid uint32) *pace.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by[uid] == nil {
		maps.DeleteFunc(p.by, func(_ uint32, l *pace.Limiter) bool { return l.Tokens(time.Now()) >= float64(p.burst) })
		p.by[uid] = pace.New(p.perSecond, p.burst)
	}
	return p.by[uid]
}

// connectionPaces returns a pace of one connection for each request that a user may send, or nil if requests have no pace. A user
// that reads each answer before the next connection stays within it.
func connectionPaces(l limits) *paces {
	if l.pace == 0 {
		return nil
	}
	return newPaces(l.pace/perRequest, int(paceBurst*l.pace/perRequest)+l.each)
}

// paced delays the requests of a user beyond perSecond KiB of heads and bodies on all connections: reading 64 KiB of JSON takes
// up to 5 ms of a processor. A delayed request keeps its connection, and delays no other user.
func paced(next http.Handler, perSecond float64) http.Handler {
	if perSecond == 0 {
		return next
	}
	paces := newPaces(perSecond, int(paceBurst*perSecond))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, known := PeerOf(r.Context())
		if !known {
			p.counts = session.NoUser
		}
		if !privileged(p.counts) {
			time.Sleep(paces.of(p.counts).Reserve(time.Now(), kibibytes(r)))
		}
		next.ServeHTTP(w, r)
	})
}

// perRequest is the KiB charged for a request in addition to its body: accepting a connection and answering takes about 300 µs.
const perRequest = 8

// kibibytes returns the KiB charged for a request. A body counts as maxBody at most, since no more is read.
func kibibytes(r *http.Request) int {
	body := r.ContentLength
	if body < 0 || body > maxBody { // the length is unknown, or the body will be rejected
		body = maxBody
	}
	return perRequest + int((body+1<<10-1)>>10)
}

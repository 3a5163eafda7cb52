// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/pace"
	"github.com/gpuslice/gpuslice/enforcer/session"
)

// paceBurst is the number of seconds of requests that a user may send at once.
const paceBurst = 8

// connectionPaces returns a pace of one connection for each request that a user may send, or nil if requests have no pace. A user
// that reads each answer before the next connection stays within it.
func connectionPaces(l limits) *pace.Users {
	if l.pace == 0 {
		return nil
	}
	return &pace.Users{PerSecond: l.pace / perRequest, Burst: int(paceBurst*l.pace/perRequest) + l.perUser}
}

// paced delays the requests of a user beyond perSecond KiB of heads and bodies on all connections: reading 64 KiB of JSON takes
// up to 5 ms of a processor. A delayed request keeps its connection, and delays no other user.
func paced(next http.Handler, perSecond float64) http.Handler {
	if perSecond == 0 {
		return next
	}
	paces := &pace.Users{PerSecond: perSecond, Burst: int(paceBurst * perSecond)}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, known := PeerOf(r.Context())
		if !known {
			p.counts = session.NoUser
		}
		if !privileged(p.counts) {
			time.Sleep(paces.Of(p.counts).Reserve(time.Now(), kibibytes(r)))
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

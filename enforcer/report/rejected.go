// SPDX-License-Identifier: Apache-2.0

package report

import (
	"time"

	"github.com/gpuslice/gpuslice/enforcer/pace"
)

// rejectedPerSecond is the number of rejected attaches of a slice that are reported one by one per second. The others are reported as a
// sum. Any process that reaches the attach socket can send requests at any rate, and must fill neither the events nor the audit log.
const rejectedPerSecond = 4

// Rejected are the rejected attaches of one slice. The zero value has none.
type Rejected struct {
	alone *pace.Limiter
	rest  map[string]uint64 // by cause
}

// Add counts a rejected attach. It reports whether to report it on its own; otherwise the next sum includes it.
func (r *Rejected) Add(now time.Time, cause string) (alone bool) {
	if r.alone == nil {
		r.alone, r.rest = pace.New(rejectedPerSecond, rejectedPerSecond), make(map[string]uint64)
	}
	if r.alone.Allow(now) {
		return true
	}
	r.rest[cause]++
	return false
}

// Rest calls report with the sum of each cause, and clears the sums.
func (r *Rejected) Rest(report func(cause string, n uint64)) {
	for cause, n := range r.rest {
		report(cause, n)
	}
	clear(r.rest)
}

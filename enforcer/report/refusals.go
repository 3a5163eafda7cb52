// SPDX-License-Identifier: Apache-2.0

// Package report decides which refused charges and rejected attaches to report one by one.
//
// A process counts its refusals in its lane, and describes one of them there. The count alone decides the number of refusals to report, so none
// is reported twice or lost, whatever a process describes.
//
// Refusals and Rejected have no lock of their own: the slice's lock guards them.
package report

import (
	"math"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/pace"
)

const (
	// saidPerSecond is the number of refusals of a slice that are reported one by one per second. The others are reported as a sum.
	saidPerSecond = 16
	// maxCount bounds a count, which a process can write at will.
	maxCount = math.MaxUint32
)

// Process is a process with a lane, and the number of its refusals that were reported.
type Process struct {
	PID      int
	Command  string
	reported [ledger.Devices]uint64
}

// Rest returns the unreported part of n refusals on a device, and marks it as reported.
func (p *Process) Rest(device int, n uint64) uint64 {
	grown := n - min(n, p.reported[device]) // an honest process never counts down
	p.reported[device] = n
	return min(grown, maxCount)
}

// Sum is a number of refusals on one device. PID and Command are set if a single process counted them.
type Sum struct {
	Count   uint64
	PID     int
	Command string
}

// Refusals are the refusals of one slice that are to be reported. The zero value has none.
type Refusals struct {
	said *pace.Limiter
	sums [ledger.Devices]Sum
}

// Allow reports whether a described refusal is reported on its own.
func (r *Refusals) Allow(now time.Time) bool {
	if r.said == nil {
		r.said = pace.New(saidPerSecond, saidPerSecond)
	}
	return r.said.Allow(now)
}

// Add adds the refusals of one process to the sum of a device.
func (r *Refusals) Add(device int, more Sum) {
	sum := &r.sums[device]
	switch {
	case more.Count == 0:
		return
	case sum.Count == 0:
		*sum = more
	case sum.PID != more.PID:
		sum.PID, sum.Command = 0, ""
		fallthrough
	default:
		sum.Count = min(sum.Count+more.Count, maxCount)
	}
}

// Take returns the sum of a device, and makes it zero.
func (r *Refusals) Take(device int) Sum {
	sum := r.sums[device]
	r.sums[device] = Sum{}
	return sum
}

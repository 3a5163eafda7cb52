// SPDX-License-Identifier: Apache-2.0

// Package report says what there is to report of refused charges and rejected attaches.
//
// A process counts its refusals in its lane. That count decides how many there were and how many are still unreported. What a
// process says of a refusal makes it known at once; what nobody said is found by the regular check. So nothing is reported twice, whatever a
// process says, and nothing is lost, however many are refused.
//
// Refusals and Rejected do not lock: they belong to a slice.
package report

import (
	"iter"
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

const (
	// saidPerSecond is how many refusals of a slice are reported one by one; the others as a sum.
	saidPerSecond = 16
	// maxExited is of how many exited processes it is remembered which of them was refused.
	maxExited = 64
	// maxCount bounds a count that a process can write at will.
	maxCount = math.MaxUint32
)

// Process is a process with a lane, and what was reported of the refusals that it counts there.
type Process struct {
	PID     int
	Command string
	counts  [ledger.Devices]count
}

// Begin takes a device's count as reported: it is not the process's own, or was reported by the enforcer before this one.
func (p *Process) Begin(device int, n uint64) { p.counts[device].begin(n) }

// count is what was reported of a number that a process raises.
type count struct{ reported, checked uint64 }

func (c *count) begin(n uint64) { c.reported, c.checked = n, n }

// rest is what n has grown since it was reported. It is reported now.
func (c *count) rest(n uint64) uint64 {
	grown := n - min(n, c.reported)
	c.begin(n)
	return min(grown, maxCount)
}

// settled is what n had grown at the check before this one: between two checks a process had the time to say more about it. It is
// reported now.
func (c *count) settled(n uint64) uint64 {
	grown := c.checked - min(c.checked, c.reported)
	c.reported = c.checked
	if n < c.reported { // no honest process counts down
		c.reported = n
	}
	c.checked = n
	return min(grown, maxCount)
}

// Refusals are those of a slice. The zero value has none.
type Refusals struct {
	said   *rate.Limiter
	exited map[int]*exited // by pid
}

// exited is what a process was refused that has exited since: what it said may still wait to be read.
type exited struct {
	command string
	counts  [ledger.Devices]uint64
	checked bool // since it exited
}

// Allow says whether a refusal that a process says something of is reported by itself.
func (r *Refusals) Allow(now time.Time) bool {
	if r.said == nil {
		r.said = rate.NewLimiter(saidPerSecond, saidPerSecond)
	}
	return r.said.AllowN(now, 1)
}

// Said is what is unreported on a device of the process of that pid, which has said something of it. p is nil if it has no lane; n is its
// lane's count. It is reported now.
func (r *Refusals) Said(pid int, p *Process, device int, n uint64) (command string, unreported uint64) {
	if p != nil {
		command, unreported = p.Command, p.counts[device].rest(n)
	}
	if x := r.exited[pid]; x != nil && unreported == 0 {
		command, unreported = x.command, x.counts[device]
		x.counts[device] = 0
	}
	return command, unreported
}

// Exit keeps what is unreported on a device of a process that has exited, before another process has the lane.
func (r *Refusals) Exit(p *Process, device int, n uint64) {
	unreported := p.counts[device].rest(n)
	if unreported == 0 {
		return
	}
	pid, command := p.PID, p.Command
	if r.exited[pid] == nil && len(r.exited) >= maxExited {
		pid, command = 0, "" // counted, and not told apart
	}
	if r.exited == nil {
		r.exited = make(map[int]*exited)
	}
	if r.exited[pid] == nil {
		r.exited[pid] = &exited{command: command}
	}
	x := r.exited[pid]
	x.counts[device] = min(x.counts[device]+unreported, maxCount)
}

// Sum is refusals on one device. PID and Command are set if one process counted all of them.
type Sum struct {
	Count   uint64
	PID     int
	Command string
}

// Check is what the processes with lanes, each with its count, and those that have exited counted on a device and nobody said anything about:
// all of it, or what the check before this one has seen. It is reported now.
func (r *Refusals) Check(device int, all bool, lanes iter.Seq2[*Process, uint64]) (sum Sum) {
	processes := 0
	add := func(n uint64, pid int, command string) {
		if n == 0 {
			return
		}
		processes++
		sum = Sum{min(sum.Count+n, maxCount), pid, command}
	}
	for p, n := range lanes {
		if all {
			n = p.counts[device].rest(n)
		} else {
			n = p.counts[device].settled(n)
		}
		add(n, p.PID, p.Command)
	}
	for pid, x := range r.exited {
		if all || x.checked {
			add(x.counts[device], pid, x.command)
			x.counts[device] = 0
		}
	}
	if processes > 1 {
		sum.PID, sum.Command = 0, ""
	}
	return sum
}

// Checked ends a check of all devices.
func (r *Refusals) Checked() {
	for pid, x := range r.exited {
		if x.checked {
			delete(r.exited, pid)
		}
		x.checked = true
	}
}

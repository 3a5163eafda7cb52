// SPDX-License-Identifier: Apache-2.0

// Package report decides which refused charges and rejected attaches to report.
//
// A process counts its refusals in its lane. This count decides the number of refusals and of unreported ones. A refusal message of a
// process triggers a report at once; the regular check finds refusals without a message. So no refusal is reported twice or lost, whatever
// messages a process sends.
//
// Refusals and Rejected have no lock of their own: the slice's lock guards them.
package report

import (
	"iter"
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

const (
	// saidPerSecond is the number of refusals of a slice that are reported one by one per second. The others are reported as a sum.
	saidPerSecond = 16
	// maxExited bounds the exited processes with separate counts.
	maxExited = 64
	// maxCount bounds a count, which a process can write at will.
	maxCount = math.MaxUint32
)

// Process is a process with a lane, and the part of its refusals that was reported.
type Process struct {
	PID     int
	Command string
	counts  [ledger.Devices]count
}

// Begin marks the first n refusals of a device as reported: an earlier process of the lane counted them, or an earlier enforcer reported
// them.
func (p *Process) Begin(device int, n uint64) { p.counts[device].begin(n) }

// count is the reported part of a counter that a process increments.
type count struct{ reported, checked uint64 }

func (c *count) begin(n uint64) { c.reported, c.checked = n, n }

// rest returns the unreported part of n, and marks it as reported.
func (c *count) rest(n uint64) uint64 {
	grown := n - min(n, c.reported)
	c.begin(n)
	return min(grown, maxCount)
}

// settled returns the part of n that was unreported at the last check, and marks it as reported. The time between two checks leaves a
// process time to send its message.
func (c *count) settled(n uint64) uint64 {
	grown := c.checked - min(c.checked, c.reported)
	c.reported = c.checked
	if n < c.reported { // an honest process never counts down
		c.reported = n
	}
	c.checked = n
	return min(grown, maxCount)
}

// Refusals are the refusals of one slice. The zero value has none.
type Refusals struct {
	said   *rate.Limiter
	exited map[int]*exited // by pid
}

// exited has the unreported refusals of an exited process. Its message may still wait in a socket.
type exited struct {
	command string
	counts  [ledger.Devices]uint64
	checked bool // a check has seen it since it exited
}

// Allow reports whether a refusal with a message is reported on its own.
func (r *Refusals) Allow(now time.Time) bool {
	if r.said == nil {
		r.said = rate.NewLimiter(saidPerSecond, saidPerSecond)
	}
	return r.said.AllowN(now, 1)
}

// Said returns the unreported refusals on a device of the process pid, which sent a refusal message, and marks them as reported. p is nil
// if the process has no lane; n is its lane's count.
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

// Exit keeps the unreported refusals of an exited process, before another process gets its lane.
func (r *Refusals) Exit(p *Process, device int, n uint64) {
	unreported := p.counts[device].rest(n)
	if unreported == 0 {
		return
	}
	pid, command := p.PID, p.Command
	if r.exited[pid] == nil && len(r.exited) >= maxExited {
		pid, command = 0, "" // counted with those of other processes
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

// Sum is a number of refusals on one device. PID and Command are set if a single process counted them.
type Sum struct {
	Count   uint64
	PID     int
	Command string
}

// Check sums the unreported refusals on a device, of exited processes and of lanes (each process with its count), and marks them as
// reported. It sums all refusals if all is set, else those that the last check has seen.
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

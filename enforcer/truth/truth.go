// SPDX-License-Identifier: Apache-2.0

// Package truth is the one rule by which samples of driver truth count: samples of a process in, what is charged for it
// beyond its lane and whether that is a violation out.
//
// A sample is one answer of the driver about one process on one device, with the process's lane read before and after it.
//
//  1. It counts if the lane did not change meanwhile, no call was under way that the lane does not say all about, and
//     the process is not about to charge what it just learned. Or if the driver lists nothing.
//  2. More than before is charged at once, by a sample that counts. Less is, once the lane has not changed since the sample
//     before: a process charges before it takes, so one sample may find a charge whose memory is still to come.
//  3. If no sample decided for SettleTime, the excess moves as far as all samples of that time agree, and Agreeing at least: one by itself
//     may have met the lane at any height. The next one may move it further though nothing changes any more.
//  4. What is listed ExitGrace after a process's exit is charged until it is listed no more, and is no violation.
//  5. A violation is an excess above the allowance, or any of a process without a lane, in each sample that decides
//     throughout BypassGrace. It is cleared by as long below it, or by an exit.
//
// It must never wait, lock, or know a clock but the times that it is given.
package truth

import (
	"slices"
	"time"
)

// Agreeing is how many samples must agree on what none of them decides. In one out of three the lane of a process that charges and gives
// back without pause is at its highest while the driver is asked, and eight in a row are by chance once in 6,561 times. Two are taken in
// an interval, so that with what is configured unless said otherwise SettleTime has ten; an enforcer that was held up takes them anew.
const Agreeing = 8

// Rules are the times, and the allowance, as configured.
type Rules struct {
	SettleTime, ExitGrace, BypassGrace time.Duration
	Allowance                          uint64
}

// Process is one process: its pid may be another's later.
type Process struct {
	PID   int
	Start uint64
}

// Calls are calls of a process that take memory before they can charge it, as it says itself.
type Calls struct{ UnderWay, Ended uint32 }

// Lane is what a process's lane said at one time, of one device.
type Lane struct {
	ID     uint64 // 0: the process has none
	Held   uint64 // bytes, without those that are lent to others
	Number uint64 // of the lane's last change
	Calls  Calls  // that charge what they took when the driver has returned
	Loads  Calls  // of code, which takes any amount
	// Waiting is since when the process is to charge what it makes or has been told: its first context, or what it asked
	// driver truth for. Zero if it is not.
	Waiting time.Time
}

// Sample is one answer of the driver about a process.
type Sample struct {
	Begun         time.Time // before the lane was read and the driver asked
	Bytes         uint64    // that the driver holds for the process; 0 if it does not list it
	Unknown       bool      // the driver lists it and does not say
	Before, After Lane
	Exited        time.Time // when the process was found to have exited; zero if it lives
}

// State is what is known of a process on a device. The zero value is of one that was never sampled.
type State struct {
	Excess uint64 // bytes beyond the lane

	violating    bool
	decided      time.Time // when a sample counted
	above, below time.Time // since when samples that decide find it there; one is zero
	lane, number uint64    // as the last sample left them
	bounds       []bound   // of the samples since decided, at most SettleTime old, but for the last of Agreeing
}

// bound is what a sample says of the excess that does not count.
type bound struct {
	at          time.Time
	least, most uint64
}

// Result is what follows from a sample.
type Result struct {
	Excess    uint64
	Decided   bool      // Excess is what the process has by this sample, not what it had
	Open      bool      // decided by rule 3: the next sample may decide otherwise though nothing changes
	Violation bool      // there is one now
	Cleared   bool      // there was one, which this sample ended
	Again     time.Time // another sample then, or as soon as may be after it, would decide more; zero if none would
}

func (l Lane) busy(at time.Time, r Rules) bool {
	return l.Calls.UnderWay != 0 || l.Loads.UnderWay != 0 || !l.Waiting.IsZero() && at.Sub(l.Waiting) < r.SettleTime
}

// counts says whether the lane and the driver were read as if at one time.
func (x Sample) counts(r Rules) bool {
	b, a := x.Before, x.After
	return x.Bytes == 0 || b.ID == a.ID && b.Number == a.Number && b.Calls.Ended == a.Calls.Ended && b.Loads.Ended == a.Loads.Ended &&
		!b.busy(x.Begun, r) && !a.busy(x.Begun, r)
}

// bounds of the excess, of a lane that held what it did before or what it did after.
func (x Sample) bounds() (least, most uint64) {
	b, a := x.Before.Held, x.After.Held
	return x.Bytes - min(x.Bytes, max(a, b)), x.Bytes - min(x.Bytes, min(a, b))
}

// Next takes in a sample of a process.
func Next(s State, x Sample, r Rules) (State, Result) {
	if s.decided.IsZero() {
		s.decided = x.Begun
	}
	if !x.Unknown {
		s.Excess = min(s.Excess, x.Bytes)
	}
	if !x.Exited.IsZero() {
		return s.exited(x, r)
	}
	var res Result
	if !x.Unknown {
		if res.Decided, res.Open = s.settle(x, r); res.Decided {
			res.Cleared, res.Again = s.evaluate(x, r)
		} else {
			res.Again = x.Begun
		}
	}
	res.Excess, res.Violation = s.Excess, s.violating
	return s, res
}

// exited is of a process that has: the driver may be about to give back what it lists.
func (s State) exited(x Sample, r Rules) (State, Result) {
	res := Result{Cleared: s.violating}
	s.violating, s.above, s.below, s.bounds = false, time.Time{}, time.Time{}, nil
	switch {
	case x.Unknown:
	case x.Begun.Sub(x.Exited) < r.ExitGrace:
		res.Again = x.Exited.Add(r.ExitGrace)
	default:
		s.Excess, res.Decided = x.Bytes, true
	}
	res.Excess = s.Excess
	return s, res
}

// settle moves the excess by a sample, and says whether that is what the process has, and whether by rule 3.
func (s *State) settle(x Sample, r Rules) (decided, open bool) {
	still := s.lane == x.Before.ID && s.number == x.Before.Number
	s.lane, s.number = x.After.ID, x.After.Number
	least, most := x.bounds()
	if x.counts(r) && (least >= s.Excess || still) {
		s.Excess, s.decided, s.bounds = least, x.Begun, nil
		return true, false
	}
	s.bounds = append(slices.Clone(s.bounds), bound{x.Begun, least, most}) // cloned, since the state before this one has the same
	for len(s.bounds) > Agreeing && x.Begun.Sub(s.bounds[0].at) > r.SettleTime {
		s.bounds = s.bounds[1:]
	}
	if x.Begun.Sub(s.decided) < r.SettleTime || len(s.bounds) < Agreeing {
		return false, false
	}
	for _, b := range s.bounds {
		least, most = min(least, b.least), max(most, b.most)
	}
	s.Excess = min(max(s.Excess, least), most)
	return true, true
}

// evaluate says whether the excess, which a sample has decided, began or ended a violation; again is when that is known.
func (s *State) evaluate(x Sample, r Rules) (cleared bool, again time.Time) {
	allowance := r.Allowance
	if x.Before.ID == 0 && x.After.ID == 0 {
		allowance = 0
	}
	over := s.Excess > allowance
	switch {
	case over && s.above.IsZero():
		s.above, s.below = x.Begun, time.Time{}
	case !over && s.below.IsZero():
		s.above, s.below = time.Time{}, x.Begun
	}
	switch {
	case over == s.violating:
	case over:
		again = s.above.Add(r.BypassGrace)
	default:
		again = s.below.Add(r.BypassGrace)
	}
	if !again.IsZero() && !x.Begun.Before(again) {
		s.violating, cleared, again = over, !over, time.Time{}
	}
	return cleared, again
}

// SPDX-License-Identifier: Apache-2.0

// Package truth has the rule for which samples of driver truth count. Its input is the samples of a process; its output is the bytes to
// charge beyond the process's lane, and whether they are a violation.
//
// A sample is one answer of the driver about one process on one device, with the process's lane read before and after it.
//
//  1. A sample counts if the lane did not change during it, no call was under way that the lane does not fully cover, and
//     the process is not about to charge bytes that it has just learned of. It also counts if the driver lists no bytes.
//  2. A sample that counts raises the excess at once. It lowers the excess only if the lane has not changed since the last
//     sample: a process charges before it allocates, so a sample may find a charge without its memory.
//  3. If no sample has decided for SettleTime, the excess moves into the bounds of all samples of that time, of which there
//     must be Agreeing: a single one may have met the lane at any level. The next one may move it further without a change.
//  4. Bytes listed ExitGrace after a process's exit are charged while they are listed, and are no violation.
//  5. A violation is an excess above the allowance, or any excess of a process without a lane, in each deciding sample
//     during BypassGrace. It is cleared after BypassGrace below it, or by an exit.
//
// The package must never wait, lock, or read a clock.
package truth

import (
	"slices"
	"time"
)

// Agreeing is the number of samples that must agree if none of them decides. For a process that charges and releases all the time, one
// sample in three finds the lane at its highest, and eight in a row do so once in 6,561 times. Each interval has two samples, so SettleTime
// has ten with the default configuration. A delayed enforcer collects them again.
const Agreeing = 8

// Rules are the configured times and the allowance.
type Rules struct {
	SettleTime, ExitGrace, BypassGrace time.Duration
	Allowance                          uint64
}

// Process identifies a process, since its pid may be reused.
type Process struct {
	PID   int
	Start uint64
}

// Calls are a process's calls that allocate before they charge, by its own claim.
type Calls struct{ UnderWay, Ended uint32 }

// Lane is what a process's lane held on one device at one time.
type Lane struct {
	ID     uint64 // 0 without a lane
	Held   uint64 // bytes, without those lent to others
	Number uint64 // of the lane's last change
	Calls  Calls  // calls that charge after the driver has returned
	Loads  Calls  // loads of code, which may allocate any number of bytes
	// Waiting is since when the process has bytes to charge that it made or learned of: its first context, or driver truth that it
	// requested. It is zero if there are none.
	Waiting time.Time
}

// Sample is one answer of the driver about a process.
type Sample struct {
	Begun         time.Time // before the lane was read and the driver was asked
	Bytes         uint64    // bytes that the driver holds for the process, or 0 if it is not listed
	Unknown       bool      // listed without its bytes
	Before, After Lane
	Exited        time.Time // when the exit was found, or zero
}

// State is what is known of a process on a device. The zero value is for a process without samples.
type State struct {
	Excess uint64 // bytes beyond the lane

	violating    bool
	decided      time.Time // last sample that counted
	above, below time.Time // start of the deciding samples above or below the allowance; one of them is zero
	lane, number uint64    // by the last sample
	bounds       []bound   // of the samples since decided: the last Agreeing, and older ones up to SettleTime
}

// bound is the range of the excess by a sample that does not decide.
type bound struct {
	at          time.Time
	least, most uint64
}

// Result is the result of a sample.
type Result struct {
	Excess    uint64
	Decided   bool      // Excess is decided by this sample, not kept from before
	Open      bool      // decided by rule 3: the next sample may differ without a change
	Violation bool      // a violation exists now
	Cleared   bool      // this sample ended a violation
	Again     time.Time // earliest time at which another sample would decide more, or zero
}

func (l Lane) busy(at time.Time, r Rules) bool {
	return l.Calls.UnderWay != 0 || l.Loads.UnderWay != 0 || !l.Waiting.IsZero() && at.Sub(l.Waiting) < r.SettleTime
}

// counts reports whether lane and driver were read as if at one instant (rule 1).
func (x Sample) counts(r Rules) bool {
	b, a := x.Before, x.After
	return x.Bytes == 0 || b.ID == a.ID && b.Number == a.Number && b.Calls.Ended == a.Calls.Ended && b.Loads.Ended == a.Loads.Ended &&
		!b.busy(x.Begun, r) && !a.busy(x.Begun, r)
}

// bounds returns the bounds of the excess, for a lane with its bytes of before or after.
func (x Sample) bounds() (lower, upper uint64) {
	b, a := x.Before.Held, x.After.Held
	return x.Bytes - min(x.Bytes, max(a, b)), x.Bytes - min(x.Bytes, min(a, b))
}

// Next processes a sample of a process.
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

// exited processes a sample of an exited process. The driver may be about to release its memory.
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

// settle moves the excess by a sample. It reports whether the sample decides, and whether by rule 3.
func (s *State) settle(x Sample, r Rules) (decided, open bool) {
	still := s.lane == x.Before.ID && s.number == x.Before.Number
	s.lane, s.number = x.After.ID, x.After.Number
	lower, upper := x.bounds()
	if x.counts(r) && (lower >= s.Excess || still) {
		s.Excess, s.decided, s.bounds = lower, x.Begun, nil
		return true, false
	}
	s.bounds = append(slices.Clone(s.bounds), bound{x.Begun, lower, upper}) // cloned, since it is shared with the previous state
	for len(s.bounds) > Agreeing && x.Begun.Sub(s.bounds[0].at) > r.SettleTime {
		s.bounds = s.bounds[1:]
	}
	if x.Begun.Sub(s.decided) < r.SettleTime || len(s.bounds) < Agreeing {
		return false, false
	}
	for _, b := range s.bounds {
		lower, upper = min(lower, b.least), max(upper, b.most)
	}
	s.Excess = min(max(s.Excess, lower), upper)
	return true, true
}

// evaluate reports whether the decided excess ended a violation, and updates s. again is when a sample would decide more.
func (s *State) evaluate(x Sample, r Rules) (cleared bool, again time.Time) {
	allowance := r.Allowance
	if x.Before.ID == 0 && x.After.ID == 0 {
		allowance = 0
	}
	exceeds := s.Excess > allowance
	switch {
	case exceeds && s.above.IsZero():
		s.above, s.below = x.Begun, time.Time{}
	case !exceeds && s.below.IsZero():
		s.above, s.below = time.Time{}, x.Begun
	}
	switch {
	case exceeds == s.violating:
	case exceeds:
		again = s.above.Add(r.BypassGrace)
	default:
		again = s.below.Add(r.BypassGrace)
	}
	if !again.IsZero() && !x.Begun.Before(again) {
		s.violating, cleared, again = exceeds, !exceeds, time.Time{}
	}
	return cleared, again
}

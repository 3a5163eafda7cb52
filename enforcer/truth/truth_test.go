// SPDX-License-Identifier: Apache-2.0

package truth

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

const (
	mib = uint64(1) << 20
	gib = uint64(1) << 30
)

var (
	rules = Rules{SettleTime: 5 * time.Second, ExitGrace: 100 * time.Millisecond, BypassGrace: 500 * time.Millisecond, Allowance: gib}
	begin = time.Unix(1000, 0)
)

func at(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }

// sampled returns a sample at a time in milliseconds, of a process with an unchanged lane.
func sampled(ms int, bytes, held uint64) Sample {
	l := Lane{ID: 1, Held: held, Number: 1}
	return Sample{Begun: at(ms), Bytes: bytes, Before: l, After: l}
}

// hidden returns a sample of a process without a lane.
func hidden(ms int, bytes uint64) Sample { return Sample{Begun: at(ms), Bytes: bytes} }

// moving returns a sample during which the process's lane changed.
func moving(ms int, bytes, before, after uint64) Sample {
	n := uint64(10 * ms)
	return Sample{Begun: at(ms), Bytes: bytes, Before: Lane{ID: 1, Held: before, Number: n + 2}, After: Lane{ID: 1, Held: after, Number: n + 3}}
}

func (x Sample) with(f func(*Sample)) Sample {
	f(&x)
	return x
}

// every returns samples of one kind between two times, two per second.
func every(from, to int, f func(ms int) Sample) (all []Sample) {
	for ms := from; ms <= to; ms += 500 {
		all = append(all, f(ms))
	}
	return all
}

func TestExcessOfALane(t *testing.T) {
	for _, c := range []struct {
		what    string
		samples [][]Sample
		want    uint64
		decided bool
	}{
		{"the driver's bytes beyond the lane", [][]Sample{{sampled(0, 7, 5)}}, 2, true},
		{"all bytes of a process without a lane", [][]Sample{{hidden(0, 7)}}, 7, true},
		{"nothing if the lane has more", [][]Sample{{sampled(0, 5, 7)}}, 0, true},
		{"more at once", [][]Sample{{sampled(0, 7, 5), sampled(500, 9, 5)}}, 4, true},
		{"less at once, for an unchanged lane", [][]Sample{{sampled(0, 9, 5), sampled(500, 7, 5)}}, 2, true},
		{"less at once, without a lane", [][]Sample{{hidden(0, 9), hidden(500, 7)}}, 7, true},
		{"not less, for a lane that changed since", [][]Sample{{sampled(0, 9, 5), sampled(500, 9, 8).with(func(x *Sample) { x.Before.Number, x.After.Number = 2, 2 })}}, 4, false},
		{"less, once the lane is unchanged", [][]Sample{{sampled(0, 9, 5)}, every(500, 1000, func(ms int) Sample {
			return sampled(ms, 9, 8).with(func(x *Sample) { x.Before.Number, x.After.Number = 2, 2 })
		})}, 1, true},
		{"never more than the driver has", [][]Sample{{sampled(0, 9, 2), moving(500, 3, 0, 9)}}, 3, false},
		{"nothing once the driver lists no bytes", [][]Sample{{sampled(0, 9, 5), moving(500, 0, 5, 5)}}, 0, true},
		{"as before, if the driver does not know", [][]Sample{{sampled(0, 9, 5), sampled(500, 1<<60, 5).with(func(x *Sample) { x.Unknown = true })}}, 4, false},
		{"undecided for a lane assigned during the sample", [][]Sample{{hidden(0, 9).with(func(x *Sample) { x.After = Lane{ID: 1, Number: 1} })}}, 0, false},

		{"as before, for a changing lane", [][]Sample{{sampled(0, 9, 5)}, every(500, 4500, func(ms int) Sample { return moving(ms, 20, 1, 2) })}, 4, false},
		{"after settle_time the least of all samples", [][]Sample{{sampled(0, 9, 5)}, every(500, 4500, func(ms int) Sample { return moving(ms, 20, 1, 2) }),
			{moving(5000, 17, 1, 2)}}, 15, true},
		{"after settle_time at most the most of all samples", [][]Sample{{sampled(0, 90, 5)}, every(500, 5000, func(ms int) Sample { return moving(ms, 90, 85, 80) })}, 10, true},
		{"not by one sample, after a delay of settle_time", [][]Sample{{sampled(0, 9, 5), moving(6000, 20, 1, 2)}}, 4, false},
		{"not by too few samples", [][]Sample{{sampled(0, 9, 5)}, every(6000, 9000, func(ms int) Sample { return moving(ms, 20, 1, 2) })}, 4, false},
		{"by enough samples", [][]Sample{{sampled(0, 9, 5)}, every(6000, 9500, func(ms int) Sample { return moving(ms, 20, 1, 2) })}, 18, true},
		{"not if one sample agrees with the former excess", [][]Sample{{sampled(0, 9, 5)}, every(500, 4500, func(ms int) Sample { return moving(ms, 20, 1, 2) }),
			{moving(5000, 9, 6, 4)}}, 4, true},
		{"by samples of settle_time only", [][]Sample{{sampled(0, 9, 5), moving(500, 9, 5, 4)}, every(1000, 6000, func(ms int) Sample { return moving(ms, 20, 1, 2) })}, 18, true},
		{"from the first sample on, if none ever counted", [][]Sample{every(0, 4500, func(ms int) Sample { return moving(ms, 20, 1, 2) })}, 0, false},
		{"then it is charged", [][]Sample{every(0, 5000, func(ms int) Sample { return moving(ms, 20, 1, 2) })}, 18, true},

		{"nothing during a call that may have allocated it", [][]Sample{{sampled(0, 9, 5)}, every(500, 4500, func(ms int) Sample {
			return sampled(ms, 30, 5).with(func(x *Sample) { x.Before.Calls.UnderWay, x.After.Calls.UnderWay = 1, 1 })
		})}, 4, false},
		{"one that ended meanwhile", [][]Sample{{sampled(0, 30, 5).with(func(x *Sample) { x.After.Calls.Ended = 1 })}}, 0, false},
		{"one that began meanwhile", [][]Sample{{sampled(0, 30, 5).with(func(x *Sample) { x.After.Calls.UnderWay = 1 })}}, 0, false},
		{"across an overflow of the count", [][]Sample{{sampled(0, 30, 5).with(func(x *Sample) { x.Before.Calls.Ended = 1<<32 - 1 })}}, 0, false},
		{"code that is loaded", [][]Sample{{sampled(0, 30, 5).with(func(x *Sample) { x.Before.Loads.UnderWay = 1 })}}, 0, false},
		{"code that was", [][]Sample{{sampled(0, 30, 5).with(func(x *Sample) { x.After.Loads.Ended = 1 })}}, 0, false},
		{"a call without end hides an excess for at most settle_time", [][]Sample{every(0, 5000, func(ms int) Sample {
			return sampled(ms, 30, 5).with(func(x *Sample) { x.Before.Calls.UnderWay, x.After.Calls.UnderWay = 1, 1 })
		})}, 25, true},

		{"nothing of a first context, which the process charges", [][]Sample{every(0, 4500, func(ms int) Sample {
			return sampled(ms, 30, 0).with(func(x *Sample) { x.Before.Waiting, x.After.Waiting = begin, begin })
		})}, 0, false},
		{"a first context that is not charged in time", [][]Sample{{sampled(5000, 30, 0).with(func(x *Sample) { x.Before.Waiting, x.After.Waiting = begin, begin })}}, 30, true},
		{"repeated attaches hide nothing", [][]Sample{every(0, 5000, func(ms int) Sample {
			return sampled(ms, 30, 0).with(func(x *Sample) {
				x.Before = Lane{ID: uint64(ms), Number: 1, Waiting: x.Begun}
				x.After = x.Before
			})
		})}, 30, true},

		{"as before, just after an exit", [][]Sample{{sampled(0, 9, 5), hidden(300, 9).with(func(x *Sample) { x.Exited = at(250) })}}, 4, false},
		{"nothing without an earlier excess, just after an exit", [][]Sample{{hidden(200, 9).with(func(x *Sample) { x.Exited = at(250) })}}, 0, false},
		{"all listed bytes, some time after an exit", [][]Sample{{sampled(0, 9, 5), hidden(350, 9).with(func(x *Sample) { x.Exited = at(250) })}}, 9, true},
		{"until it is less", [][]Sample{{hidden(350, 9).with(func(x *Sample) { x.Exited = at(250) }), hidden(9000, 2).with(func(x *Sample) { x.Exited = at(250) })}}, 2, true},
	} {
		var s State
		var res Result
		for _, some := range c.samples {
			for _, x := range some {
				s, res = Next(s, x, rules)
			}
		}
		if res.Excess != c.want || s.Excess != c.want || res.Decided != c.decided {
			t.Errorf("%s: charges %d, decided: %v; want %d, %v", c.what, res.Excess, res.Decided, c.want, c.decided)
		}
	}
}

// Samples that decide together do not make a list valid: the older ones are dropped even if nothing changes.
func TestDecisionBySeveralSamplesKeepsTheListOpen(t *testing.T) {
	s, _ := Next(State{}, sampled(0, 9, 5), rules)
	var res Result
	for _, x := range every(500, 5000, func(ms int) Sample { return moving(ms, 9, 6, 4) }) {
		s, res = Next(s, x, rules)
	}
	if !res.Decided || !res.Open || res.Excess != 4 {
		t.Fatalf("%+v", res)
	}
	s, res = Next(s, sampled(5500, 5, 5).with(func(x *Sample) { x.Before.Number, x.After.Number = 2, 2 }), rules)
	if !res.Decided || !res.Open || res.Excess == 0 {
		t.Fatalf("one sample of a changed lane lowers the excess: %+v", res)
	}
	if _, res = Next(s, sampled(6000, 5, 5).with(func(x *Sample) { x.Before.Number, x.After.Number = 2, 2 }), rules); !res.Decided || res.Open || res.Excess != 0 {
		t.Fatalf("%+v", res)
	}
}

func TestViolations(t *testing.T) {
	for _, c := range []struct {
		what    string
		samples []Sample
		want    Result
	}{
		{"not at the first sample", []Sample{hidden(0, 3)}, Result{Excess: 3, Decided: true, Again: at(500)}},
		{"throughout bypass_grace", []Sample{hidden(0, 3), hidden(500, 4)}, Result{Excess: 4, Decided: true, Violation: true}},
		{"not before", []Sample{hidden(0, 3), hidden(499, 4)}, Result{Excess: 4, Decided: true, Again: at(500)}},
		{"an attached process above the allowance", []Sample{sampled(0, 2*gib, 0), sampled(500, 2*gib, 0)}, Result{Excess: 2 * gib, Decided: true, Violation: true}},
		{"not below", []Sample{sampled(0, gib, 0), sampled(500, gib, 0)}, Result{Excess: gib, Decided: true}},
		{"one sample below restarts the grace period", []Sample{hidden(0, 3), hidden(400, 0), hidden(500, 3)}, Result{Excess: 3, Decided: true, Again: at(1000)}},
		{"an undecided sample does not restart it", []Sample{sampled(0, 2*gib, 0), moving(250, 2*gib, 0, 2*gib), sampled(500, 2*gib, 0)}, Result{Excess: 2 * gib, Decided: true, Violation: true}},
		{"an undecided sample is no violation", []Sample{sampled(0, 2*gib, 0), moving(500, 2*gib, 0, 2*gib)}, Result{Excess: 2 * gib, Again: at(500)}},
		{"a violation lasts while nothing is known", []Sample{hidden(0, 3), hidden(500, 3), hidden(1000, 3).with(func(x *Sample) { x.Unknown = true })}, Result{Excess: 3, Violation: true}},
		{"a violation lasts at the first sample below", []Sample{hidden(0, 3), hidden(500, 3), hidden(1000, 0)}, Result{Decided: true, Violation: true, Again: at(1500)}},
		{"a violation ends after bypass_grace below", []Sample{hidden(0, 3), hidden(500, 3), hidden(1000, 0), hidden(1500, 0)}, Result{Decided: true, Cleared: true}},
		{"a sample above restarts the time to clear", []Sample{hidden(0, 3), hidden(500, 3), hidden(1000, 0), hidden(1200, 3), hidden(1500, 0)}, Result{Decided: true, Violation: true, Again: at(2000)}},
		{"an exit clears it at once", []Sample{hidden(0, 3), hidden(500, 3), hidden(1000, 3).with(func(x *Sample) { x.Exited = at(990) })},
			Result{Excess: 3, Cleared: true, Again: at(1090)}},
		{"whatever the driver says", []Sample{hidden(0, 3), hidden(500, 3), hidden(1000, 3).with(func(x *Sample) { x.Exited, x.Unknown = at(990), true })}, Result{Excess: 3, Cleared: true}},
		{"the rest after an exit is no violation", []Sample{hidden(0, 3), hidden(500, 3).with(func(x *Sample) { x.Exited = at(100) }), hidden(1500, 3).with(func(x *Sample) { x.Exited = at(100) })},
			Result{Excess: 3, Decided: true}},
	} {
		var s State
		var res Result
		for _, x := range c.samples {
			s, res = Next(s, x, rules)
		}
		expect.Equal(t, res, c.want, c.what)
	}
}

// A state may be kept, and continued twice.
func TestAStateIsAValue(t *testing.T) {
	var s State
	for ms := 0; ms < 3000; ms += 500 {
		s, _ = Next(s, moving(ms, 20, 1, 2), rules)
	}
	one, other := s, s
	one, _ = Next(one, moving(3000, 3, 1, 2), rules)
	other, _ = Next(other, moving(3000, 20, 1, 2), rules)
	for ms := 3500; ms <= 5000; ms += 500 {
		one, _ = Next(one, moving(ms, 20, 1, 2), rules)
		other, _ = Next(other, moving(ms, 20, 1, 2), rules)
	}
	if one.Excess != 1 || other.Excess != 18 {
		t.Errorf("%d and %d", one.Excess, other.Excess)
	}
}

// A process that allocates small blocks all the time, and charges afterwards, keeps its excess.
func TestAProcessThatNeverStandsStillKeepsItsOverhead(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	const own = 7 * mib
	s, _ := Next(State{}, sampled(0, 500*mib+own, 500*mib), rules)
	for i := 1; i < 20000; i++ {
		n := uint64(2 * i)
		block := func(number uint64) (driver uint64, l Lane) {
			l = Lane{ID: 1, Held: 500 * mib, Number: number, Calls: Calls{Ended: uint32(number)}}
			switch random.IntN(4) {
			case 0:
				driver, l.Calls.UnderWay = 2*mib, 1
			case 1:
				driver, l.Held = 2*mib, l.Held+2*mib
			case 2:
				l.Held += 2 * mib
			}
			return driver, l
		}
		_, before := block(n)
		driver, _ := block(n)
		_, after := block(n + 1)
		s, _ = Next(s, Sample{Begun: at(500 * i), Bytes: 500*mib + own + driver, Before: before, After: after}, rules)
		must.Equal(t, s.Excess, own, "charged after", i, "samples")
	}
}

// A process that charges before it allocates, sampled at any moment.
func TestUnusedChargeDoesNotLowerTheOverhead(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	const own = 7 * mib
	s, _ := Next(State{}, sampled(0, own, 0), rules)
	held := uint64(0)
	for i := 1; i < 20000; i++ {
		charged := held
		if random.IntN(8) == 0 {
			charged += random.Uint64N(gib) // the driver has not returned yet
		}
		l := Lane{ID: 1, Held: charged, Number: uint64(2 * i)}
		s, _ = Next(s, Sample{Begun: at(500 * i), Bytes: held + own, Before: l, After: l}, rules)
		must.Equal(t, s.Excess, own, "charged after", i, "samples")
		held = random.Uint64N(8 * gib)
	}
}

func TestLargeSwingsOfUseAreNoViolation(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 2))
	var s State
	for i := range 50000 {
		n := uint64(2 * i)
		var res Result
		s, res = Next(s, Sample{
			Begun: at(500 * i), Bytes: random.Uint64N(8 * gib),
			Before: Lane{ID: 1, Held: random.Uint64N(8 * gib), Number: n}, After: Lane{ID: 1, Held: random.Uint64N(8 * gib), Number: n + 1},
		}, rules)
		must.True(t, !res.Violation, "after", i, "samples", res)
	}
}

// FuzzNext checks invariants of the rule for any samples.
func FuzzNext(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	f.Fuzz(func(t *testing.T, b []byte) {
		var s State
		now := begin
		var decided, under time.Time
		var exited time.Time
		violating := false
		next := func() (n uint64) {
			if len(b) >= 2 {
				n = uint64(binary.LittleEndian.Uint16(b))
				b = b[2:]
			}
			return n
		}
		lane := func(flags uint64) Lane {
			l := Lane{ID: flags & 1, Held: next() * mib / 8, Number: flags >> 1 & 1, Calls: Calls{UnderWay: uint32(flags >> 2 & 1)}, Loads: Calls{Ended: uint32(flags >> 3 & 1)}}
			if flags>>4&1 != 0 {
				l.Waiting = now
			}
			return l
		}
		for len(b) >= 8 {
			flags := next()
			now = now.Add(time.Duration(flags>>10) * 20 * time.Millisecond)
			x := Sample{Begun: now, Bytes: next() * mib / 8, Unknown: flags&0x3e0 == 0x3e0, Before: lane(flags), After: lane(flags >> 5)}
			if flags&0x3ff == 0x155 && exited.IsZero() {
				exited = now
			}
			x.Exited = exited
			if s.decided.IsZero() {
				decided, under = now, now
			}
			was := s.Excess
			var res Result
			s, res = Next(s, x, rules)
			allowance := rules.Allowance
			if x.Before.ID == 0 && x.After.ID == 0 {
				allowance = 0
			}
			lower, upper := x.bounds()
			switch {
			case res.Excess != s.Excess:
				t.Fatalf("%+v of %+v", res, s)
			case x.Unknown && (res.Excess != was || res.Decided):
				t.Fatalf("an unknown answer changes the charge of %d: %+v", was, res)
			case !x.Unknown && res.Excess > x.Bytes:
				t.Fatalf("%+v of %d bytes", res, x.Bytes)
			case !exited.IsZero() && (res.Violation || violating != res.Cleared):
				t.Fatalf("%+v for an exited process, violating before: %v", res, violating)
			case !x.Unknown && exited.IsZero() && !res.Decided && now.Sub(decided) >= rules.SettleTime && len(s.bounds) >= Agreeing:
				t.Fatalf("nothing is decided for %s", now.Sub(decided))
			case !x.Unknown && exited.IsZero() && res.Excess > max(was, upper) || res.Decided && exited.IsZero() && x.counts(rules) && res.Excess > max(was, lower):
				t.Fatalf("%+v after a charge of %d, with a sample of %d to %d", res, was, lower, upper)
			case res.Violation && !violating && now.Sub(under) < rules.BypassGrace:
				t.Fatalf("a violation only %s after the last sample below", now.Sub(under))
			case res.Violation && !violating && res.Excess <= allowance:
				t.Fatalf("%+v is a violation", res)
			case res.Violation && res.Cleared || violating && !res.Violation && !res.Cleared:
				t.Fatalf("%+v, violating before: %v", res, violating)
			}
			if res.Decided {
				decided = now
				if res.Excess <= allowance {
					under = now
				}
			}
			violating = res.Violation
		}
	})
}

// A list stays valid only while all its conditions hold.
func TestWhenAListIsStable(t *testing.T) {
	const limit = 10 * time.Second
	now := Totals{Used: 10, Lanes: 1}
	for _, c := range []struct {
		what          string
		before, after Totals // around the list
		open          bool
		later         int // milliseconds
		totals        Totals
		want          bool
	}{
		{"nothing has changed", now, now, false, 1000, now, true},
		{"more is in use", now, now, false, 1000, Totals{11, 1}, false},
		{"a lane was written", now, now, false, 1000, Totals{10, 2}, false},
		{"more bytes were in use before the list", Totals{11, 1}, now, false, 1000, now, false},
		{"a lane was written during the list", Totals{10, 2}, now, false, 1000, now, false},
		{"something was open", now, now, true, 1000, now, false},
		{"the list is just young enough", now, now, false, 9999, now, true},
		{"it is too old", now, now, false, 10000, now, false},
	} {
		expect.Equal(t, Listed(begin, c.before, c.after, c.open).Stands(at(c.later), c.totals, limit), c.want, c.what)
	}
	expect.True(t, !(Idle{}).Stands(begin, Totals{}, limit), "the zero value counts as a list")
}

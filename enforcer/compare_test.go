// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// What is charged for a process beyond its lane goes up at once, and down when it is sure that it was too much.
func TestWhichLooksAnExcessFollows(t *testing.T) {
	type look struct {
		bounds
		number uint64
	}
	between := func(least, most uint64) bounds { return bounds{least: least, most: most} }
	next := uint64(100)
	atWork := func(n int, b bounds) (looks []look) { // of a process that has charged each time
		for range n {
			next++
			looks = append(looks, look{b, next})
		}
		return looks
	}
	still := func(n int, b bounds) (looks []look) {
		next++
		return slices.Repeat([]look{{b, next}}, n)
	}
	for _, c := range []struct {
		what  string
		looks [][]look // beginning with 5 charged
		want  uint64
	}{
		{"the least of more is believed at once", [][]look{still(1, between(7, 9).and(between(8, 8)))}, 7},
		{"one low look is not", [][]look{still(1, between(2, 2))}, 5},
		{"two are, of a process that stands still", [][]look{still(2, between(2, 2))}, 2},
		{"the higher of the two", [][]look{{{between(3, 3), 1}, {between(2, 2), 1}}}, 3},
		{"and the next one's", [][]look{{{between(3, 3), 1}, {between(2, 2), 1}, {between(2, 2), 1}}}, 2},
		{"a high one in between begins anew", [][]look{{{between(2, 2), 1}, {between(5, 5), 1}, {between(2, 2), 1}}}, 5},
		{"of one at work two say nothing", [][]look{atWork(2, between(2, 2))}, 5},
		{"nor do several", [][]look{atWork(lows-1, between(2, 2))}, 5},
		{"many do", [][]look{atWork(lows, between(2, 2))}, 2},
		{"to the most that they found", [][]look{atWork(1, between(1, 2).and(between(2, 4))), atWork(lows-1, between(1, 2))}, 4},
		{"and on from there", [][]look{atWork(1, between(2, 4)), atWork(2*lows-1, between(1, 2))}, 2},
		{"if none of them was high", [][]look{atWork(lows-1, between(1, 2)), atWork(1, between(2, 5))}, 5},
		{"they count from the last high one", [][]look{atWork(lows-1, between(1, 2)), atWork(1, between(2, 5)), atWork(1, between(1, 2))}, 5},
		{"once it stands still it is as for any", [][]look{atWork(3, between(4, 4)), still(2, between(2, 2))}, 2},
		{"which nothing older raises again", [][]look{atWork(1, between(4, 4)), still(2, between(2, 2)), atWork(lows, between(1, 1))}, 2},
		{"at once, if it stands still then", [][]look{atWork(1, between(4, 4)), atWork(lows-2, between(2, 2)), still(2, between(2, 2))}, 2},
		{"nor stops", [][]look{atWork(lows-3, between(1, 2)), still(2, between(2, 4)), atWork(2*lows, between(1, 2))}, 2},
	} {
		x := excess{charged: 5, number: 1}
		for _, l := range slices.Concat(c.looks...) {
			x.believe(l.bounds, l.number)
		}
		if x.charged != c.want {
			t.Errorf("%s: %d is charged, expected %d", c.what, x.charged, c.want)
		}
	}
}

// What is charged is settled only if the last look found no less: a glance stands for the looks that follow (glance.go).
func TestAnExcessIsSettledOnlyWhereItIsFound(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	settled := 0
	for range 1000 {
		x := excess{charged: 5, number: 1}
		number := x.number
		for range 4 * lows {
			if random.IntN(4) > 0 {
				number++
			}
			least := random.Uint64N(4)
			last := bounds{least: least, most: least + random.Uint64N(2)}
			x.believe(last, number)
			if x.low > 0 {
				continue
			}
			settled++
			if last.most < x.charged {
				t.Fatalf("%d is charged and taken for settled, where the last look found %d to %d", x.charged, last.least, last.most)
			}
		}
	}
	if settled == 0 {
		t.Fatal("nothing was ever settled")
	}
}

// Calls that charge what they took when the driver has returned are waited for: so many bytes, so long.
func TestWhatIsLeftToCalls(t *testing.T) {
	const patience = time.Hour
	x := excess{charged: 5}
	found := func(least, unsaid uint64) uint64 {
		return x.due(bounds{least: least, most: least, unsaid: unsaid}, patience)
	}
	if least := found(7, 0); least != 7 || !x.late.IsZero() {
		t.Errorf("without any call %d is charged", least)
	}
	if least := found(4, 3); least != 4 || !x.late.IsZero() {
		t.Errorf("of less %d is charged", least)
	}
	if least := found(7, 3); least != 5 || x.late.IsZero() {
		t.Errorf("%d is charged of what a call may have taken", least)
	}
	if least := found(10, 3); least != 7 {
		t.Errorf("%d is charged of what it cannot have taken", least)
	}
	x.late = time.Now().Add(-patience)
	for x.looks < looksAtCalls {
		if least := found(10, 3); least != 7 {
			t.Errorf("after a long time and %d looks %d is charged", x.looks, least)
		}
	}
	if least := found(10, 3); least != 10 {
		t.Errorf("after a long time and many looks %d is charged", least)
	}
	if least := found(5, 3); least != 5 || !x.late.IsZero() {
		t.Error("it does not begin anew when nothing is left to wait for")
	}
}

func TestWhichCallsMayHaveTakenMemoryThatIsNotCharged(t *testing.T) {
	calls := func(underWay, ended uint32) holding {
		return holding{calls: ledger.Calls{UnderWay: underWay, Ended: ended}}
	}
	for _, c := range []struct {
		what          string
		before, after holding
		want          uint64 // calls
	}{
		{"none", calls(0, 7), calls(0, 7), 0},
		{"one that has not ended", calls(1, 7), calls(1, 7), 1},
		{"one that has ended since", calls(1, 7), calls(0, 8), 1},
		{"one that came and went meanwhile", calls(0, 7), calls(0, 8), 1},
		{"one of each", calls(1, 7), calls(1, 8), 2},
		{"across the end of the count", calls(1, 1<<32-1), calls(0, 0), 1},
		{"more than can have", calls(4000, 7), calls(4000, 9000), mostUnsaid},
		{"what nobody believes", calls(0, 0), calls(1<<32-1, 1<<32-1), mostUnsaid},
	} {
		if got := unsaidBetween(c.before, c.after); got != c.want*blockBytes {
			t.Errorf("%s: %d bytes, expected %d", c.what, got, c.want*blockBytes)
		}
	}
}

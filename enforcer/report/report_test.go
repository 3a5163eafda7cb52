// SPDX-License-Identifier: Apache-2.0

package report

import (
	"iter"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/expect"
)

func lanes(p *Process, n uint64) iter.Seq2[*Process, uint64] {
	return func(yield func(*Process, uint64) bool) {
		if p != nil {
			yield(p, n)
		}
	}
}

func TestARefusalIsReportedOnceWhateverIsSaidOfIt(t *testing.T) {
	var r Refusals
	p := &Process{PID: 7, Command: "train"}
	p.Begin(0, 5) // of an earlier process
	if command, n := r.Said(7, p, 0, 5); n != 0 {
		t.Errorf("%d refusals of %s before the first one", n, command)
	}
	if command, n := r.Said(7, p, 0, 8); command != "train" || n != 3 {
		t.Errorf("%d of %q, want 3 of train", n, command)
	}
	if _, n := r.Said(7, p, 0, 8); n != 0 {
		t.Errorf("%d a second time", n)
	}
	// The second check reports refusals without a message.
	expect.Equal(t, r.Check(0, false, lanes(p, 10)).Count, 0, "at the first check")
	expect.Equal(t, r.Check(0, false, lanes(p, 11)), Sum{2, 7, "train"}, "at the second")
	expect.Equal(t, r.Check(0, true, lanes(p, 11)), Sum{1, 7, "train"}, "at the end")
	if sum := r.Check(0, true, lanes(p, 0)); sum.Count != 0 { // an honest process never counts down
		t.Errorf("%+v of a lower count", sum)
	}
}

func TestWhatAnExitedProcessCountedIsReported(t *testing.T) {
	var r Refusals
	for pid := 1; pid <= maxExited+2; pid++ {
		r.Exit(&Process{PID: pid, Command: "short"}, 1, 2)
	}
	if command, n := r.Said(3, nil, 1, 0); command != "short" || n != 2 {
		t.Errorf("%d of %q", n, command)
	}
	expect.Equal(t, r.Check(1, false, lanes(nil, 0)).Count, 0, "before the process had time to send its message")
	r.Checked()
	expect.Equal(t, r.Check(1, false, lanes(nil, 0)), Sum{Count: 2*maxExited + 2})
	r.Checked()
	expect.Equal(t, len(r.exited), 0, "exited processes are kept")
}

func TestAFloodIsReportedAsASum(t *testing.T) {
	var r Refusals
	var rejected Rejected
	now, said, alone := time.Now(), 0, 0
	for range 100 {
		if r.Allow(now) {
			said++
		}
		if rejected.Add(now, "stranger") {
			alone++
		}
	}
	if said != saidPerSecond || alone != rejectedPerSecond {
		t.Errorf("%d refusals and %d rejected attaches are reported one by one", said, alone)
	}
	if !r.Allow(now.Add(time.Second)) || !rejected.Add(now.Add(time.Second), "full") {
		t.Error("none a second later")
	}
	sums := make(map[string]uint64)
	for range 2 {
		rejected.Rest(func(cause string, n uint64) { sums[cause] += n })
	}
	if len(sums) != 1 || sums["stranger"] != 100-rejectedPerSecond {
		t.Errorf("%v", sums)
	}
}

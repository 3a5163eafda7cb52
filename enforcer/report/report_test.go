// SPDX-License-Identifier: Apache-2.0

package report

import (
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/expect"
)

func TestARefusalIsReportedOnce(t *testing.T) {
	var p Process
	p.Rest(0, 5) // of an earlier process
	expect.Equal(t, p.Rest(0, 5), 0, "before the first one")
	expect.Equal(t, p.Rest(0, 8), 3)
	expect.Equal(t, p.Rest(1, 2), 2, "on another device")
	expect.Equal(t, p.Rest(0, 8), 0, "a second time")
	expect.Equal(t, p.Rest(0, 0), 0, "of a lower count")
}

func TestASumNamesItsOnlyProcess(t *testing.T) {
	var r Refusals
	for _, more := range []Sum{{2, 7, "train"}, {0, 8, "idle"}, {1, 7, "train"}} {
		r.Add(1, more)
	}
	expect.Equal(t, r.Take(0), Sum{}, "of another device")
	expect.Equal(t, r.Take(1), Sum{3, 7, "train"})
	r.Add(1, Sum{2, 7, "train"})
	r.Add(1, Sum{maxCount, 9, "serve"})
	expect.Equal(t, r.Take(1), Sum{Count: maxCount}, "of two processes")
	expect.Equal(t, r.Take(1), Sum{}, "a second time")
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
	expect.True(t, r.Allow(now.Add(time.Second)) && rejected.Add(now.Add(time.Second), "full"), "none a second later")
	sums := make(map[string]uint64)
	for range 2 {
		rejected.Rest(func(cause string, n uint64) { sums[cause] += n })
	}
	if len(sums) != 1 || sums["stranger"] != 100-rejectedPerSecond {
		t.Errorf("%v", sums)
	}
}

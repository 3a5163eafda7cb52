// SPDX-License-Identifier: Apache-2.0

package testhost

import (
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/expect"
)

func TestStallsOfTheMachineAreSubtracted(t *testing.T) {
	s := Stalls{Nap: 50 * time.Millisecond}
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	for _, ms := range []int{0, 51, 102, 3152, 3203} { // stalled from 152 to 3152
		s.recordNap(at(ms))
	}
	for _, c := range []struct{ begin, end, want int }{
		{0, 100, 0}, {100, 3160, 3000}, {1152, 3160, 2000}, {152, 1152, 1000}, {3152, 3250, 0},
		{3203, 5253, 2000}, {1152, 5253, 4000}, // stalled since 3253
	} {
		expect.Equal(t, s.Between(at(c.begin), at(c.end)), time.Duration(c.want)*time.Millisecond, c.begin, c.end)
	}
	expect.Equal(t, s.Longest(), 3*time.Second, "the longest was")
}

// SPDX-License-Identifier: Apache-2.0

package await

import (
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/expect"
)

// recorder records a failure and does not pass it on.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Logf(string, ...any)   {}
func (r *recorder) Errorf(string, ...any) { r.failed = true }
func (r *recorder) Fatalf(string, ...any) { r.failed = true }

func TestOnceFailsOnlyIfEachAttemptIsSlow(t *testing.T) {
	for name, c := range map[string]struct {
		quick int // number of the fast attempt
		fails bool
	}{"the first": {1, false}, "the last": {20, false}, "none": {21, true}} {
		n, r := 0, &recorder{TB: t}
		Once(r, name, time.Second, func() time.Duration {
			if n++; n == c.quick {
				return time.Millisecond
			}
			return time.Second
		})
		expect.Equal(t, r.failed, c.fails, name, "after", n, "attempts")
	}
}

func TestQuietFailsOnceItHappens(t *testing.T) {
	for name, c := range map[string]struct{ happens, fails bool }{"it does": {true, true}, "it does not": {false, false}} {
		r := &recorder{TB: t}
		Quiet(r, name, time.Millisecond, func() bool { return c.happens && !r.failed })
		expect.Equal(t, r.failed, c.fails, name, "failed")
	}
}

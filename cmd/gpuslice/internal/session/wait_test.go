// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
)

func full(requested, limit, current uint64) error {
	return &api.Error{Code: api.CodeQuotaExceeded, Message: "full", Requested: requested, Limit: limit, Current: current}
}

func TestSessionWaitsIfMemoryMayBecomeFree(t *testing.T) {
	busy := api.Errorf(api.CodeBusy, "too many requests")
	granted := []error{full(8, 80, 75), busy, full(0, 4, 4), nil}
	for name, c := range map[string]struct {
		wait    time.Duration
		answers []error // the last one is repeated
		asked   int     // 0: more often than 10 times
		err     string
	}{
		"granted at once":           {Forever, []error{nil}, 1, ""},
		"granted later":             {Forever, granted, 4, ""},
		"granted in time":           {time.Hour, granted, 4, ""},
		"not told to wait":          {0, granted, 1, "full"},
		"larger than the card":      {Forever, []error{full(90, 80, 0)}, 1, "full"},
		"it cannot be compared":     {Forever, []error{full(0, 0, 0)}, 1, "full"},
		"bad input":                 {Forever, []error{api.Errorf(api.CodeNoDevice, "no device 9")}, 1, "no device 9"},
		"no answer":                 {Forever, []error{api.ErrUnreachable}, 1, "does not answer"},
		"a lowered limit meanwhile": {Forever, []error{full(8, 80, 75), full(8, 4, 0)}, 2, "full"},
		"in vain":                   {time.Minute, []error{full(8, 80, 75)}, 0, "it was not granted within 1m: full"},
	} {
		var slept, longest time.Duration
		asked, said := 0, 0
		s := Session{Wait: c.wait, Waiting: func(error) { said++ }, sleep: func(_ context.Context, d time.Duration) {
			slept, longest = slept+d, max(longest, d)
		}}
		err := s.await(context.Background(), func() error {
			if asked++; asked > 1000 {
				return nil
			}
			return c.answers[min(asked, len(c.answers))-1]
		})
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", name, err)
		}
		if c.asked > 0 && asked != c.asked || c.asked == 0 && (asked < 10 || slept != c.wait) {
			t.Errorf("%s: it asked %d times in %s", name, asked, slept)
		}
		if longest > longestPause || (said == 1) != (asked > 1) {
			t.Errorf("%s: it slept for %s, and said %d times that it waits", name, longest, said)
		}
	}
}

func TestASessionThatIsInterruptedWaitsNoLonger(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	asked := 0
	s := Session{Wait: Forever, Waiting: func(error) { stop() }}
	err := s.await(ctx, func() error {
		asked++
		return full(8, 80, 75)
	})
	if asked > 2 || !errors.Is(err, api.ErrQuotaExceeded) {
		t.Errorf("%d, %v", asked, err)
	}
	expect.Error(t, err)
}

// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuslice/gpuslice/test/expect"
)

// A caller can be delayed between its reading of the clock and its call.
func TestAnEarlierTimeGrantsNothing(t *testing.T) {
	begun := time.Now()
	l := New(1, 10)
	for range 10 {
		expect.True(t, l.Allow(begun), "a burst of 10")
	}
	passed := 0
	for second := range 100 {
		now := begun.Add(time.Duration(second) * time.Second)
		for _, at := range []time.Time{now, begun, now, begun} {
			if l.Allow(at) {
				passed++
			}
		}
	}
	expect.Equal(t, passed, 99, "events in 99 seconds")
	now := begun.Add(99 * time.Second)
	expect.Equal(t, l.Reserve(begun, 5), 5*time.Second)
	expect.Equal(t, l.Tokens(begun), -5)
	expect.Equal(t, l.Reserve(now, 1), 6*time.Second)
}

func TestACanceledWaiterTakesNoTurn(t *testing.T) {
	synctest.Test(t, aCanceledWaiterTakesNoTurn)
}

func aCanceledWaiterTakesNoTurn(t *testing.T) {
	l := Every(time.Second, 1)
	var all sync.WaitGroup
	begun := time.Now()
	for range 10 {
		all.Go(func() { expect.True(t, l.Wait(t.Context()) == nil, "it may go on") })
	}
	all.Wait()
	expect.Equal(t, time.Since(begun), 9*time.Second)

	given, giveUp := context.WithTimeout(t.Context(), time.Second/2)
	defer giveUp()
	begun = time.Now()
	expect.True(t, errors.Is(l.Wait(given), context.DeadlineExceeded), "it would wait for longer than it can")
	expect.Equal(t, time.Since(begun), 0)
	given, giveUp = context.WithCancel(t.Context())
	time.AfterFunc(time.Second/2, giveUp)
	expect.True(t, errors.Is(l.Wait(given), context.Canceled), "it has given up")
	expect.True(t, errors.Is(l.Wait(given), context.Canceled), "it had given up before")
	expect.Equal(t, l.Wait(t.Context()), nil)
	expect.Equal(t, time.Since(begun), time.Second)
}

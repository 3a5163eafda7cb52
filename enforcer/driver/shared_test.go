// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestConcurrentCallersShareOneAnswer(t *testing.T) {
	var put atomic.Int64
	s := Shared[int64]{Slot: NewSlot(), Put: func() (int64, error) {
		n := put.Add(1)
		time.Sleep(20 * time.Millisecond)
		return n, nil
	}}
	const each, askers = 5, 64
	var asking sync.WaitGroup
	for range askers {
		asking.Go(func() {
			for range each {
				before := put.Load()
				got, err := s.Ask(30 * time.Second)
				if err != nil || got <= before {
					t.Errorf("%d, %v: the result is of a call that began before Ask (%d)", got, err, before)
				}
			}
		})
	}
	asking.Wait()
	if n := put.Load(); n > 8*each { // of 320; two for each round, except for late callers
		t.Errorf("%d callers caused %d calls", askers, n)
	}
}

func TestCallsToTheDriverHavePausesBetween(t *testing.T) {
	var put atomic.Int64
	s := Shared[int64]{Slot: NewSlot(), Put: func() (int64, error) { return put.Add(1), nil }}
	begun := time.Now()
	for range 10 {
		must.Get(s.Ask(30 * time.Second))(t)
	}
	expect.True(t, time.Since(begun) >= 9*betweenShared, "10 questions took less than 9 pauses")
}

func TestHungCallIsAbandonedAtTheCallersTimeout(t *testing.T) {
	hang := make(chan struct{})
	s := Shared[int]{Slot: NewSlot(), Put: func() (int, error) { <-hang; return 1, nil }}
	for range 3 {
		expect.ErrorIs(t, must.Err(s.Ask(time.Millisecond)), ErrHangs)
	}
	expect.ErrorIs(t, must.Err(Ask(s.Slot, time.Millisecond, func() (int, error) { return 0, nil })), ErrHangs, "another question begins")
	close(hang)
	if got, err := s.Ask(30 * time.Second); got != 1 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
}

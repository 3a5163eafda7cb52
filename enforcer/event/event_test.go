// SPDX-License-Identifier: Apache-2.0

package event

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

func numbers(events []api.Event) []uint64 {
	var n []uint64
	for _, e := range events {
		n = append(n, e.Seq)
	}
	return n
}

func appendN(l *Log, n int) {
	for range n {
		l.Append(api.Event{Kind: api.EventRefused})
	}
}

func TestEventsAreNumberedFromOneWithoutGaps(t *testing.T) {
	l := NewLog(8)
	if got := l.Since("", 0, 100); len(got) != 0 {
		t.Fatalf("a new log has %v", got)
	}
	appendN(l, 5)
	got := l.Since("", 0, 100)
	for i, e := range got {
		if e.Seq != uint64(i+1) || e.Kind != api.EventRefused || e.Time.IsZero() {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	if len(got) != 5 {
		t.Errorf("%d events, want 5", len(got))
	}
	if n := numbers(l.Since("", 3, 100)); len(n) != 2 || n[0] != 4 || n[1] != 5 {
		t.Errorf("since 3: %v", n)
	}
	if n := numbers(l.Since("", 1, 2)); len(n) != 2 || n[0] != 2 || n[1] != 3 {
		t.Errorf("two since 1: %v", n)
	}
	if n := numbers(l.Since("", 5, 100)); len(n) != 0 {
		t.Errorf("since the newest: %v", n)
	}
}

func TestWhoFellBehindIsToldHowManyItMissed(t *testing.T) {
	l := NewLog(4)
	appendN(l, 10) // 7 to 10 are kept
	got := l.Since("", 2, 100)
	if len(got) != 5 || got[0].Kind != api.EventMissed || got[0].Count != 4 || got[0].Seq != 6 || got[1].Seq != 7 || got[4].Seq != 10 {
		t.Fatalf("since 2: %+v", got)
	}
	// Whoever goes on from there misses nothing twice.
	if n := numbers(l.Since("", got[0].Seq, 100)); len(n) != 4 || n[0] != 7 {
		t.Errorf("since the missed ones: %v", n)
	}
	if got := l.Since("", 6, 100); len(got) != 4 || got[0].Kind == api.EventMissed {
		t.Errorf("since 6 nothing is missing: %+v", got)
	}
	if got := l.Since("", 0, 100); len(got) != 4 || got[0].Seq != 7 {
		t.Errorf("all that are kept: %+v", got)
	}
}

func TestANumberOfAnEarlierEnforcerMeansAll(t *testing.T) {
	l := NewLog(4)
	appendN(l, 2)
	if n := numbers(l.Since("", 1000, 100)); len(n) != 2 || n[0] != 1 {
		t.Errorf("since 1000: %v", n)
	}
	if err := l.Wait(context.Background(), "", 1000); err != nil {
		t.Error(err)
	}
}

// An enforcer that was restarted has passed the number that its follower had: without the instance, 1 to 5 would be taken for read.
func TestAFollowerOfAnEarlierEnforcerMissesNothing(t *testing.T) {
	earlier, l := NewLog(16), NewLog(16)
	appendN(earlier, 5)
	if l.Instance() == earlier.Instance() {
		t.Fatalf("two logs are %s", l.Instance())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := l.Wait(ctx, earlier.Instance(), 5); err != nil {
		t.Error(err)
	}
	restarted := func(got []api.Event, count uint64) {
		t.Helper()
		if len(got) == 0 || got[0].Kind != api.EventMissed || got[0].Cause != api.MissedRestarted || got[0].Instance != l.Instance() || got[0].Count != count || got[0].Seq != count {
			t.Fatalf("another enforcer is not told: %+v", got)
		}
	}
	restarted(l.Since(earlier.Instance(), 5, 100), 0) // it has no event yet
	appendN(l, 10)
	got := l.Since(earlier.Instance(), 5, 100)
	restarted(got, 0)
	if n := numbers(got[1:]); len(n) != 10 || n[0] != 1 || n[9] != 10 {
		t.Errorf("after %s:5 of an earlier enforcer: %v", earlier.Instance(), n)
	}
	if n := numbers(l.Since(got[5].Instance, got[5].Seq, 100)); len(n) != 5 || n[0] != 6 {
		t.Errorf("on from there: %v", n)
	}
	if n := numbers(l.Since(l.Instance(), 10, 100)); len(n) != 0 {
		t.Errorf("since the newest: %v", n)
	}
	appendN(l, 10)
	got = l.Since(earlier.Instance(), 5, 100)
	restarted(got, 4)
	if n := numbers(got[1:]); len(n) != 16 || n[0] != 5 {
		t.Errorf("with 1 to 4 gone: %v", n)
	}
}

func TestWaitReturnsWithTheNextEvent(t *testing.T) {
	l := NewLog(4)
	appendN(l, 1)
	if err := l.Wait(context.Background(), "", 0); err != nil {
		t.Fatal("there is one already:", err)
	}
	var waiters sync.WaitGroup
	for range 5 {
		waiters.Go(func() {
			if err := l.Wait(context.Background(), "", 1); err != nil || len(l.Since("", 1, 1)) != 1 {
				t.Errorf("it waited for nothing: %v", err)
			}
		})
	}
	time.Sleep(10 * time.Millisecond)
	appendN(l, 1)
	waiters.Wait()
}

func TestWaitEndsWithItsContextAndWithTheLog(t *testing.T) {
	l := NewLog(4)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- l.Wait(ctx, "", 0) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	go func() { ended <- l.Wait(context.Background(), "", 0) }()
	l.Close()
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	l.Append(api.Event{})
	if got := l.Since("", 0, 1); len(got) != 0 {
		t.Errorf("a closed log took %v", got)
	}
}

// Readers that are slow, or gone, cost those who append nothing: whoever reads has its own place in mind.
func TestManyAppendAndReadAtTheSameTime(t *testing.T) {
	const writers, each = 8, 2000
	l := NewLog(64)
	var all sync.WaitGroup
	for range writers {
		all.Go(func() { appendN(l, each) })
	}
	for range 4 {
		all.Go(func() {
			var seq, seen uint64 = 0, 0
			appended := false
			for seq < writers*each {
				if err := l.Wait(context.Background(), "", seq); err != nil {
					t.Error(err)
					return
				}
				for _, e := range l.Since("", seq, 16) {
					if e.Kind == api.EventMissed {
						seen += e.Count
					} else if seen++; appended && e.Seq != seq+1 {
						t.Errorf("%d came after %d", e.Seq, seq)
					} else if !appended {
						seen, appended = e.Seq, true // what went before its first look is not its to miss
					}
					seq = e.Seq
				}
			}
			if seen != writers*each {
				t.Errorf("it saw or missed %d of %d", seen, writers*each)
			}
		})
	}
	all.Wait()
}

func TestWhoIsToldHearsEachEventInItsOrder(t *testing.T) {
	l := NewLog(2)
	var told []api.Event // guarded by the Log
	l.Append(api.Event{Kind: api.EventRegistered})
	l.Tell(func(e api.Event) { told = append(told, e) })
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				l.Append(api.Event{Kind: api.EventRefused})
			}
		})
	}
	all.Wait()
	l.Close()
	l.Append(api.Event{Kind: api.EventReleased})
	if len(told) != 400 {
		t.Fatalf("%d were told", len(told))
	}
	for i, e := range told {
		if e.Seq != uint64(i+2) || e.Kind != api.EventRefused || e.Time.IsZero() {
			t.Fatalf("number %d is %+v", i, e)
		}
	}
}

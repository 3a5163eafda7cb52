// SPDX-License-Identifier: Apache-2.0

package event

import (
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
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
		l.Append("c1", api.Event{Kind: api.EventRefused})
	}
}

func TestEventsAreNumberedFromOneWithoutGaps(t *testing.T) {
	l := NewLog(8)
	must.Len(t, l.Since("", 0, 100), 0, "a new log")
	appendN(l, 5)
	got := l.Since("", 0, 100)
	for i, e := range got {
		if e.Seq != uint64(i+1) || e.Kind != api.EventRefused || e.Time.IsZero() {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	expect.Equal(t, len(got), 5, "events")
	if n := numbers(l.Since("", 3, 100)); len(n) != 2 || n[0] != 4 || n[1] != 5 {
		t.Errorf("since 3: %v", n)
	}
	if n := numbers(l.Since("", 1, 2)); len(n) != 2 || n[0] != 2 || n[1] != 3 {
		t.Errorf("two since 1: %v", n)
	}
	must.Len(t, numbers(l.Since("", 5, 100)), 0, "since the newest")
}

func TestASlowFollowerGetsTheNumberOfMissedEvents(t *testing.T) {
	l := NewLog(4)
	appendN(l, 10) // keeps 7 to 10
	got := l.Since("", 2, 100)
	if len(got) != 5 || got[0].Kind != api.EventMissed || got[0].Count != 4 || got[0].Seq != 6 || got[1].Seq != 7 || got[4].Seq != 10 {
		t.Fatalf("since 2: %+v", got)
	}
	// A reader that continues from there misses no event twice.
	if n := numbers(l.Since("", got[0].Seq, 100)); len(n) != 4 || n[0] != 7 {
		t.Errorf("since the missed ones: %v", n)
	}
	if got := l.Since("", 6, 100); len(got) != 4 || got[0].Kind == api.EventMissed {
		t.Errorf("events are missing since 6: %+v", got)
	}
	if got := l.Since("", 0, 100); len(got) != 4 || got[0].Seq != 7 {
		t.Errorf("all kept events: %+v", got)
	}
}

func TestANumberOfAnEarlierEnforcerMeansAll(t *testing.T) {
	l := NewLog(4)
	appendN(l, 2)
	if n := numbers(l.Since("", 1000, 100)); len(n) != 2 || n[0] != 1 {
		t.Errorf("since 1000: %v", n)
	}
	expect.NoError(t, l.Wait(context.Background(), "", 1000))
}

// A restarted enforcer has passed its follower's number. Without the instance, events 1 to 5 would count as read.
func TestAFollowerOfAnEarlierEnforcerMissesNothing(t *testing.T) {
	earlier, l := NewLog(16), NewLog(16)
	appendN(earlier, 5)
	must.True(t, l.Instance() != earlier.Instance(), "two logs are", l.Instance())
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	expect.NoError(t, l.Wait(ctx, earlier.Instance(), 5))
	restarted := func(got []api.Event, count uint64) {
		t.Helper()
		if len(got) == 0 || got[0].Kind != api.EventMissed || got[0].Cause != api.MissedRestarted || got[0].Instance != l.Instance() || got[0].Count != count || got[0].Seq != count {
			t.Fatalf("no event for another enforcer: %+v", got)
		}
	}
	restarted(l.Since(earlier.Instance(), 5, 100), 0) // no event yet
	appendN(l, 10)
	got := l.Since(earlier.Instance(), 5, 100)
	restarted(got, 0)
	if n := numbers(got[1:]); len(n) != 10 || n[0] != 1 || n[9] != 10 {
		t.Errorf("after %s:5 of an earlier enforcer: %v", earlier.Instance(), n)
	}
	if n := numbers(l.Since(got[5].Instance, got[5].Seq, 100)); len(n) != 5 || n[0] != 6 {
		t.Errorf("on from there: %v", n)
	}
	must.Len(t, numbers(l.Since(l.Instance(), 10, 100)), 0, "since the newest")
	appendN(l, 10)
	got = l.Since(earlier.Instance(), 5, 100)
	restarted(got, 4)
	if n := numbers(got[1:]); len(n) != 16 || n[0] != 5 {
		t.Errorf("with 1 to 4 dropped: %v", n)
	}
}

func TestWaitReturnsWithTheNextEvent(t *testing.T) {
	l := NewLog(4)
	appendN(l, 1)
	must.Do(t, l.Wait(context.Background(), "", 0), "there is one already")
	var waiters sync.WaitGroup
	for range 5 {
		waiters.Go(func() {
			if err := l.Wait(context.Background(), "", 1); err != nil || len(l.Since("", 1, 1)) != 1 {
				t.Errorf("Wait failed without an event: %v", err)
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
	expect.ErrorIs(t, <-ended, context.Canceled)
	go func() { ended <- l.Wait(context.Background(), "", 0) }()
	l.Close()
	expect.ErrorIs(t, <-ended, ErrClosed)
	l.Append("c1", api.Event{})
	must.Len(t, l.Since("", 0, 1), 0, "a closed log took")
}

// others returns the number of events by slice, without those of slice, and the number of missing events: of all, and of slice.
func others(l *Log, slice string) (kept map[string]int, missing, ofIt uint64) {
	kept = make(map[string]int)
	for _, e := range l.Since("", 0, 1<<20) {
		switch {
		case e.Kind == api.EventMissed && e.Slice == slice:
			ofIt += e.Count
			fallthrough
		case e.Kind == api.EventMissed:
			missing += e.Count
		case e.Slice != slice:
			kept[e.Slice]++
		}
	}
	return kept, missing, ofIt
}

func of(slice string) api.Event { return api.Event{Kind: api.EventRefused, Slice: slice} }

func TestASourcesFloodDropsOnlyItsOwnEvents(t *testing.T) {
	const capacity, flood = 4096, 20000
	l := NewLog(capacity)
	want := make(map[string]int)
	for i := range flood {
		l.Append("loud", of("loud"))
		if i%50 == 0 && i < flood/2 { // 20 other sources with 10 events each
			name := string(rune('a' + i/50%20))
			l.Append(name, of(name))
			want[name]++
		}
	}
	kept, missing, ofIt := others(l, "loud")
	expect.True(t, reflect.DeepEqual(kept, want), "kept of others", kept, "want", want)
	// The first kept event is of another source, after the first of the flood. 0 reports no older ones as missing.
	if n := uint64(flood - (capacity - 200)); missing != n-1 || ofIt != missing {
		t.Errorf("%d events are missing, %d of them the flood's, want %d", missing, ofIt, n-1)
	}
	if l.kept != capacity || len(l.Since("", 0, 1<<20)) > 2*capacity {
		t.Errorf("%d are kept", l.kept)
	}
}

// Two flooding sources keep half of the log each, and all of a third source's events if it has fewer.
func TestTheLargestSourcesLoseEvents(t *testing.T) {
	l := NewLog(100)
	for range 30 {
		l.Append("c", of("c"))
	}
	for range 200 {
		l.Append("a", of("a"))
		l.Append("b", of("b"))
	}
	if kept, _, _ := others(l, ""); !reflect.DeepEqual(kept, map[string]int{"a": 35, "b": 35, "c": 30}) {
		t.Errorf("%v", kept)
	}
}

// Short-lived containers have two events each. Both are kept, and the oldest events of all are dropped.
func TestOfManyWithFewEventsTheOldestAreDropped(t *testing.T) {
	l := NewLog(100)
	for i := range 1000 {
		name := strconv.Itoa(i)
		l.Append(name, api.Event{Kind: api.EventRegistered})
		l.Append(name, api.Event{Kind: api.EventReleased})
	}
	if got := numbers(l.Since("", 1900, 1000)); len(got) != 100 || got[0] != 1901 || got[99] != 2000 {
		t.Errorf("%v", got)
	}
	if len(l.sources) != 50 || len(l.bySize) != 50 {
		t.Errorf("%d sources are remembered", len(l.sources))
	}
}

// Checks the rule in the comment of Append for logs of any size with any number of sources.
func TestDroppedEventsFollowTheRule(t *testing.T) {
	type held struct {
		seq  uint64
		name string
	}
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		capacity, names := 1+random.IntN(100), 1+random.IntN(12)
		l := NewLog(capacity)
		var model []held
		for seq := uint64(1); seq <= 600; seq++ {
			name := strconv.Itoa(int(float64(names) * random.Float64() * random.Float64()))
			l.Append(name, of(name))
			model = append(model, held{seq, name})
			if len(model) > capacity {
				kept := make(map[string]int)
				for _, h := range model {
					kept[h.name]++
				}
				victim := 0
				for i, h := range model {
					if max(kept[h.name], 16) > max(kept[model[victim].name], 16) {
						victim = i
					}
				}
				model = slices.Delete(model, victim, victim+1)
			}
		}
		// A reader at any number gets all later kept events, and each other number once as missing.
		since := uint64(random.IntN(600))
		var got []held
		next := since + 1
		for last := since; last < 600; {
			for _, e := range l.Since(l.Instance(), last, 1+random.IntN(20)) {
				first := e.Seq
				if e.Kind == api.EventMissed {
					first = e.Seq - e.Count + 1
				} else {
					got = append(got, held{e.Seq, e.Slice})
				}
				if first != next && (since != 0 || len(got) > 1 || e.Kind == api.EventMissed) {
					t.Fatalf("seed %d: %d comes after %d: %+v", seed, first, next-1, e)
				}
				next, last = e.Seq+1, e.Seq
			}
		}
		want := slices.DeleteFunc(slices.Clone(model), func(h held) bool { return h.seq <= since })
		must.True(t, slices.Equal(got, want), "seed", seed, "since", since, got, "want", want)
	}
}

func TestMissedEventsNameTheirSliceIfThereIsOne(t *testing.T) {
	l := NewLog(2)
	l.Append("a", api.Event{Slice: "a", Container: "c"})
	for range 3 {
		l.Append("", api.Event{Kind: api.EventPoolCreated, Pool: "p"})
		l.Append("a", api.Event{Slice: "a", Container: "c"})
	}
	// sources of few events are equal: the oldest events are dropped, 1 to 5, of a and of pools
	got := l.Since(l.Instance(), 1, 10)
	if len(got) != 3 || got[0].Count != 4 || got[0].Slice != "" || got[0].Container != "" {
		t.Errorf("events of several slices: %+v", got)
	}
	l = NewLog(20)
	l.Append("b", of("b"))
	for range 40 {
		l.Append("a", api.Event{Slice: "a", Container: "c"})
	}
	got = l.Since(l.Instance(), 1, 2)
	if len(got) != 2 || got[0].Kind != api.EventMissed || got[0].Count != 21 || got[0].Slice != "a" || got[0].Container != "c" || got[1].Seq != 23 || !got[0].Time.Equal(got[1].Time) {
		t.Errorf("of one: %+v", got)
	}
}

// The log is bounded in bytes: an event has names, of at most 255 bytes, and a cause.
func TestALongCauseIsCut(t *testing.T) {
	l := NewLog(4)
	l.Append("a", api.Event{Cause: strings.Repeat("é", 1<<20)})
	if got := l.Since("", 0, 1)[0].Cause; len(got) > maxCause+len("…") || !strings.HasSuffix(got, "é…") || !utf8.ValidString(got) {
		t.Errorf("%d bytes: %q", len(got), got[max(0, len(got)-20):])
	}
}

// Slow and absent readers cost the writers nothing, since a reader keeps its own position.
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
						seen, appended = e.Seq, true // earlier events were not missed
					}
					seq = e.Seq
				}
			}
			expect.Equal(t, seen, writers*each, "events that a reader saw or missed")
		})
	}
	all.Wait()
}

func TestAListenerGetsEachEventInOrder(t *testing.T) {
	l := NewLog(2)
	var told []api.Event // guarded by the Log
	l.Append("c1", api.Event{Kind: api.EventRegistered})
	l.Tell(func(_ string, e api.Event) { told = append(told, e) })
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				l.Append("c1", api.Event{Kind: api.EventRefused})
			}
		})
	}
	all.Wait()
	l.Close()
	l.Append("c1", api.Event{Kind: api.EventReleased})
	must.Len(t, told, 400, "were told")
	for i, e := range told {
		if e.Seq != uint64(i+2) || e.Kind != api.EventRefused || e.Time.IsZero() {
			t.Fatalf("number %d is %+v", i, e)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// refusal returns the entry of a rejected request of a user without rights.
func refusal(uid uint32, share Share, at time.Time) Entry {
	return Entry{Event: api.Event{Kind: KindRequest, Time: at, PID: 7, Command: "sh"}, UID: &uid, Share: share, Operation: "POST /v1/slices",
		Result: Refused, Code: api.CodeForbidden, Message: strings.Repeat("x", 200)}
}

func TestEntriesBeyondAUsersShareAreOneEntryAMinute(t *testing.T) {
	var mu sync.Mutex
	now := time.Unix(1e9, 0)
	w, _ := writer(t, t.TempDir(), func(o *Options) { o.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now } })
	const each = 1000
	minute := func() {
		for range each {
			w.Put(refusal(1, ShareUser, time.Time{}))
			granted := refusal(1, ShareUser, time.Time{})
			granted.Result, granted.Code = OK, ""
			w.Put(granted)
			for uid := uint32(2); uid < 10; uid++ {
				w.Put(refusal(uid, ShareStranger, time.Time{}))
			}
		}
		w.Put(Entry{Event: api.Event{Kind: KindRequest, Slice: "root's"}, UID: new(uint32(0)), Result: Refused})
	}
	minute()
	mu.Lock()
	now = now.Add(shareWindow)
	mu.Unlock()
	eventually(t, "the first minute ends, though nobody asks", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.shares.of) == 0
	})
	minute()
	closed(t, w) // writes the counts of the current minute
	listed, bytes, recorded, counts, roots := map[asker]int{}, map[asker]int{}, map[asker]int{}, map[asker]int{}, 0
	others := asker{uid: 100, result: Refused}
	for _, e := range read(t, w.options.File) {
		who := asker{result: e.Result}
		switch {
		case e.Slice != "":
			roots++
			continue
		case e.UID == nil:
			who.uid = others.uid
		default:
			who.uid = *e.UID
		}
		if e.Count > 0 {
			counts[who]++
			recorded[who] += int(e.Count)
		} else {
			listed[who]++
			recorded[who]++
			bytes[who] += len(makeLine(e).text)
		}
	}
	expect.Equal(t, roots, 2, "entries of root")
	all, strangers := 0, 0
	for who, n := range recorded {
		all += n
		limit := strangerBytes
		switch who {
		case others:
			continue
		case asker{uid: 1, result: OK}:
			limit = grantedBytes
		case asker{uid: 1, result: Refused}:
			limit = refusedBytes
		default:
			strangers += bytes[who]
		}
		if bytes[who] > 2*limit || listed[who] == 0 || counts[who] != 2 {
			t.Errorf("%+v: %d entries, %d bytes and %d counts in two minutes", who, listed[who], bytes[who], counts[who])
		}
		expect.Equal(t, n, 2*each, who, "requests that are recorded")
	}
	if len(recorded) < 2+strangersBytes/strangerBytes || all != 2*10*each || strangers > 2*strangersBytes {
		t.Errorf("%v: %d; %d bytes of strangers", recorded, all, strangers)
	}
}

// Constant rejections and releases of one container are counted, and all entries of the others are listed.
func TestEventsOfOneSliceCannotFillTheFile(t *testing.T) {
	now := time.Unix(1e9, 0)
	w, _ := writer(t, t.TempDir(), func(o *Options) { o.Now = func() time.Time { return now } })
	const each = 2000
	happens := func(of, slice string, kind api.EventKind, count uint64) {
		w.Event(of, api.Event{Kind: kind, Slice: slice, Device: "GPU-1", Requested: 1, Count: count, Bytes: 1})
	}
	for n := range each {
		happens("hostile", "hostile", api.EventRefused, 3)
		happens("hostile", "hostile", api.EventFreed, 0)
		happens("user 7", fmt.Sprint("u7-", n), api.EventRefused, 1)
		if n%100 == 0 {
			happens("honest", "honest", api.EventRefused, 1)
			happens("", "", api.EventPoolChanged, 0)
		}
	}
	closed(t, w)
	type key struct{ of, result string }
	listed, bytes, counted := map[key]int{}, map[key]int{}, map[key]int{}
	for _, e := range read(t, w.options.File) {
		k := key{e.Slice, e.Result}
		if strings.HasPrefix(e.Slice, "u7-") || e.Cause == "user 7" {
			k.of = "user 7"
		}
		if e.Kind == KindEvents {
			if e.Cause != k.of || e.Message == "" {
				t.Errorf("%+v", e)
			}
			counted[k] += int(e.Count)
			continue
		}
		listed[k]++
		bytes[k] += len(makeLine(e).text)
	}
	for k, want := range map[key]int{
		{"hostile", Refused}: 3 * each, {"hostile", OK}: each, {"user 7", Refused}: each, {"honest", Refused}: each / 100, {"", OK}: each / 100,
	} {
		times := 1
		if k == (key{"hostile", Refused}) {
			times = 3
		}
		if got := listed[k]*times + counted[k]; got != want {
			t.Errorf("%+v: %d listed and %d counted, want %d", k, listed[k], counted[k], want)
		}
		if few := want == each/100; few != (counted[k] == 0) || bytes[k] > limitOf(k.result) {
			t.Errorf("%+v: %d listed in %d bytes, %d counted", k, listed[k], bytes[k], counted[k])
		}
	}
}

func TestManyUsersCostNoMoreThanTheirShare(t *testing.T) {
	var s shares
	now := time.Unix(1e9, 0)
	s.end(now)
	for uid := range uint32(100000) {
		s.lists(refusal(uid, ShareUser, now), 300)
		s.lists(refusal(uid+200000, ShareStranger, now), 300)
	}
	listed := len(s.of)
	expect.True(t, s.hasEnded(now.Add(-time.Second)), "a clock that was set back ends nothing")
	var counted uint64
	left := s.end(now)
	for _, e := range left {
		counted += e.Count
	}
	if listed != maxAskers || len(left) != 1 || counted != 200000-maxAskers {
		t.Errorf("%d users were listed; %d entries say that %d requests were not", listed, len(left), counted)
	}
}

// A hanging disk costs bounded memory, and users get half of the queue: the other half is left for root.
func TestADiskThatHangsCostsBoundedMemoryAndUsersTakeHalfOfIt(t *testing.T) {
	dir := t.TempDir()
	w, log, goesOn := hanging(t, dir)
	users := Entry{Event: api.Event{Kind: KindRequest, Slice: "users", Time: time.Unix(1e9, 0)}, Share: ShareUser, Result: OK,
		Message: strings.Repeat("\"", 100000)}
	for i := range 64 {
		users.Quotas = append(users.Quotas, api.Quota{Device: fmt.Sprint("GPU-", i), Percent: 5})
	}
	for n := range 3000 { // few enough per user to be within its budget
		users.UID = new(uint32(n % 500))
		w.Put(users)
	}
	w.mu.Lock()
	bytes, lines := w.queue.bytes, w.queue.count
	w.mu.Unlock()
	if bytes > maxQueuedBytes/2 || bytes < maxQueuedBytes/4 || lines > maxQueued/2 {
		t.Errorf("%d lines of %d bytes wait", lines, bytes)
	}
	const roots = 1000
	for n := range roots {
		w.Put(entry(n))
	}
	goesOn()
	whole(t, w, log, dir, 1+3000+roots)
	there := 0
	for _, e := range read(t, files(t, dir)...) {
		if e.Slice != "users" && e.Kind != KindDropped {
			there++
		}
		must.True(t, len(e.Message) <= maxText, "a text has", len(e.Message), "bytes")
	}
	expect.Equal(t, there, 1+roots, "entries of others are there")
}

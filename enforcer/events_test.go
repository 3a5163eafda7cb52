// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
	"github.com/gpuslice/gpuslice/test/testhost"
)

func (h *host) told(kind api.EventKind) []api.Event {
	h.t.Helper()
	var found []api.Event
	for _, e := range h.events() {
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}

func (h *host) events() []api.Event {
	h.t.Helper()
	var all []api.Event
	var since uint64
	for {
		events := must.Get(h.Events(context.Background(), "", since, false))(h.t)
		if len(events) == 0 {
			return all
		}
		all = append(all, events...)
		since = events[len(events)-1].Seq
	}
}

func (h *host) refusals() (sum uint64) {
	h.t.Helper()
	for _, e := range h.told(api.EventRefused) {
		sum += e.Count
	}
	return sum
}

func (h *host) looks() {
	time.Sleep(8 * h.options.Interval)
}

func attached(t *testing.T, h *host, id string, bytes uint64) *proc {
	t.Helper()
	p, _ := h.session(id, on(gpu0, bytes))
	p.uses()
	return p
}

func TestRefusalEventHasItsFigures(t *testing.T) {
	h := newHost(t, nil)
	p := attached(t, h, "s1", 4*gib)
	p.must("charge 0 %d", 3*gib)
	p.must("refused 0 %d", 2*gib)
	eventually(t, "the refused event", func() bool { return len(h.told(api.EventRefused)) > 0 })
	told := h.told(api.EventRefused)
	must.Len(t, told, 1)
	got := told[0]
	if got.Time.IsZero() || got.Generation == 0 {
		t.Errorf("%+v", got)
	}
	expect.True(t, got.Instance != "", "of no instance", got)
	got.Instance, got.Seq, got.Time, got.Generation = "", 0, time.Time{}, 0
	want := api.Event{
		Kind: api.EventRefused, Slice: "s1", PID: p.pid(), Command: "client", Device: gpu0,
		Call: "cuMemAlloc", Count: 1, Requested: 2 * gib, Limit: new(4 * gib), Used: new(3 * gib), Overhead: new(uint64(0)), // the known overhead
	}
	expect.True(t, reflect.DeepEqual(got, want), "told", got, "want", want)
	h.looks()
	expect.Equal(t, h.refusals(), 1, "one refusal has the events")
}

func TestEachRefusalIsReportedOnce(t *testing.T) {
	h, began := newHost(t, nil), time.Now()
	p, q := attached(t, h, "s1", gib), attached(t, h, "s2", gib)
	for i := range uint64(100) {
		p.must("refused 0 1")
		eventually(t, "the refused event", func() bool { return h.refusals() == i+1 })
	}
	for range 400 {
		p.must("refused 0 1")
		q.must("count 0 2") // without a description
	}
	eventually(t, "all are told", func() bool { return h.refusals() == 500+800 })
	h.looks()
	expect.Equal(t, h.refusals(), 500+800, "1300 refusals have the events")
	expect.Equal(t, h.see("s1").Devices[0].Refusals, 500, "refusals")
	alone := 0
	for _, e := range h.told(api.EventRefused) {
		if e.Requested != 0 {
			alone++
		}
		if e.Slice == "s2" && (e.PID != q.pid() || e.Requested != 0 || *e.Limit != gib || e.Used != nil) {
			t.Errorf("told of what nobody said: %+v", e)
		}
	}
	if most := await.Paced(began, 16, time.Second/16); alone > most {
		t.Errorf("%d of 500 have an event of their own, want at most %d", alone, most)
	}
}

func TestRefusalsOfAnExitedProcessAreReported(t *testing.T) {
	h := newHost(t, nil)
	p := attached(t, h, "s1", gib)
	p.must("count 0 7")
	p.kill()
	eventually(t, "the refused events", func() bool { return h.refusals() == 7 })
	eventually(t, "the slice is gone", func() bool { return len(h.told(api.EventReleased)) == 1 })
	if e := h.told(api.EventRefused)[0]; e.PID != p.pid() || e.Slice != "s1" {
		t.Errorf("%+v", e)
	}
	h.looks()
	expect.Equal(t, h.refusals(), 7, "7 refusals have the events")
}

// Refusals counted by the lane's former image are reported once.
func TestRefusalsBeforeAnExecAreReportedOnce(t *testing.T) {
	h := newHost(t, nil)
	p := attached(t, h, "s1", gib)
	p.must("count 0 3")
	p.tell("exec")
	p.must("attach")
	p.must("refused 0 5")
	eventually(t, "all are told", func() bool { return h.refusals() == 4 })
	h.looks()
	expect.Equal(t, h.refusals(), 4, "4 refusals have the events")
}

func TestRestartRepeatsNoEvent(t *testing.T) {
	h := newHost(t, nil)
	p := attached(t, h, "s1", gib)
	p.must("refused 0 5")
	eventually(t, "the refused event", func() bool { return h.refusals() == 1 })
	h.restart()
	h.looks()
	if n := h.refusals(); n != 0 {
		t.Errorf("the new enforcer told %d that the former one has told", n)
	}
	p.must("refused 0 6")
	eventually(t, "the refused event", func() bool { return h.refusals() == 1 })
	if told := h.told(api.EventRefused); len(told) != 1 || told[0].Requested != 6 || told[0].Count != 1 {
		t.Errorf("%+v", told)
	}
}

func TestMessagesOfAHostileProcessAreBounded(t *testing.T) {
	h := newHost(t, nil)
	p := attached(t, h, "s1", gib)
	entry := entryAt(1)
	refusals := entry + uint64(unsafe.Sizeof([6]uint64{})) // see struct ledger_entry
	p.must("count 0 1")
	eventually(t, "the refused event", func() bool { return h.refusals() == 1 })
	p.ask("poke %d %d", refusals, uint64(1)<<63)
	eventually(t, "the refused event", func() bool { return h.refusals() > 1 })
	p.ask("poke %d 0", refusals) // the count goes down
	h.looks()
	n := h.refusals()
	expect.True(t, n <= 1<<33, n, "refusals were believed")
	p.must("refused 0 %d", uint64(1)<<63)
	eventually(t, "the refused event", func() bool { return h.refusals() == n+1 })
	p.ask("poke %d 9", entry-16)             // no such device of the slice
	p.ask("poke %d %d", entry-64, 1_000_000) // in a refusal that was never counted
	h.looks()
	told := h.told(api.EventRefused)
	if e := told[len(told)-1]; e.Count != 1 || e.Requested != 1<<63-1 || h.refusals() != n+1 {
		t.Errorf("%+v", e)
	}
}

func TestEventsCoverTheLifeOfASlice(t *testing.T) {
	h := newHost(t, nil)
	p := attached(t, h, "s1", gib)
	p.must("charge 0 %d", 3*mib)
	p.tell("exec")
	p.must("attach") // releases what the former image held
	eventually(t, "that is told", func() bool { return len(h.told(api.EventFreed)) == 1 })
	if e := h.told(api.EventFreed)[0]; e.Bytes != 3*mib || e.Slice != "s1" || e.Device != gpu0 {
		t.Errorf("%+v", e)
	}
	must.Get(h.Release(context.Background(), "s1", 0, true))(t)
	registered, released := h.told(api.EventRegistered), h.told(api.EventReleased)
	if len(registered) != 1 || registered[0].Slice != "s1" || registered[0].PID != p.pid() {
		t.Errorf("%+v", registered)
	}
	if len(released) != 1 || released[0].Slice != "s1" || released[0].Cause != "asked" || released[0].Generation != registered[0].Generation {
		t.Errorf("%+v", released)
	}
	if got := fmt.Sprint(h.told(api.EventFreed)); len(h.told(api.EventFreed)) != 1 {
		t.Errorf("given back once, told as %s", got)
	}
}

// A container's processes can cause any number of events, and so can a user's sessions.
func TestOneSlicesEventsDoNotDropThoseOfOthers(t *testing.T) {
	needs.Root(t)
	h, u := newUsers(t, &fakeTruth{})
	h.pool("llm", on(api.AllDevices, gib))
	session := func(uid uint32, id string) {
		must.Get(begin(t, u, uid, id, on(gpu0, gib)))(t)
	}
	session(bob, "quiet")
	h.TellRefusals("u5002-quiet", 100)
	before := h.events()
	session(alice, "a")
	session(alice, "b")
	session(carol, "loud")
	for range 5 {
		for _, id := range []string{"u5001-a", "u5001-b", "u5003-loud"} {
			h.TellRefusals(id, 1500)
		}
	}
	after := h.events()
	kept, of := make(map[uint64]api.Event), make(map[string]int)
	var all, missed uint64
	for _, e := range after {
		if e.Kind == api.EventMissed {
			missed += e.Count
			continue
		}
		kept[e.Seq] = e
		of[e.Slice]++
		all = e.Seq
	}
	for _, e := range before {
		if kept[e.Seq].Kind != e.Kind || kept[e.Seq].Slice != e.Slice {
			t.Errorf("it is not kept any more: %+v", e)
		}
	}
	if a, b := of["u5001-a"]+of["u5001-b"], of["u5003-loud"]; a < b-1 || a > b+1 {
		t.Errorf("%d events of a user's two sessions are kept, but %d of another's one", a, b)
	}
	if len(kept) != 4096 || uint64(len(kept))+missed != all {
		t.Errorf("%d events are kept and %d reported as missed: want %d in all", len(kept), missed, all)
	}
}

func TestWaitingForEventsEndsWithTheEnforcer(t *testing.T) {
	h := newHost(t, nil)
	ended := make(chan error)
	go func() {
		_, err := h.Events(context.Background(), "", 0, true)
		ended <- err
	}()
	h.stop()
	expect.Error(t, <-ended, "there is an event of something that did not happen")
}

func TestAttachesWithoutAFreeLaneAreReportedSinglyThenSummed(t *testing.T) {
	h, began := newHost(t, nil), time.Now()
	_, reply := h.session("s1", on(gpu0, gib))
	stranger := start(t, filepath.Join(reply.Dir, "bind"), "")
	const asked = 200
	for range asked {
		stranger.expect("status 1", "attach")
	}
	sum := func() (sum uint64) {
		for _, e := range h.told(api.EventAttachRefused) {
			sum += e.Count
		}
		return sum
	}
	eventually(t, "all are told", func() bool { return sum() == asked })
	told := h.told(api.EventAttachRefused)
	alone := 0
	for _, e := range told {
		if e.PID != 0 {
			alone++
		}
	}
	if most := await.Paced(began, 4, time.Second/4); alone > most {
		t.Errorf("%d of %d have an event of their own, want at most %d", alone, asked, most)
	}
	if e := told[0]; e.Slice != "s1" || e.PID != stranger.pid() || e.Command != "client" || e.Cause != "stranger" || e.Count != 1 {
		t.Errorf("%+v", e)
	}
}

func TestMembersAttachWithoutAFreeLaneIsReported(t *testing.T) {
	h := newHost(t, nil)
	p, _ := h.session("s1", on(gpu0, gib))
	h.LeavePlaces("s1", 0)
	must.True(t, p.ask("attach") != "ok", "it got a place")
	told := h.told(api.EventAttachRefused)
	if len(told) != 1 || told[0].Cause != "full" || told[0].PID != p.pid() {
		t.Errorf("%+v", told)
	}
	// In order: a slice's own events come before its end.
	must.Get(h.Release(context.Background(), "s1", 0, true))(t)
}

func TestAFullSliceDoesNotFillTheLog(t *testing.T) {
	h := newHost(t, nil)
	h.stop()
	var log testhost.Output
	h.options.Log = slog.New(slog.NewTextHandler(&log, nil))
	began := time.Now()
	h.start()
	p, _ := h.session("s1", on(gpu0, gib))
	h.LeavePlaces("s1", 0)
	for range 200 {
		must.True(t, p.ask("attach") != "ok", "it got a place")
	}
	if n := strings.Count(log.String(), "no free process slot"); n == 0 || n > await.Paced(began, 5, 10*time.Second) {
		t.Errorf("%d lines", n)
	}
}

// A receiver of events, such as the audit log, also gets those of the start, before any request is served.
func TestListenerMissesNoEvent(t *testing.T) {
	h := newHost(t, nil)
	h.stop()
	told := make(chan api.Event, 100)
	h.options.Event = func(_ string, e api.Event) { told <- e }
	h.start()
	p, _ := h.session("s1", on(gpu0, gib))
	h.stop()
	p.kill()
	h.start() // it ended while no enforcer ran
	eventually(t, "the slice is gone", func() bool { _, err := h.Slice(context.Background(), "s1"); return err != nil })
	var kinds []api.EventKind
	for len(told) > 0 {
		e := <-told
		if e.Slice != "s1" || e.Seq == 0 {
			t.Errorf("%+v", e)
		}
		kinds = append(kinds, e.Kind)
	}
	if len(kinds) != 2 || kinds[0] != api.EventRegistered || kinds[1] != api.EventReleased {
		t.Errorf("%v", kinds)
	}
}

// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

func TestWhoGetsNoPlaceIsToldOneByOneAndThenAsASum(t *testing.T) {
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

func TestAMemberThatGetsNoPlaceIsToldToo(t *testing.T) {
	h := newHost(t, nil)
	p, _ := h.session("s1", on(gpu0, gib))
	h.LeavePlaces("s1", 0)
	if answer := p.ask("attach"); answer == "ok" {
		t.Fatal("it got a place")
	}
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
		if answer := p.ask("attach"); answer == "ok" {
			t.Fatal("it got a place")
		}
	}
	if n := strings.Count(log.String(), "no free process slot"); n == 0 || n > await.Paced(began, 5, 10*time.Second) {
		t.Errorf("%d lines", n)
	}
}

// A receiver of events, such as the audit log, also gets those of the start, before any request is served.
func TestWhoIsToldOfEventsMissesNone(t *testing.T) {
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

// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func damaged(h *host, id string) bool { return h.see(id).State == api.Damaged }

func TestOverwrittenPageIsDamaged(t *testing.T) {
	// Offsets of ledger.h: the header has 128 bytes, then devices of 128, the lanes from 4096 on.
	for name, c := range map[string]struct{ offset, value uint64 }{
		"magic":        {0, 1},
		"layout":       {8, 77},
		"device count": {24, 1 << 40},
		"name":         {40, 1},
		"used":         {128, 5},
		"limit":        {128 + 16, 1 << 50},
		"quota":        {128 + 24, 1 << 50},
		"uuid":         {128 + 80, 1},
		"lane's sum":   {entryAt(1) + 8, 1},
		"flags":        {32, 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, nil)
			p, _ := h.session("s", on(gpu0, gib))
			p.uses()
			p.must("charge 0 %d", 2) // change 1, in sum[1]
			p.must("charge 0 %d", 2) // change 2, in sum[0]
			p.expect("ok", "poke %d %d", c.offset, c.value)
			eventually(t, "the slice is damaged", func() bool { return damaged(h, "s") })
			must.True(t, h.see("s").Reason != "", "no reason")
			must.True(t, name == "magic" || name == "layout" || strings.HasPrefix(p.ask("charge 0 1"), "refused"), "something more was charged")
			p.expect("status 3", "attach")
			must.Get(h.Release(context.Background(), "s", 0, true))(t)
		})
	}
}

// The requests are well formed, with contents that no honest process sends.
func TestRequestsForUnknownDevicesAreRefused(t *testing.T) {
	for name, truth := range map[string]*fakeTruth{"with driver truth": {}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, truth)
			p, _ := h.session("s", on(gpu0, gib))
			for _, index := range []uint64{16, 1 << 31, 1<<32 - 1} {
				p.expect("status 5", "truth %d", index)
			}
			p.expect("status 5", "device %s %d", hex1, 80*gib)
			p.expect("status 5", "device %032x %d", 0, 80*gib) // no device at all
			if truth == nil {                                  // with driver truth the size is not taken from the process
				p.expect("status 4", "device %s 0", hex0)
			}
			p.must("device %s %d", hex0, uint64(1)<<63)
			p.must("attach")
			p.must("charge 0 %d", gib)
			p.expect("refused", "charge 0 1")
			if s := h.see("s"); s.State != api.Active || len(s.Devices) != 1 {
				t.Fatalf("%+v", s)
			}
		})
	}
}

// Otherwise a process could get a new page by overwriting its own and exiting before a restart.
func TestOverwrittenLedgerIsDamagedAfterARestart(t *testing.T) {
	h := newHost(t, nil)
	h.pool("llm", on(api.AllDevices, 4*gib))
	p, q := h.pair(on(api.AllDevices, 4*gib))
	q.uses()
	m := h.member("m", "llm").uses()
	q.expect("ok", "poke %d %d", 128+16, 100*gib)
	m.expect("ok", "pokepool %d %d", 128+16, 100*gib)
	eventually(t, "the slice is damaged", func() bool { return damaged(h, "s") && h.seePool("llm").State == api.Damaged })
	reason := h.see("s").Reason
	h.stop()
	q.kill()
	m.kill()
	for range 2 {
		h.start()
		if s := h.see("s"); s.State != api.Damaged || s.Reason != reason {
			t.Errorf("%+v", s)
		}
		expect.Equal(t, h.seePool("llm").State, api.Damaged, "state")
		p.expect("status 3", "attach")
		expect.Equal(t, len(h.told(api.EventBypass)), 0, "it was told again")
		h.stop()
	}
	h.start()
}

func TestContinuouslyOverwrittenPageHarmsOnlyItsSlice(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	good, _ := h.session("good", on(gpu0, gib))
	good.must("attach")
	for seed := range 8 {
		id := string(rune('a' + seed))
		bad, _ := h.session(id, on(gpu0, gib))
		bad.must("attach")
		bad.must("charge 0 1000")
		bad.tell("scribble %d 3000000", seed+1)
		for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
			h.see(id)
			good.must("charge 0 1")
			good.must("release 0 1")
		}
		must.Equal(t, bad.ask("hello"), "ok", "it did not fire")
		eventually(t, "it is named damaged", func() bool { return damaged(h, id) })
		if seed%2 == 0 && os.Geteuid() == 0 {
			h.restart()
			eventually(t, "it is damaged again", func() bool { return damaged(h, id) })
			good.must("charge 0 1")
			good.must("release 0 1")
		}
		bad.kill()
	}
	if s := h.see("good"); s.State != api.Active || s.Devices[0].Used != 0 {
		t.Fatalf("%+v", s)
	}
}

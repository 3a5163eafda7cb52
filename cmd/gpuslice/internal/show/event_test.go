// SPDX-License-Identifier: Apache-2.0

package show

import (
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

func TestAnEventIsOneLineWithASentence(t *testing.T) {
	const gpu = "GPU-1b2c3d4e-0000-1111-2222-333344445555"
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.Local)
	for want, e := range map[string]api.Event{
		"2026-03-04 05:06:07  refused         0123456789ab  cuMemAlloc of 3GiB on GPU-1b2c3d4e by process 7 (python): limit 8GiB, used 6GiB, overhead 1GiB": {
			Kind: api.EventRefused, Slice: container, PID: 7, Command: "python", Device: gpu, Call: "cuMemAlloc", Count: 1,
			Requested: 3 << 30, Limit: new(uint64(8 << 30)), Used: new(uint64(6 << 30)), Overhead: new(uint64(1 << 30)),
		},
		"2026-03-04 05:06:07  refused         s1            cuMemCreate of 2MiB, and 4 before it, on GPU-1b2c3d4e by process 7: limit 1GiB, used 0B, overhead 0B": {
			Kind: api.EventRefused, Slice: "s1", PID: 7, Device: gpu, Call: "cuMemCreate", Count: 5, Requested: 2 << 20, Limit: new(uint64(1 << 30)), Used: new(uint64(0)), Overhead: new(uint64(0)),
		},
		"2026-03-04 05:06:07  refused         s1            cuMemCreate of 2MiB on GPU-1b2c3d4e by process 7: limit of pool llm 1GiB, used 1GiB, overhead unknown": {
			Kind: api.EventRefused, Slice: "s1", PID: 7, Device: gpu, Call: "cuMemCreate", Count: 1, Requested: 2 << 20, Limit: new(uint64(1 << 30)), Used: new(uint64(1 << 30)), Pool: "llm",
		},
		`2026-03-04 05:06:07  attach_refused  s1            process 7 (x\x1b[2J) got no place in the ledger: not of the slice`: {
			Kind: api.EventAttachRefused, Slice: "s1", PID: 7, Command: "x\x1b[2J", Cause: "stranger", Count: 1,
		},
		"2026-03-04 05:06:07  pool_changed    llm           pool llm has another quota": {Kind: api.EventPoolChanged, Pool: "llm"},
		"2026-03-04 05:06:07  pool_changed    llm           pool llm has another quota: its limit on GPU-1b2c3d4e is 4GiB, used 0B, overhead 0B": {
			Kind: api.EventPoolChanged, Pool: "llm", Device: gpu, Limit: new(uint64(4 << 30)), Used: new(uint64(0)), Overhead: new(uint64(0)),
		},
		"2026-03-04 05:06:07  refused         s1            12 requests on GPU-1b2c3d4e: limit 1GiB": {
			Kind: api.EventRefused, Slice: "s1", Device: gpu, Count: 12, Limit: new(uint64(1 << 30)),
		},
		"2026-03-04 05:06:07  registered      s1            began with process 9":                                             {Kind: api.EventRegistered, Slice: "s1", PID: 9},
		"2026-03-04 05:06:07  released        s1            ended: its processes exited":                                      {Kind: api.EventReleased, Slice: "s1", Cause: "ended"},
		"2026-03-04 05:06:07  freed           s1            512MiB on GPU-1b2c3d4e freed: held by processes that have exited": {Kind: api.EventFreed, Slice: "s1", Device: gpu, Bytes: 512 << 20},
		"2026-03-04 05:06:07  denied          s1            a process uses GPU-1b2c3d4e, and the slice has nothing there: s1 asks for 4GiB, where there is less": {
			Kind: api.EventDenied, Slice: "s1", Device: gpu, Requested: 4 << 30, Cause: "s1 asks for 4GiB, where there is less",
		},
		"2026-03-04 05:06:07  unlimited       s1            the driver does not hold the container to its quota on GPU-1b2c3d4e, the interceptor does: why": {
			Kind: api.EventUnlimited, Slice: "s1", Device: gpu, Cause: "why",
		},
		"2026-03-04 05:06:07  registered      s1            began with process 9, for 1h30m": {Kind: api.EventRegistered, Slice: "s1", PID: 9, TTL: 90 * time.Minute},
		"2026-03-04 05:06:07  released        s1            ended: it expired":               {Kind: api.EventReleased, Slice: "s1", Cause: "expired"},
		"2026-03-04 05:06:07  changed         s1            expires in 1h":                   {Kind: api.EventChanged, Slice: "s1", Cause: "ttl", TTL: time.Hour},
		"2026-03-04 05:06:07  changed         s1            does not expire":                 {Kind: api.EventChanged, Slice: "s1", Cause: "ttl"},
		"2026-03-04 05:06:07  changed         s1            its limit on GPU-1b2c3d4e is 4GiB, used 5GiB, overhead 512MiB: it is over that, and gets nothing until it has given back enough": {
			Kind: api.EventChanged, Slice: "s1", Cause: "quota", Device: gpu, Limit: new(uint64(4 << 30)), Used: new(uint64(5 << 30)), Overhead: new(uint64(512 << 20)),
		},
		"2026-03-04 05:06:07  expired         s1            expired: it gets no more memory, and its processes are ended": {Kind: api.EventExpired, Slice: "s1", TTL: time.Hour},
		"2026-03-04 05:06:07  attach_refused  s1            process 7 (nc) got no place in the ledger: not of the slice": {
			Kind: api.EventAttachRefused, Slice: "s1", PID: 7, Command: "nc", Cause: "stranger", Count: 1,
		},
		"2026-03-04 05:06:07  attach_refused  s1            90 processes got no place in the ledger: the slice was released": {
			Kind: api.EventAttachRefused, Slice: "s1", Cause: "released", Count: 90,
		},
		"2026-03-04 05:06:07  bypass          s1            process 7 (x) holds 2GiB on GPU-1b2c3d4e and never attached; action: kill": {
			Kind: api.EventBypass, Slice: "s1", PID: 7, Command: "x", Device: gpu, Bytes: 2 << 30, Cause: api.BypassUnattached, Action: api.Kill,
		},
		"2026-03-04 05:06:07  killed          s1            process 7 (x) killed, with 2 others of its slice: it held 2GiB on GPU-1b2c3d4e beyond its charges": {
			Kind: api.EventKilled, Slice: "s1", PID: 7, Command: "x", Device: gpu, Bytes: 2 << 30, Cause: api.BypassExcess, Count: 3,
		},
		"2026-03-04 05:06:07  bypass          s1            the ledger was overwritten; action: refuse": {
			Kind: api.EventBypass, Slice: "s1", Cause: api.BypassOverwritten, Action: api.Refuse,
		},
		"2026-03-04 05:06:07  bypass          llm           the ledger of pool llm was overwritten; action: refuse": {
			Kind: api.EventBypass, Pool: "llm", Cause: api.BypassOverwritten, Action: api.Refuse,
		},
		"2026-03-04 05:06:07  bypass          s1            process 7 (x) holds 2GiB on GPU-1b2c3d4e and never attached (the container's ld.so.preload is not in its /etc any more); action: log": {
			Kind: api.EventBypass, Slice: "s1", PID: 7, Command: "x", Device: gpu, Bytes: 2 << 30, Cause: api.BypassUnattached, Action: api.Log, Preload: api.PreloadMoved,
		},
		"2026-03-04 05:06:07  denied          llm           a process uses GPU-1b2c3d4e, and pool llm has nothing there: why": {
			Kind: api.EventDenied, Pool: "llm", Device: gpu, Cause: "why",
		},
		"2026-03-04 05:06:07  denied          llm           nothing more is given in pool llm: why":                                                      {Kind: api.EventDenied, Pool: "llm", Cause: "why"},
		"2026-03-04 05:06:07  denied          s1            nothing more is given in the slice: why":                                                     {Kind: api.EventDenied, Slice: "s1", Cause: "why"},
		"2026-03-04 05:06:07  missed          -             no longer kept: 3 events before the next one":                                                {Kind: api.EventMissed, Count: 3},
		"2026-03-04 05:06:07  missed          s1            no longer kept: 3 events before the next one":                                                {Kind: api.EventMissed, Slice: "s1", Count: 3},
		"2026-03-04 05:06:07  missed          -             gpusliced was restarted: earlier events that were not read are lost":                         {Kind: api.EventMissed, Cause: api.MissedRestarted},
		"2026-03-04 05:06:07  missed          -             gpusliced was restarted: earlier events that were not read are lost, and so are its first 4": {Kind: api.EventMissed, Cause: api.MissedRestarted, Count: 4},
	} {
		e.Time = at
		var out strings.Builder
		if err := Event(&out, e, nil, false); err != nil {
			t.Fatal(err)
		}
		if out.String() != want+"\n" {
			t.Errorf("got  %q\nwant %q", out.String(), want)
		}
	}
	var out strings.Builder
	if err := Event(&out, api.Event{Kind: api.EventFreed, Slice: container, Device: gpu}, Indices{gpu: 3}, true); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), container) || !strings.Contains(out.String(), gpu) {
		t.Errorf("ids were shortened: %s", out.String())
	}
}

func TestEveryKindOfEventHasASentence(t *testing.T) {
	for _, kind := range api.EventKinds() {
		if kind == "recovered" { // memory of a process that ended normally was not lost
			t.Errorf("an event is %s", kind)
		}
		if got := Sentence(api.Event{Kind: kind}); got == Sentence(api.Event{Kind: "new"}) {
			t.Errorf("%s has none", kind)
		}
	}
}

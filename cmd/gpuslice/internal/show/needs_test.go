// SPDX-License-Identifier: Apache-2.0

package show

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

const card = "GPU-1b2c3d4e-0000-1111-2222-333344445555"

func refusal() *api.Refusal {
	limit := uint64(8 << 30)
	return &api.Refusal{
		Time: time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local), Device: card, PID: 4711, Command: "python", Call: "cuMemAlloc", Requested: 2 << 30,
		Limit: &limit, Used: 6<<30 + 512<<20, Overhead: 512 << 20, Needed: 9 << 30,
		Holders: []api.Holder{{PID: 4711, Command: "python", Used: 5 << 30}, {PID: 4712, Command: "x\x1b[2J", Used: 1 << 30, Overhead: 1 << 30}},
	}
}

func TestARefusalIsExplainedInAFewSentences(t *testing.T) {
	ended := time.Now()
	count := func(r *api.Refusal) { *r = api.Refusal{Time: r.Time, Device: r.Device, Limit: r.Limit} }
	many := func(r *api.Refusal) {
		r.Holders[0].Command = "train"
		r.Holders = append(r.Holders, api.Holder{PID: 1, Used: 3}, api.Holder{PID: 2, Used: 2}, api.Holder{PID: 3, Used: 1})
		r.MoreCount, r.MoreBytes = 2, 4
	}
	for _, c := range []struct {
		ended  *time.Time
		change func(*api.Refusal)
		want   string
	}{
		{nil, func(*api.Refusal) {}, `slice train was refused cuMemAlloc of 2GiB on GPU-1b2c3d4e at 2026-03-01 12:00:00, by process 4711 (python).
Its quota there was 8GiB, of which 7GiB was in use: 6.5GiB requested by programs, and 512MiB of overhead (contexts, code).
Right after it, memory was held by process 4711 (python) 5GiB, process 4712 (x\x1b[2J) 2GiB.
This includes what PyTorch's allocator keeps for later: torch.cuda.memory_summary() shows how much.
The request would have fit into 9G: ` + "`gpuslice set train --vram 9G`" + ` changes the quota at once; or end what holds memory in the slice.
`},
		{&ended, many, `slice train was refused cuMemAlloc of 2GiB on GPU-1b2c3d4e at 2026-03-01 12:00:00, by process 4711 (python).
Its quota there was 8GiB, of which 7GiB was in use: 6.5GiB requested by programs, and 512MiB of overhead (contexts, code).
Right after it, memory was held by process 4711 (train) 5GiB, process 4712 (x\x1b[2J) 2GiB, process 1 3B, process 2 2B, 3 others 5B.
The request would have fit into 9G: start it with gpuslice.vram=9G, or ` + "`gpuslice run --vram 9G`" + `.
`},
		{nil, func(r *api.Refusal) { r.Pool, r.Holders = "llm", []api.Holder{{PID: 1, Slice: "a", Used: 1 << 30}} }, `slice train was refused cuMemAlloc of 2GiB on GPU-1b2c3d4e at 2026-03-01 12:00:00, by process 4711 (python).
The quota of pool llm there was 8GiB, of which 7GiB was in use: 6.5GiB requested by programs, and 512MiB of overhead (contexts, code).
Right after it, memory was held by process 1 1GiB in slice a.
The request would have fit into 9G: ` + "`gpuslice pool set llm --vram 9G`" + ` changes the pool at once; or end what holds memory in it.
`},
		{nil, func(r *api.Refusal) { r.Frozen, r.Holders = "process 5 holds 3GiB past the ledger", nil }, `slice train was refused cuMemAlloc of 2GiB on GPU-1b2c3d4e at 2026-03-01 12:00:00, by process 4711 (python).
All memory was refused at that time: process 5 holds 3GiB past the ledger.
` + "`gpuslice events train`" + ` names the process that holds memory past the ledger; end it.
`},
		{nil, count, `slice train was refused memory on GPU-1b2c3d4e at 2026-03-01 12:00:00.
Its quota there was 8GiB; the process did not report the size of the request.
` + "`gpuslice events --follow train`" + ` shows the next refusals as they happen.
`},
	} {
		run := api.Run{Slice: "train", Ended: c.ended, Refusal: refusal()}
		c.change(run.Refusal)
		var out strings.Builder
		if err := Explain(&out, run, api.Slice{}, nil); err != nil || out.String() != c.want {
			t.Errorf("got\n%s%v\nwant\n%s", out.String(), err, c.want)
		}
		if n := strings.Count(out.String(), "\n"); n < 2 || n > 6 {
			t.Errorf("%d sentences", n)
		}
	}
	var out strings.Builder
	err := Explain(&out, api.Run{Slice: "idle", Devices: []api.RunUse{{Device: card, Limit: 8 << 30, Peak: 3 << 30}}}, api.Slice{}, Indices{card: 3})
	if want := "slice idle was refused no memory.\nOn 3:GPU-1b2c3d4e it held at most 3GiB, of a quota of 8GiB.\n"; err != nil || !strings.HasPrefix(out.String(), want) || !strings.Contains(out.String(), "`gpuslice devices`") {
		t.Errorf("%s, %v", out.String(), err)
	}
}

func TestWaitingSliceIsShownAsWaiting(t *testing.T) {
	waits := time.Now().Add(-90 * time.Minute)
	s := api.Slice{ID: "notebook", State: api.Evicted, Elastic: &api.Elastic{Obstacle: "slice train has 60GiB", Waits: &waits}}
	said := "since " + waits.Local().Format(time.TimeOnly) + " (1h30m"
	var explained, inspected, listed strings.Builder
	if err := errors.Join(Explain(&explained, api.Run{Slice: s.ID}, s, nil), Slice(&inspected, s), Slices(&listed, []api.Slice{s}, false)); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ got, want string }{
		"explain": {explained.String(), "slice notebook waits for its memory " + said},
		"why":     {explained.String(), ": slice train has 60GiB.\n"},
		"inspect": {inspected.String(), "waits for its memory " + said},
		"ps":      {listed.String(), "waiting"},
	} {
		if !strings.Contains(c.got, c.want) || strings.Contains(c.got, "the device itself was full") {
			t.Errorf("%s: %q is not in\n%s", what, c.want, c.got)
		}
	}
}

func TestSuggestedQuotaIsTheLargestOfAllRuns(t *testing.T) {
	at := func(hour int) time.Time { return time.Date(2026, 3, 1, hour, 0, 0, 0, time.UTC) }
	ended := at(9)
	runs := []api.Run{
		{Slice: "a", Tenant: "t", Began: at(1), Ended: &ended, Devices: []api.RunUse{{Device: card, Limit: 4 << 30, Peak: 4 << 30, Refusals: 3, Needed: 5<<30 + 1}}},
		{Slice: "a", Tenant: "t", Began: at(2), Devices: []api.RunUse{{Device: card, Limit: 8 << 30, Peak: 3 << 30}}},
		{Slice: "b", Began: at(1), Ended: &ended, Devices: []api.RunUse{{Device: card, Peak: 1}, {Device: "GPU-2-0-0-0"}}},
	}
	needs := Needs(runs, func(r api.Run, _ api.RunUse) string { return r.Slice }, nil, Indices{card: 3})
	want := []Need{
		{Of: "a", Device: card, Index: 3, Runs: 2, Running: 1, Last: at(2), Limit: 8 << 30, Peak: 4 << 30, Refusals: 3, Quota: 5<<30 + 1},
		{Of: "b", Device: card, Index: 3, Runs: 1, Last: at(1), Peak: 1, Quota: 1},
	}
	if len(needs) != 2 || needs[0] != want[0] || needs[1] != want[1] {
		t.Errorf("got %+v\nwant %+v", needs, want)
	}
	less := map[string]uint64{"a": 1 << 30, "b": 1 << 30}
	if needs := Needs(runs, func(r api.Run, _ api.RunUse) string { return r.Slice }, less, nil); needs[0].Quota != 4<<30+1 || needs[1].Quota != 1 || needs[0].Peak != 4<<30 {
		t.Errorf("without overheads: %+v", needs)
	}
	if tenants := Needs(runs, func(r api.Run, _ api.RunUse) string { return r.Tenant }, nil, nil); len(tenants) != 1 || tenants[0].Of != "t" {
		t.Errorf("%+v", tenants)
	}
	var out strings.Builder
	if err := Recommend(&out, needs, false); err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(out.String(), "\n")
	if got := strings.Join(strings.Fields(rows[1]), " "); got != "a 3:GPU-1b2c3d4e 2 running 8GiB 4GiB 3 5184M" {
		t.Errorf("%q", got)
	}
	if got := strings.Join(strings.Fields(rows[2]), " "); !strings.HasSuffix(got, "none 1B 0 64M") {
		t.Errorf("%q", got)
	}
}

func TestASliceThatHasEndedIsFoundByItsId(t *testing.T) {
	runs := []api.Run{{Slice: "job-1", Began: time.Unix(1, 0)}, {Slice: "job-10", Container: "abc"}, {Slice: "job-1", Began: time.Unix(2, 0)}}
	for id, want := range map[string]string{"job-1": "job-1", "job-10": "job-10", "abc": "job-10", "ab": "job-10", "job-": "", "x": ""} {
		got, err := FindRun(runs, id)
		if got.Slice != want || (err == nil) != (want != "") {
			t.Errorf("%s: %+v, %v", id, got, err)
		}
		if id == "job-1" && got.Began.Unix() != 2 {
			t.Errorf("not the last: %+v", got)
		}
	}
}

func TestASliceIsShownForPeople(t *testing.T) {
	held, busy := uint64(6<<30), uint32(37)
	s := api.Slice{
		ID: "train", State: api.Active, Mode: api.Enforce, PID: 4711, Created: time.Date(2026, 3, 1, 11, 0, 0, 0, time.Local),
		Quotas:  []api.Quota{{Device: api.AllDevices, Percent: 50}, {Device: card, Bytes: 8 << 30}},
		Devices: []api.DeviceUse{{Device: card, Limit: 8 << 30, Used: 5 << 30, Overhead: 1 << 30, Peak: 7 << 30, Allocations: 9, Refusals: 1, Enforcement: api.Intercept}},
		Processes: []api.Process{
			{PID: 4711, Command: "python\n", Attached: true, Devices: []api.ProcessUse{{Device: card, Used: 5 << 30, Overhead: 1 << 30, Driver: &held, Busy: &busy}}},
			{PID: 4712, Bypass: api.BypassUnattached},
		},
		Refusal: refusal(),
	}
	var out strings.Builder
	if err := Slice(&out, s); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	got := strings.Join(lines, "\n")
	for i := range s.Processes[0].Devices {
		s.Processes[0].Devices[i].Busy = nil
	}
	var unsaid strings.Builder
	if err := Slice(&unsaid, s); err != nil || strings.Contains(unsaid.String(), "BUSY") || !strings.Contains(out.String(), "BUSY") {
		t.Errorf("how busy processes are has a column though the driver does not say, or none though it does: %v\n%s\n%s", err, unsaid.String(), out.String())
	}
	for _, want := range []string{
		"Slice: train", "State: active", "Quota: 50%, 8GiB on " + card, "Began: 2026-03-01 11:00:00, with process 4711",
		"0:GPU-1b2c3d4e 5GiB 1GiB 8GiB 7GiB 9 1 0B intercept", `4711 python\n 0:GPU-1b2c3d4e 5GiB 1GiB 6GiB 37% -`,
		"4712 - - - - - - holds memory past the ledger: unattached", "Last refusal:\nslice train was refused cuMemAlloc of 2GiB",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

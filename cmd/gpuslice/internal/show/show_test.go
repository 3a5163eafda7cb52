// SPDX-License-Identifier: Apache-2.0

package show

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

const container = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func someSlices() []api.Slice {
	return []api.Slice{
		{
			ID: container, Container: container, State: api.Active, Mode: api.Enforce, ProcessCount: 3,
			Devices: []api.DeviceUse{{Device: "GPU-1b2c3d4e-0000-1111-2222-333344445555", Limit: 4 << 30, Used: 3 << 30, Overhead: 512 << 20}},
		},
		{ID: "run-a", Session: true, State: api.Active, Mode: api.Record, Devices: []api.DeviceUse{{Device: "MIG-9-8-7", Index: -1}}},
		{ID: "run-b", Session: true, State: api.Active, Mode: api.Enforce},
	}
}

func TestTableHasARowForEachDeviceAndShortIDs(t *testing.T) {
	var out strings.Builder
	if err := Slices(&out, someSlices(), false); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"SLICE CONTAINER DEVICE USED OVERHEAD LIMIT PROCESSES STATE",
		"0123456789ab 0123456789ab 0:GPU-1b2c3d4e " + strings.Join([]string{api.FormatSize(3 << 30), api.FormatSize(512 << 20), api.FormatSize(4 << 30)}, " ") + " 3 active",
		"run-a - MIG-9 " + api.FormatSize(0) + " " + api.FormatSize(0) + " none 0 active, record",
		"run-b - - - - - 0 active",
	}
	for i, line := range want {
		if i >= len(got) || got[i] != line {
			t.Errorf("line %d: got %q, want %q", i, got[min(i, len(got)-1)], line)
		}
	}
}

func TestExpiryHasAColumnAndExcessANote(t *testing.T) {
	at := time.Now().Add(time.Hour)
	all := someSlices()
	all[0].Expires, all[0].Remaining = &at, 90*time.Minute+300*time.Millisecond
	all[0].Devices[0].Used = 4 << 30
	all[2].State, all[2].Expires = api.Expired, &at
	var out strings.Builder
	if err := Slices(&out, all, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"SLICE CONTAINER DEVICE USED OVERHEAD LIMIT PROCESSES EXPIRES STATE",
		"0123456789ab 0123456789ab 0:GPU-1b2c3d4e 4GiB 512MiB 4GiB 3 in 1h30m active, over",
		"run-a - MIG-9 0B 0B none 0 never active, record",
		"run-b - - - - - 0 now expired",
	} {
		if got := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

func TestTenantsHaveAColumnIfThereAreAny(t *testing.T) {
	all := someSlices()
	all[0].Tenant, all[1].Tenant = "team-a", "team-"+strings.Repeat("x", 58)
	for whole, want := range map[bool][]string{
		false: {"SLICE CONTAINER TENANT DEVICE", "0123456789ab 0123456789ab team-a 0:GPU-1b2c3d4e", "run-a - team-" + strings.Repeat("x", 14) + gap + strings.Repeat("x", 20) + " MIG-9", "run-b - - - - - - 0 active"},
		true:  {"run-a - team-" + strings.Repeat("x", 58) + " MIG-9-8-7"},
	} {
		var out strings.Builder
		if err := Slices(&out, all, whole); err != nil {
			t.Fatal(err)
		}
		for _, row := range want {
			if got := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(got, row) {
				t.Errorf("%q is not in\n%s", row, out.String())
			}
		}
	}
}

func TestNoTruncShowsWholeIDs(t *testing.T) {
	var out strings.Builder
	if err := Slices(&out, someSlices(), true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{container + "  " + container, "GPU-1b2c3d4e-0000-1111-2222-333344445555"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

func TestSliceIsFoundByTheBeginningOfItsID(t *testing.T) {
	if id, err := Find(someSlices(), "0123456789ab", Names); err != nil || id != container {
		t.Errorf("got %s, %v", id, err)
	}
	if _, err := Find(someSlices(), "run-", Names); err == nil || !strings.Contains(err.Error(), "2 slices") {
		t.Errorf("an ambiguous beginning: %v", err)
	}
	if _, err := Find(someSlices(), "x", Names); !errors.Is(err, api.ErrNotFound) || strings.Contains(err.Error(), "no such slice") {
		t.Errorf("an unknown id: %v", err)
	}
}

func TestALongNameDoesNotWidenTheTable(t *testing.T) {
	name := "job-" + strings.Repeat("n", 200) + "-rank3"
	for whole, want := range map[bool]string{
		false: "job-nnnnnnnnnnnnnnn…nnnnnnnnnnnnnn-rank3  -          ",
		true:  name + "  -          ",
	} {
		var out strings.Builder
		if err := Slices(&out, []api.Slice{{ID: name, State: api.Active}}, whole); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "\n"+want) {
			t.Errorf("%v:\n%s", whole, out.String())
		}
		given, _, _ := strings.Cut(want, " ")
		if id, err := Find([]api.Slice{{ID: name}, {ID: name + "3"}}, given, Means); err != nil && !whole || id != name {
			t.Errorf("%q, as it is shown: %q, %v", given, id, err)
		}
	}
}

func TestReleaseAcceptsIDsAsTheyAreShown(t *testing.T) {
	long := "job-" + strings.Repeat("n", 200)
	all := append(someSlices(), api.Slice{ID: "pod-1", Container: strings.Repeat("ab", 32)}, api.Slice{ID: long + "-x-" + long}, api.Slice{ID: long + "-y-" + long})
	for given, want := range map[string]string{
		"run-a":                      "run-a",
		container:                    container,
		"0123456789ab":               container,
		"0123456":                    container,
		"abababababab":               "pod-1", // by its container
		"run":                        "",
		"run-":                       "",
		"pod":                        "",
		"job-":                       "",
		shortID(long + "-x-" + long): "", // ambiguous
	} {
		if id, err := Find(all, given, Means); id != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", given, id, err)
		}
	}
	if _, err := Find(all, shortID(long+"-x-"+long), Means); err == nil || !strings.Contains(err.Error(), "2 slices ("+long+"-x-"+long+", ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("what two are shown as: %v", err)
	}
}

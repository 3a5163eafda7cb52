// SPDX-License-Identifier: Apache-2.0

package show

import (
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestPromisedIsAColumnWhereADeviceHasSome(t *testing.T) {
	var out strings.Builder
	devices := []api.Device{{UUID: "GPU-1", Suspended: 5 << 30, Elastic: &api.ElasticDevice{Promised: 90 << 30}}, {UUID: "GPU-2", Index: 1}}
	if err := DeviceTable.Print(&out, devices, false); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(got, "FREE SUSPENDED PROMISED SLICES") || !strings.Contains(got, "5GiB 90GiB 0") {
		t.Errorf("%s", out.String())
	}
	out.Reset()
	if err := DeviceTable.Print(&out, devices[1:], false); err != nil || strings.Contains(out.String(), "PROMISED") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestSensorsAreAColumnWhereTheDriverGivesSome(t *testing.T) {
	read := func(value uint32) driver.Reading { return driver.Reading{Value: value, Known: true} }
	devices := []api.Device{{UUID: "GPU-1"}, {UUID: "GPU-2", Index: 1}, {UUID: "GPU-3", Index: 2}}
	for want, of := range map[string]map[string]driver.Sensors{
		"SLICES SENSORS 0 GPU 0 % 41 °C 310 W of 700 W 0 - 0 9 W": {
			"GPU-1": {Busy: read(0), Temperature: read(41), Power: read(310499), Limit: read(700000)}, "GPU-2": {Limit: read(1000)}, "GPU-3": {Power: read(8500)},
		},
		"SLICES 0 0 0": {"GPU-4": {Busy: read(7)}},
	} {
		var out strings.Builder
		must.Do(t, WithSensors(of).Print(&out, devices, false))
		var got []string
		for line := range strings.Lines(out.String()) {
			got = append(got, strings.Fields(line)[8:]...)
		}
		expect.Equal(t, strings.Join(got, " "), want)
	}
}

func TestDeviceRowShowsFreeMemoryAndHolders(t *testing.T) {
	free, used, mine := uint64(30<<30), uint64(12<<30), uint64(9<<30)
	var out strings.Builder
	err := DeviceTable.Print(&out, []api.Device{
		{
			UUID: "GPU-1b2c3d4e-0000-1111-2222-333344445555", Index: 0, Name: "H100", Total: 80 << 30, Quotas: 50 << 30, Free: &free, Slices: 3,
			Used: &used, OutsideUsed: 11 << 30, OutsideCount: 3,
			Outside: []api.OutsideProcess{{PID: 4711, Command: "Xorg\x1b[2J", Bytes: &mine}, {PID: 12}},
		},
		{UUID: "MIG-9-8-7", Index: -1, Total: 10 << 30},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"INDEX DEVICE NAME TOTAL USED OUTSIDE GIVEN FREE SLICES",
		"0 GPU-1b2c3d4e H100 80GiB 12GiB 11GiB 50GiB 30GiB 3",
		"- MIG-9 - 10GiB unknown unknown 0B unknown 0",
		"",
		"Outside slices:",
		"DEVICE PID USED COMMAND",
		"0:GPU-1b2c3d4e 4711 9GiB Xorg\\x1b[2J",
		"0:GPU-1b2c3d4e 12 unknown -",
		"0:GPU-1b2c3d4e 1 more",
		"",
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) != len(want) {
		t.Fatalf("got %q", lines)
	}
	for i, line := range lines {
		if got := strings.Join(strings.Fields(line), " "); got != want[i] {
			t.Errorf("line %d: got %q, want %q", i, got, want[i])
		}
	}
}

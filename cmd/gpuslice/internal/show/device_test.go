// SPDX-License-Identifier: Apache-2.0

package show

import (
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

func TestADevicesRowSaysWhatMayStillBeGiven(t *testing.T) {
	free := uint64(30 << 30)
	var out strings.Builder
	err := Devices(&out, []api.Device{
		{UUID: "GPU-1b2c3d4e-0000-1111-2222-333344445555", Index: 0, Name: "H100", Total: 80 << 30, Quotas: 50 << 30, Free: &free, Slices: 3},
		{UUID: "MIG-9-8-7", Index: -1, Total: 10 << 30},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"INDEX DEVICE NAME TOTAL GIVEN FREE SLICES",
		"0 GPU-1b2c3d4e H100 80GiB 50GiB 30GiB 3",
		"- MIG-9 - 10GiB 0B unknown 0",
		"",
	}
	for i, line := range strings.Split(out.String(), "\n") {
		if got := strings.Join(strings.Fields(line), " "); got != want[i] {
			t.Errorf("line %d: got %q, want %q", i, got, want[i])
		}
	}
}

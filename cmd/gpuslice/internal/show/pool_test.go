// SPDX-License-Identifier: Apache-2.0

package show

import (
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
)

func TestAPoolHasARowForEachDevice(t *testing.T) {
	var out strings.Builder
	err := Pools(&out, []api.Pool{
		{Name: "idle", State: api.Active},
		{Name: "llm", State: api.Active, Members: []string{"a", "b"}, ProcessCount: 5, Devices: []api.PoolUse{
			{Device: "GPU-1b2c3d4e-0000-1111-2222-333344445555", Limit: 4 << 30, Used: 1 << 30, Overhead: 512 << 20},
			{Device: "GPU-1b2c3d4e-0000-1111-2222-333344445556", Index: 1, Limit: 1 << 30, Used: 1 << 30, Overhead: 1},
		}},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(out.String()) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"POOL DEVICE USED OVERHEAD LIMIT MEMBERS PROCESSES STATE",
		"idle - - - - 0 0 active",
		"llm 0:GPU-1b2c3d4e 1GiB 512MiB 4GiB 2 5 active",
		"llm 1:GPU-1b2c3d4e 1GiB 1B 1GiB 2 5 active, over",
	}
	if strings.Join(rows, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(rows, "\n"), strings.Join(want, "\n"))
	}
}

func TestAMembersPoolIsInItsState(t *testing.T) {
	var out strings.Builder
	if err := Slices(&out, []api.Slice{{ID: "a", State: api.Active, Mode: api.Enforce, Pools: api.PoolNames{"llm"}}}, false); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "active, pool llm\n") {
		t.Error(out.String())
	}
}

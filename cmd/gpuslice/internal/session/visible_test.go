// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
)

const (
	gpu0 = "GPU-00000000-0000-0000-0000-000000000000"
	gpu1 = "GPU-11111111-0000-0000-0000-000000000001"
	gpu2 = "GPU-11111111-0000-0000-0000-000000000002"
	mig0 = "MIG-22222222-0000-0000-0000-000000000000"
	mig1 = "MIG-22222222-0000-0000-0000-000000000001"
)

func on(devices ...string) *api.Slice {
	slice := &api.Slice{Mode: api.Enforce}
	for _, device := range devices {
		slice.Quotas = append(slice.Quotas, api.Quota{Device: device, Bytes: 1})
	}
	return slice
}

func recording(slice *api.Slice) *api.Slice {
	slice.Mode = api.Record
	return slice
}

func TestTheSessionsDevicesAreShownToCUDA(t *testing.T) {
	same := []api.Device{{UUID: gpu0, Index: 0, Name: "A"}, {UUID: gpu1, Index: 1, Name: "A"}, {UUID: mig0, Index: -1, Name: "A MIG"}, {UUID: mig1, Index: -1, Name: "A MIG"}}
	mixed := []api.Device{{UUID: gpu0, Index: 0, Name: "A"}, {UUID: gpu1, Index: 1, Name: "B"}, {UUID: gpu2, Index: 2, Name: "B"}}
	const unset = "-"
	for _, c := range []struct {
		name  string
		host  []api.Device // nil: NVML does not answer
		slice *api.Slice
		join  bool
		order string
		own   string
		want  string // or part of the error
	}{
		{"all devices", same, on(api.AllDevices), false, "", unset, unset},
		{"all devices, and one's own choice", same, on(api.AllDevices), false, "", "1", "1"},
		{"all devices, of which one has another quota", same, on(api.AllDevices, gpu1), false, "", unset, unset},
		{"a pool's quota", same, on(), false, "", unset, unset},
		{"one device", same, on(gpu1), false, "", unset, gpu1},
		{"one device, recorded: the enforcer adds the others", same, recording(on(gpu1, api.AllDevices)), false, "", unset, gpu1},
		{"in the order given", same, on(gpu1, gpu0), false, "", unset, gpu1 + "," + gpu0},
		{"MIG instances", same, on(mig1), false, "", unset, mig1},
		{"MIG instances, and one's own choice", same, on(mig1), false, "", "mig-22222222-0000-0000-0000-000000000001", mig1},
		{"in one's own order", same, on(gpu1, gpu0), false, "", " 0, 1", gpu0 + "," + gpu1},
		{"by a shortened UUID", same, on(gpu1), false, "", "GPU-1111", gpu1},
		{"by a shortened UUID that two have", mixed, on(gpu1), false, "", "GPU-1111", "leaves out " + gpu1},
		{"by the beginning of all UUIDs", same[1:2], on(gpu1), false, "", "GPU-", "leaves out " + gpu1},
		{"not in one's own choice", same, on(gpu1), false, "", "0", "leaves out " + gpu1},
		{"one of two is not", same, on(gpu0, gpu1), false, "", "0", "leaves out " + gpu1 + ","},
		{"one of two is not, of a session that is joined", same, on(gpu0, gpu1), true, "", "0", gpu0},
		{"none is, of a session that is joined", same, on(gpu1), true, "", "0", "leaves out " + gpu1},
		{"nothing is visible", same, on(gpu1), false, "", "", "leaves out " + gpu1},
		{"behind what names no device", same, on(gpu1), false, "", "-1,1", "leaves out " + gpu1},
		{"named twice", same, on(gpu1), false, "", "1," + gpu1, gpu1},
		{"an index where models differ", mixed, on(gpu1), false, "", "1", "another order"},
		{"an index on the bus", mixed, on(gpu1), false, "PCI_BUS_ID", "1", gpu1},
		{"an index without NVML", nil, on(gpu1), false, "", "1", "cannot be counted: no NVML"},
		{"a UUID without NVML", nil, on(gpu1), false, "", gpu1, gpu1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Session{Devices: func() ([]api.Device, error) {
				if c.host == nil {
					return nil, errors.New("no NVML")
				}
				return c.host, nil
			}}
			if c.join {
				s.Token = "t"
			}
			env := []string{"A=1", orderEnv + "=" + c.order}
			if c.own != unset {
				env = append(env, visibleEnv+"="+c.own)
			}
			before := slices.Clone(env)
			shown, err := s.show(env, c.slice)
			if err != nil {
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
				return
			}
			got, ok := lookup(shown, visibleEnv)
			if !ok {
				got = unset
			}
			if got != c.want || strings.Count(strings.Join(shown, "\n"), visibleEnv) > 1 || shown[0] != "A=1" {
				t.Errorf("%q, want %s=%s", shown, visibleEnv, c.want)
			}
			if !slices.Equal(env, before) {
				t.Errorf("the caller's environment was changed: %q", env)
			}
		})
	}
}

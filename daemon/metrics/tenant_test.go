// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
)

func TestATenantsSlicesAreAddedUp(t *testing.T) {
	of := func(id, tenant string, used, limit uint64) api.Slice {
		return api.Slice{ID: id, Tenant: tenant, Devices: []api.DeviceUse{{Device: "GPU-1", Used: used, Overhead: 1, Limit: limit}, {Device: "GPU-2", Limit: limit}}}
	}
	member := api.Slice{Tenant: "physics", Pools: api.PoolNames{"llm"}, Devices: []api.DeviceUse{{Device: "GPU-1", Pool: "llm", Limit: 99, Used: 50, Overhead: 3}}}
	claims := api.Slice{ID: "claims", Tenant: "physics", Pools: api.PoolNames{"claim"}, Devices: []api.DeviceUse{{Device: "GPU-1", Pool: "claim", Limit: 99, Used: 100, Overhead: 4}}}
	host := bounded{&fixed{slices: []api.Slice{of("a", "physics", 5, 10), of("b", "physics", 6, 20), of("c", "", 7, 0), of("d", otherTenants, 1, 1), member, claims}}}
	_, text := scrape(t, New(host, quiet()))
	for _, line := range []string{
		`gpuslice_tenant_slices{tenant="physics"} 4`, `gpuslice_tenant_slices{tenant=""} 1`,
		`gpuslice_tenant_limit_bytes{device="GPU-1",tenant="physics"} 230`, // a pool's quota counts once, without its members',
		`gpuslice_tenant_limit_bytes{device="GPU-2",tenant="physics"} 30`,
		`gpuslice_tenant_used_bytes{device="GPU-1",tenant="physics"} 161`,
		`gpuslice_tenant_overhead_bytes{device="GPU-1",tenant="physics"} 9`,
		`gpuslice_tenant_used_bytes{device="GPU-1",tenant=""} 7`,
		`gpuslice_pool_info{label="team/\"claim\"",pool="claim",state="",tenant="physics"} 1`,
		`gpuslice_tenant_max_bytes{device="GPU-1",tenant="physics"} 40`,
	} {
		expect.Contains(t, text, "\n"+line+"\n")
	}
	expect.Equal(t, strings.Count(text, "\ngpuslice_tenant_max_bytes{"), 1, "bounds are shown")
}

// bounded is a host with one tenant in the configuration, and more tenants than can have series. It has a pool of the operator,
// and one of that tenant.
type bounded struct{ *fixed }

func (bounded) Pools(context.Context) ([]api.Pool, error) {
	return []api.Pool{
		{Name: "llm", Devices: []api.PoolUse{{Device: "GPU-1", Limit: 500}}},
		{Name: "claim", Tenant: "physics", Label: "team/\"claim\"", Devices: []api.PoolUse{{Device: "GPU-1", Limit: 200}}},
	}, nil
}

func (bounded) TenantBounds(tenant string) map[string]uint64 {
	return map[string]map[string]uint64{"physics": {"GPU-1": 40}, otherTenants: {"GPU-1": 7}}[tenant]
}

func TestTenantsBeyondTheLimitAreSummed(t *testing.T) {
	var all []api.Slice
	for _, i := range []int{7, 149, 3, 0} { // in any order
		for n := range 150 {
			name := fmt.Sprintf("t%03d", (n+i)%150)
			all = append(all, api.Slice{ID: fmt.Sprint(len(all)), Tenant: name, Devices: []api.DeviceUse{{Device: "GPU-1", Used: 1, Limit: 2}}})
		}
	}
	all = append(all, api.Slice{ID: "x", Tenant: otherTenants, Devices: []api.DeviceUse{{Device: "GPU-1", Used: 1000}}})
	uses := byTenant(all, nil)
	expect.Equal(t, len(uses), maxTenants+1, "tenants have series")
	for n := range 150 {
		name := fmt.Sprintf("t%03d", n)
		if own := uses[name] != nil; own != (n < maxTenants) || own && uses[name].slices != 4 {
			t.Errorf("%s: %+v", name, uses[name])
		}
	}
	if other := uses[otherTenants]; other.slices != 4*50+1 || other.devices["GPU-1"].Used != 4*50+1000 || other.devices["GPU-1"].Limit != 4*50*2 {
		t.Errorf("the others are %+v, %+v", other, other.devices["GPU-1"])
	}
}

func TestNumberOfSeriesIsBounded(t *testing.T) {
	f := &fixed{}
	begin := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for i := range maxSlices + 5 {
		f.slices = append(f.slices, api.Slice{
			ID: fmt.Sprintf("s%05d", 9999-i), Tenant: "physics", Created: begin.Add(time.Duration(i) * time.Second),
			Devices: []api.DeviceUse{{Device: "GPU-1", Used: 1}},
		})
	}
	_, text := scrape(t, New(f, quiet()))
	expect.Equal(t, strings.Count(text, "\ngpuslice_slice_used_bytes{"), maxSlices, "slices have series")
	for _, line := range []string{
		"gpuslice_slices_unlisted 5", fmt.Sprint("gpuslice_slices ", maxSlices+5),
		`gpuslice_slice_processes{slice="s09999"} 0`, // the oldest
		fmt.Sprintf(`gpuslice_tenant_used_bytes{device="GPU-1",tenant="physics"} %d`, maxSlices+5),
	} {
		expect.Contains(t, text, "\n"+line+"\n")
	}
	expect.True(t, !strings.Contains(text, fmt.Sprintf(`slice="s%05d"`, 9999-maxSlices)), "the newest have series")
}

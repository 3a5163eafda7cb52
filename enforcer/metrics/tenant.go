// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// Whoever starts containers chooses their tenants' names, and how many slices there are: each would be series of its own in
// every scrape. So both are bounded, by an order in which nobody's series comes and goes because of others who are newer.
const (
	// maxTenants is how many have series of their own: the first by name. The rest is summed under otherTenants.
	maxTenants   = 100
	otherTenants = "other"
	// maxSlices is how many have series of their own: the oldest. The others are in the sums of their tenant and of the
	// devices, and are not summed by themselves, since a counter must not fall when one of them ends.
	maxSlices = 1000
)

var (
	unlistedDesc       = describe("slices_unlisted", "Slices that have no series of their own, since there are so many.")
	tenantSlicesDesc   = describe("tenant_slices", "Slices of the tenant, pools' members among them.", "tenant")
	tenantMaxDesc      = describe("tenant_max_bytes", "VRAM of the device that the configuration lets the tenant's slices have, all together (max_vram), without pools' members; absent without a bound.", "tenant", "device")
	tenantLimitDesc    = describe("tenant_limit_bytes", "VRAM that the tenant's slices may keep on the device, all together, without pools' members.", "tenant", "device")
	tenantUsedDesc     = describe("tenant_used_bytes", "VRAM that the tenant's programs asked for and hold, without those of pools' members.", "tenant", "device")
	tenantOverheadDesc = describe("tenant_overhead_bytes", "VRAM that the driver holds for the tenant's slices beyond that: contexts, modules.", "tenant", "device")

	boundedDescs = []*prometheus.Desc{unlistedDesc, tenantSlicesDesc, tenantMaxDesc, tenantLimitDesc, tenantUsedDesc, tenantOverheadDesc}
)

// Bounds are what the configuration lets each tenant have: bytes, by the UUID of each device on which it has a bound.
type Bounds interface {
	TenantBounds(tenant string) map[string]uint64
}

// listed are the slices that have series of their own.
func listed(all []api.Slice) []api.Slice {
	if len(all) <= maxSlices {
		return all
	}
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b api.Slice) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return all[:maxSlices]
}

// tenantUse is what the slices of a tenant have, on each device.
type tenantUse struct {
	slices  int
	devices map[string]*api.DeviceUse
}

// byTenant adds slices up, for each tenant that has series of its own, and for all others.
func byTenant(all []api.Slice) map[string]*tenantUse {
	names := make(map[string]bool)
	for _, s := range all {
		names[s.Tenant] = true
	}
	delete(names, otherTenants) // who is named so is not told from them
	own := slices.Sorted(maps.Keys(names))
	own = own[:min(len(own), maxTenants)]
	uses := make(map[string]*tenantUse)
	for _, s := range all {
		name := s.Tenant
		if _, found := slices.BinarySearch(own, name); !found {
			name = otherTenants
		}
		if uses[name] == nil {
			uses[name] = &tenantUse{devices: make(map[string]*api.DeviceUse)}
		}
		uses[name].add(s)
	}
	return uses
}

// add leaves out what pools' members have: it is the pool's, which is of no tenant, bounds all of them together, and has
// metrics of its own. So what a tenant uses, may keep and may be given can be compared.
func (u *tenantUse) add(s api.Slice) {
	u.slices++
	if s.Pool != "" {
		return
	}
	for _, d := range s.Devices {
		sum := u.devices[d.Device]
		if sum == nil {
			sum = &api.DeviceUse{}
			u.devices[d.Device] = sum
		}
		sum.Limit += d.Limit
		sum.Used += d.Used
		sum.Overhead += d.Overhead
	}
}

// collectTenants shows what each tenant has, and what it may have; bounds may be nil.
func collectTenants(all []api.Slice, bounds Bounds, gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	for name, u := range byTenant(all) {
		gauge(tenantSlicesDesc, float64(u.slices), name)
		if bounds != nil && name != otherTenants { // each of those has its own
			for device, bytes := range bounds.TenantBounds(name) {
				gauge(tenantMaxDesc, float64(bytes), name, device)
			}
		}
		for device, d := range u.devices {
			gauge(tenantLimitDesc, float64(d.Limit), name, device)
			gauge(tenantUsedDesc, float64(d.Used), name, device)
			gauge(tenantOverheadDesc, float64(d.Overhead), name, device)
		}
	}
}

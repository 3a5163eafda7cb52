// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuslice/gpuslice/api"
)

// Users with access to an engine choose the tenants' names and the number of slices, and each adds series to every scrape. So
// both are bounded, in an order in which new ones do not displace the series of older ones.
const (
	// maxTenants is the number of tenants with series of their own, the first by name. The others are summed under otherTenants.
	maxTenants   = 100
	otherTenants = "other"
	// maxSlices is the number of slices with series of their own, the oldest. The others count in the sums of tenants and devices
	// only. They have no common series, as a counter must not fall when a slice ends.
	maxSlices = 1000
)

var (
	unlistedDesc       = describe("slices_unlisted", "Slices without series of their own, because there are too many.")
	tenantSlicesDesc   = describe("tenant_slices", "Slices of the tenant, pools' members among them.", "tenant")
	tenantMaxDesc      = describe("tenant_max_bytes", "VRAM of the device that the configuration allows the tenant's slices and pools together (max_vram); absent without a bound.", "tenant", "device")
	tenantLimitDesc    = describe("tenant_limit_bytes", "VRAM that the tenant's slices and pools may keep on the device together; a member's quota is part of its pool's.", "tenant", "device")
	tenantUsedDesc     = describe("tenant_used_bytes", "VRAM that the tenant's programs requested and hold, also in pools.", "tenant", "device")
	tenantOverheadDesc = describe("tenant_overhead_bytes", "VRAM that the driver holds for the tenant's slices beyond that: contexts, modules.", "tenant", "device")

	boundedDescs = []*prometheus.Desc{unlistedDesc, tenantSlicesDesc, tenantMaxDesc, tenantLimitDesc, tenantUsedDesc, tenantOverheadDesc}
)

// Bounds provides the configured limits of a tenant in bytes, by the UUIDs of the devices that have one.
type Bounds interface {
	TenantBounds(tenant string) map[string]uint64
}

// listed returns the slices with series of their own.
func listed(all []api.Slice) []api.Slice {
	if len(all) <= maxSlices {
		return all
	}
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b api.Slice) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return all[:maxSlices]
}

// tenantUse is the use of each device by a tenant's slices and pools.
type tenantUse struct {
	slices  int
	devices map[string]*api.DeviceUse
}

// byTenant sums up slices and pools for each tenant with series of its own, and for all others. Pools without a tenant are the
// operator's, and count for no tenant.
func byTenant(all []api.Slice, pools []api.Pool) map[string]*tenantUse {
	names := make(map[string]bool)
	for _, s := range all {
		names[s.Tenant] = true
	}
	for _, p := range pools {
		if p.Tenant != "" {
			names[p.Tenant] = true
		}
	}
	delete(names, otherTenants) // a tenant of this name counts among the others
	own := slices.Sorted(maps.Keys(names))
	own = own[:min(len(own), maxTenants)]
	uses := make(map[string]*tenantUse)
	of := func(name string) *tenantUse {
		if _, found := slices.BinarySearch(own, name); !found {
			name = otherTenants
		}
		if uses[name] == nil {
			uses[name] = &tenantUse{devices: make(map[string]*api.DeviceUse)}
		}
		return uses[name]
	}
	for _, s := range all {
		of(s.Tenant).add(s)
	}
	for _, p := range pools {
		if p.Tenant == "" {
			continue
		}
		for _, d := range p.Devices {
			of(p.Tenant).on(d.Device).Limit += d.Limit
		}
	}
	return uses
}

// on returns the use of device; never nil.
func (u *tenantUse) on(device string) *api.DeviceUse {
	if u.devices[device] == nil {
		u.devices[device] = &api.DeviceUse{}
	}
	return u.devices[device]
}

func (u *tenantUse) add(s api.Slice) {
	u.slices++
	for _, d := range s.Devices {
		sum := u.on(d.Device)
		if d.Pool == "" { // else it is part of the pool's
			sum.Limit += d.Limit
		}
		sum.Used += d.Used
		sum.Overhead += d.Overhead
	}
}

// collectTenants exports the use and the limits of each tenant; bounds may be nil.
func collectTenants(all []api.Slice, pools []api.Pool, bounds Bounds, gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	for name, u := range byTenant(all, pools) {
		gauge(tenantSlicesDesc, float64(u.slices), name)
		if bounds != nil && name != otherTenants { // the others have no common limit
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

// SPDX-License-Identifier: Apache-2.0

package refusal

import (
	"math/bits"

	"github.com/gpuslice/gpuslice/api"
)

// Device is a device that driver truth knows.
type Device struct {
	UUID  string
	Shown string // as people know it, in a refusal
	Total uint64 // bytes
}

// Holder identifies a slice or a pool to which bytes of devices are granted. It does not change.
type Holder struct {
	Name   string  // in a refusal
	Tenant string  // its bound holds
	Pool   string  // of a pool, its name: Limits.MaxVRAM does not bound it, nor, without a tenant, the bound of slices without one
	UID    *uint32 // of a session: its user
	// Private: refusals to others do not name it, and those to it name no other.
	Private bool
}

// Bounded reports whether the bound of its tenant holds for what the holder is granted.
func (h *Holder) Bounded() bool { return h.Pool == "" || h.Tenant != "" }

// Limits are the operator's.
type Limits struct {
	// Overcommit is how much may be granted of each byte, in thousandths; 0 is 1000, which is each byte once.
	Overcommit uint64
	Reserve    uint64    // bytes of each device that are nobody's quota
	MaxVRAM    api.Share // of one slice, on each device; zero is no bound
	// Tenants bound what all slices of a tenant are granted together, on each device. DefaultTenant has the bound of each tenant without
	// one, and of the slices without a tenant together.
	Tenants map[string]api.Share
}

// DefaultTenant names the bound of tenants without one of their own.
const DefaultTenant = "default"

// User is the owner of a session, and what the operator grants to that user.
type User struct {
	UID         uint32
	MaxVRAM     api.Share // of each device, all of the user's sessions together
	MaxSessions int       // at one time
}

// Capacity returns how many bytes of a device of total bytes may be granted.
func (l *Limits) Capacity(total uint64) uint64 {
	overcommit := l.Overcommit
	if overcommit == 0 {
		overcommit = 1000
	}
	high, low := bits.Mul64(total-min(total, l.Reserve), overcommit)
	if high >= 1000 {
		return ^uint64(0)
	}
	bytes, _ := bits.Div64(high, low, 1000)
	return bytes
}

// Left returns the most bytes of a device that Check could accept for a holder with nothing, if nothing were granted, and the most that it
// accepts now.
func (l *Limits) Left(a Ask) (maxBytes, left uint64) {
	maxBytes = l.Capacity(a.Device.Total)
	left = maxBytes - min(maxBytes, a.Sum)
	if bound, known := BoundOn(l.MaxVRAM, a.Device); known && a.Holder.Pool == "" {
		maxBytes, left = min(maxBytes, bound), min(left, bound)
	}
	if bound, known := BoundOn(l.Tenant(a.Holder.Tenant), a.Device); known && a.Holder.Bounded() {
		maxBytes, left = min(maxBytes, bound), min(left, bound-min(bound, a.Tenant))
	}
	return maxBytes, left
}

// Tenant returns the bound of a tenant.
func (l *Limits) Tenant(name string) api.Share {
	if share, ok := l.Tenants[name]; ok {
		return share
	}
	return l.Tenants[DefaultTenant]
}

// BoundOn returns a bound in bytes of a device. It is unknown without a bound, and where a share is of a device of unknown size.
func BoundOn(s api.Share, d *Device) (bytes uint64, known bool) {
	switch {
	case s.IsZero(), d == nil && s.Percent > 0:
		return 0, false
	case d == nil:
		return s.Bytes, true
	default:
		return s.Of(d.Total), true
	}
}

// largest returns the largest of the quotas, in bytes; not known if one is a share.
func largest(quotas []api.Quota) (bytes uint64, known bool) {
	known = true
	for _, q := range quotas {
		known = known && q.Percent == 0
		bytes = max(bytes, q.Bytes)
	}
	return bytes, known
}

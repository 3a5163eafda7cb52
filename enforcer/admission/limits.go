// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"math/bits"

	"github.com/gpuslice/gpuslice/api"
)

// Limits are the operator's.
type Limits struct {
	// Overcommit is how much may be granted of each byte, in thousandths; 0 is 1000, which is each byte once.
	Overcommit uint64
	Reserve    uint64    // bytes of each device that are nobody's quota
	MaxVRAM    api.Share // of one slice, on each device; zero is no bound
	// Tenants bound what all slices of a tenant are granted together, on each device. defaultTenant's is that of each tenant who has
	// none, and of the slices without a tenant together.
	Tenants map[string]api.Share
}

// defaultTenant names the bound of tenants who have none of their own.
const defaultTenant = "default"

// User is whose a session is, and what the operator grants him.
type User struct {
	UID         uint32
	MaxVRAM     api.Share // of each device, all of his sessions together
	MaxSessions int       // at one time
}

// capacity is how many bytes of a device of total bytes may be granted.
func (l *Limits) capacity(total uint64) uint64 {
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

// tenant is the bound of a tenant.
func (l *Limits) tenant(name string) api.Share {
	if share, ok := l.Tenants[name]; ok {
		return share
	}
	return l.Tenants[defaultTenant]
}

// boundOn is a bound in bytes on a device; not known if there is none, or if it is a share of a device whose size nobody knows.
func boundOn(s api.Share, d *Device) (bytes uint64, known bool) {
	switch {
	case s.IsZero(), d == nil && s.Percent > 0:
		return 0, false
	case d == nil:
		return s.Bytes, true
	default:
		return s.Of(d.Total), true
	}
}

// largest of the quotas, in bytes; not known if one is a share.
func largest(quotas []api.Quota) (bytes uint64, known bool) {
	known = true
	for _, q := range quotas {
		known = known && q.Percent == 0
		bytes = max(bytes, q.Bytes)
	}
	return bytes, known
}

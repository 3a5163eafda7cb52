// SPDX-License-Identifier: Apache-2.0

package config

import (
	"math"

	"github.com/gpuslice/gpuslice/api"
)

// Admission is the section [admission]: how much of the devices may be granted.
type Admission struct {
	// Overcommit is how many times each byte may be granted, to thousandths; 1 to MostOvercommit.
	Overcommit float64 `toml:"overcommit"`
	Reserve    Bytes   `toml:"reserve"`
	MaxVRAM    Share   `toml:"max_vram"`
}

// MostOvercommit is for hosts on which quotas only separate slices, and may add up to any sum.
const MostOvercommit = 1000

// DefaultTenant is the name of the section for tenants without one.
const DefaultTenant = "default"

// Tenant limits all slices of a tenant together.
type Tenant struct {
	MaxVRAM Share `toml:"max_vram"`
}

// Bytes is a size in bytes, or 0.
type Bytes uint64

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *Bytes) UnmarshalText(text []byte) error {
	if s := string(text); s == "0" || s == "" {
		*b = 0
		return nil
	}
	n, err := api.ParseSize(string(text))
	*b = Bytes(n)
	return err
}

func (b Bytes) String() string { return api.FormatSize(uint64(b)) }

// Share is a size or a percentage of a device; "" is none.
type Share struct{ api.Share }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Share) UnmarshalText(text []byte) (err error) {
	s.Share, err = api.ParseShare(string(text))
	return err
}

// Thousandths returns the overcommit in thousandths.
func (a *Admission) Thousandths() uint64 { return uint64(math.Round(a.Overcommit * 1000)) }

func (a *Admission) check(f *faults) {
	// The form of the condition also rejects NaN.
	f.unless(a.Overcommit >= 1 && a.Overcommit <= MostOvercommit, "admission.overcommit", a.Overcommit,
		"1.0 to %d.0 are accepted; to grant less than the device has, set reserve", MostOvercommit)
}

func checkTenants(tenants map[string]Tenant, f *faults) {
	for name := range tenants {
		if err := api.CheckTenant(name); err != nil {
			f.add(below("tenants", name), "tenants.%q: %v", name, err)
		}
	}
}

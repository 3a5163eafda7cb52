// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/gpuslice/gpuslice/api"
)

// Admission is how much of the devices may be given away.
type Admission struct {
	// Overcommit is how often each byte may be given, to thousandths; 1 to MostOvercommit.
	Overcommit float64 `toml:"overcommit"`
	Reserve    Bytes   `toml:"reserve"`
	MaxVRAM    Share   `toml:"max_vram"`
}

// MostOvercommit is for hosts on which the quotas only have to keep slices from one another, and may add up to anything.
const MostOvercommit = 1000

// DefaultTenant is whose section holds for tenants that have none.
const DefaultTenant = "default"

// Tenant is what all slices of a tenant may have together.
type Tenant struct {
	MaxVRAM Share `toml:"max_vram"`
}

// Bytes is a number of bytes, which may be 0.
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

// Share is a size or a part of a device; "" is none.
type Share struct{ api.Share }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Share) UnmarshalText(text []byte) (err error) {
	s.Share, err = api.ParseShare(string(text))
	return err
}

// Thousandths is the overcommit as the enforcer counts it.
func (a *Admission) Thousandths() uint64 { return uint64(math.Round(a.Overcommit * 1000)) }

func (a *Admission) check() error {
	// Written so that what is no number is not accepted either.
	if !(a.Overcommit >= 1 && a.Overcommit <= MostOvercommit) {
		return fmt.Errorf("admission.overcommit = %v: 1.0 to %d.0 are accepted; to give less than there is, set reserve", a.Overcommit, MostOvercommit)
	}
	return nil
}

func checkTenants(tenants map[string]Tenant) error {
	for _, name := range slices.Sorted(maps.Keys(tenants)) {
		if err := api.CheckTenant(name); err != nil {
			return fmt.Errorf("tenants.%q: %w", name, err)
		}
	}
	return nil
}

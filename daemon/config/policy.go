// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Policy is the section [policy]: the response to processes that hold memory past the ledger.
type Policy struct {
	Bypass    api.Action `toml:"bypass"`
	Scope     api.Scope  `toml:"scope"`
	Allowance Size       `toml:"allowance"`

	BypassGrace time.Duration `toml:"bypass_grace"`
}

// docs/evidence/security.md gives the reasons for the allowance.
func defaultPolicy() Policy {
	return Policy{Bypass: api.Log, Scope: api.ScopeProcess, Allowance: 1 << 30, BypassGrace: 500 * time.Millisecond}
}

func (p *Policy) check(f *faults) {
	f.unless(oneOf(string(p.Bypass), string(api.Log), string(api.Refuse), string(api.Kill)), "policy.bypass", p.Bypass,
		"%q, %q and %q are accepted", api.Log, api.Refuse, api.Kill)
	f.unless(oneOf(string(p.Scope), string(api.ScopeProcess), string(api.ScopeSlice)), "policy.scope", p.Scope,
		"%q and %q are accepted", api.ScopeProcess, api.ScopeSlice)
}

// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// MaxPools is how many pools a host has at most: each has a page of memory, and on each device some series among the metrics. It is two
// requests of claims for each pod of the largest node that Kubernetes' providers have, with 500 pods.
const MaxPools = 1024

// MaxPoolsOfSlice is of how many pools a slice is a member at most: one for each device that it can have.
const MaxPoolsOfSlice = 16

// PoolNames are the pools of a slice. One alone is a string in JSON, as it was when a slice could have no more; several are a list.
type PoolNames []string

// MarshalJSON implements json.Marshaler.
func (n PoolNames) MarshalJSON() ([]byte, error) {
	if len(n) == 1 {
		return json.Marshal(n[0])
	}
	return json.Marshal([]string(n))
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *PoolNames) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*n = nil
		if one != "" {
			*n = PoolNames{one}
		}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(n))
}

// String is the names as people read them.
func (n PoolNames) String() string { return strings.Join(n, ", ") }

// Pool is a named group of slices under one common quota, as the enforcer shows it.
type Pool struct {
	Name         string        `json:"name"`
	Quotas       []Quota       `json:"quotas"` // by UUID, or AllDevices
	Tenant       string        `json:"tenant,omitempty"`
	TTL          time.Duration `json:"ttl,omitempty"`
	Label        string        `json:"label,omitempty"`
	Elastic      bool          `json:"elastic,omitempty"`
	Priority     int           `json:"priority,omitempty"`
	ByGrant      bool          `json:"by_grant,omitempty"` // annotations cannot name it
	State        State         `json:"state"`              // Active, or Damaged: then its members get nothing more; of an elastic one Evicted while nobody is on its devices
	Reason       string        `json:"reason,omitempty"`   // why it is not active
	Created      time.Time     `json:"created"`
	Devices      []PoolUse     `json:"devices"`
	Members      []string      `json:"members"`       // ids of the slices that are in it, ordered
	ProcessCount int           `json:"process_count"` // that have attached, and live
}

// PoolUse is what all members of a pool together hold on one device. Sizes in bytes.
type PoolUse struct {
	Device    string `json:"device"` // UUID
	Index     int    `json:"index"`  // NVML's, -1 without NVML
	Name      string `json:"name,omitempty"`
	Limit     uint64 `json:"limit"`
	Used      uint64 `json:"used"`      // asked for by programs
	Overhead  uint64 `json:"overhead"`  // held by the driver beyond that
	Peak      uint64 `json:"peak"`      // of used + overhead
	Refusals  uint64 `json:"refusals"`  // by the pool's limit; those by a member's own are the member's
	Recovered uint64 `json:"recovered"` // given back for dead processes
}

// PoolRequest says what a new pool is, or which quotas of one are to be different: each goes in place of the pool's quota on the same
// device, and all else about a pool stays as it was created.
type PoolRequest struct {
	Quotas []Quota `json:"quotas"`
	// Tenant is whose the pool is: its quotas are within the tenant's bounds, and its members are this tenant's. "" is of an operator's
	// pool, which no tenant's bound holds for, and whose members may be anybody's.
	Tenant string `json:"tenant,omitempty"`
	// TTL is how long each member lives that does not ask for less; 0 is for ever.
	TTL time.Duration `json:"ttl,omitempty"`
	// Label says to people what the pool is for, such as the claim namespace/name.
	Label string `json:"label,omitempty"`
	// Elastic: its members are elastic slices, of this priority, and the pool counts for admission while one of them is on its devices.
	Elastic  bool `json:"elastic,omitempty"`
	Priority int  `json:"priority,omitempty"`
	// ByGrant: a slice becomes a member only if its request says so, too. A pool of a resource claim has it, since an annotation of another
	// pod could name the pool.
	ByGrant bool `json:"by_grant,omitempty"`
}

// maxLabel has room for a namespace and a name of Kubernetes.
const maxLabel = 320

// Validate says what is wrong with a request that could be wrong on any host. Its error is an *Error with CodeBadRequest.
func (r *PoolRequest) Validate() error {
	if r.Tenant != "" {
		if err := CheckTenant(r.Tenant); err != nil {
			return err
		}
	}
	if err := checkTTL(r.TTL); err != nil {
		return err
	}
	if len(r.Label) > maxLabel || !utf8.ValidString(r.Label) || strings.ContainsFunc(r.Label, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return Errorf(CodeBadRequest, "label %.64q is not one: up to %d bytes that can be printed are accepted", r.Label, maxLabel)
	}
	if err := checkPriority(r.Elastic, r.Priority); err != nil {
		return err
	}
	return validateQuotas(r.Quotas)
}

// CheckPoolName says whether a pool can have that name: 1 to 63 letters, digits, "_", "-" and ".", beginning with a letter
// or a digit.
func CheckPoolName(name string) error { return checkName("pool", name) }

// CheckTenant says the same of a tenant.
func CheckTenant(name string) error { return checkName("tenant", name) }

func checkName(what, name string) error {
	ok := name != "" && len(name) <= 63
	for i := range len(name) {
		c := name[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		ok = ok && (alnum || i > 0 && (c == '_' || c == '-' || c == '.'))
	}
	if !ok {
		return Errorf(CodeBadRequest, "%s name %.64q is not one: 1 to 63 letters, digits, \"_\", \"-\" and \".\" are accepted, beginning with a letter or a digit", what, name)
	}
	return nil
}

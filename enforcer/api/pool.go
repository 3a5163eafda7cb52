// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// MaxPools is how many pools a host has at most: each has a page of memory, and some series among the metrics.
const MaxPools = 256

// Pool is a named group of slices under one common quota, as the enforcer shows it.
type Pool struct {
	Name         string    `json:"name"`
	Quotas       []Quota   `json:"quotas"`           // by UUID, or AllDevices
	State        State     `json:"state"`            // Active, or Damaged: then its members get nothing more
	Reason       string    `json:"reason,omitempty"` // why it is not active
	Created      time.Time `json:"created"`
	Devices      []PoolUse `json:"devices"`
	Members      []string  `json:"members"`       // ids of the slices that are in it, ordered
	ProcessCount int       `json:"process_count"` // that have attached, and live
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

// PoolRequest says which quotas a new pool has, or what is to be different about one: each goes in place of the pool's
// quota on the same device.
type PoolRequest struct {
	Quotas []Quota `json:"quotas"`
}

// Validate says what is wrong with a request that could be wrong on any host. Its error is an *Error with CodeBadRequest.
func (r *PoolRequest) Validate() error { return validateQuotas(r.Quotas) }

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

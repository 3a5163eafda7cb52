// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// MaxPools is the maximum number of pools on a host. Each has a page of memory, and metrics series per device. The largest nodes
// of Kubernetes providers run 500 pods; it allows two requests of claims for each.
const MaxPools = 1024

// MaxPoolsOfSlice is the maximum number of pools of a slice: one for each device that it can have.
const MaxPoolsOfSlice = 16

// PoolNames are the names of a slice's pools. In JSON a single name is a string, as in older versions; several are a list.
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

// String returns the names separated by commas.
func (n PoolNames) String() string { return strings.Join(n, ", ") }

// Pool is a named group of slices under a common quota, as the enforcer shows it.
type Pool struct {
	Name         string        `json:"name"`
	Quotas       []Quota       `json:"quotas"` // by UUID, or AllDevices
	Tenant       string        `json:"tenant,omitempty"`
	TTL          time.Duration `json:"ttl,omitempty"`
	Label        string        `json:"label,omitempty"`
	Elastic      bool          `json:"elastic,omitempty"`
	Priority     int           `json:"priority,omitempty"`
	ByGrant      bool          `json:"by_grant,omitempty"` // annotations cannot name it
	State        State         `json:"state"`              // Active; Damaged: nothing more is granted; Evicted: no member on a device
	Reason       string        `json:"reason,omitempty"`   // why State is not Active
	Created      time.Time     `json:"created"`
	Devices      []PoolUse     `json:"devices"`
	Members      []string      `json:"members"`       // ids of its slices, sorted
	ProcessCount int           `json:"process_count"` // attached and alive
}

// PoolUse is the use of one device by all members of a pool together. Sizes in bytes.
type PoolUse struct {
	Device    string `json:"device"` // UUID
	Index     int    `json:"index"`  // NVML's, -1 without NVML
	Name      string `json:"name,omitempty"`
	Limit     uint64 `json:"limit"`
	Used      uint64 `json:"used"`      // requested by programs
	Overhead  uint64 `json:"overhead"`  // held by the driver beyond Used
	Peak      uint64 `json:"peak"`      // of Used + Overhead
	Refusals  uint64 `json:"refusals"`  // by the pool's limit; excludes those by a member's own limit
	Recovered uint64 `json:"recovered"` // released for exited processes
}

// PoolRequest creates a pool, or changes the quotas of an existing one on the devices that it names. All other properties of a
// pool are fixed at its creation.
type PoolRequest struct {
	Quotas []Quota `json:"quotas"`
	// Tenant owns the pool: the pool's quotas count against the tenant's bounds, and its members have to be of this tenant. "" is
	// a pool of the operator, without a tenant's bound, for members of any tenant.
	Tenant string `json:"tenant,omitempty"`
	// TTL is the maximum time to live of each member; 0 is unlimited.
	TTL time.Duration `json:"ttl,omitempty"`
	// Label says for display what the pool is for, such as the claim's namespace/name.
	Label string `json:"label,omitempty"`
	// Elastic makes all members elastic slices of this priority. The pool counts for admission while a member is on its devices.
	Elastic  bool `json:"elastic,omitempty"`
	Priority int  `json:"priority,omitempty"`
	// ByGrant restricts the pool to requests with ByGrant. Pools of resource claims set it, since an annotation of another pod
	// could name the pool.
	ByGrant bool `json:"by_grant,omitempty"`
}

// maxLabel fits a namespace and a name of Kubernetes.
const maxLabel = 320

// Validate checks what does not depend on the host. Its error is an *Error with CodeBadRequest.
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
		return Errorf(CodeBadRequest, "label %.64q is not accepted: at most %d printable bytes are", r.Label, maxLabel)
	}
	if err := checkPriority(r.Elastic, r.Priority); err != nil {
		return err
	}
	return validateQuotas(r.Quotas)
}

// CheckPoolName checks the name of a pool: 1 to 63 letters, digits, "_", "-" and ".", beginning with a letter or a digit. Its
// error is an *Error with CodeBadRequest.
func CheckPoolName(name string) error { return checkName("pool", name) }

// CheckTenant checks the name of a tenant as CheckPoolName does.
func CheckTenant(name string) error { return checkName("tenant", name) }

func checkName(what, name string) error {
	ok := name != "" && len(name) <= 63
	for i := range len(name) {
		c := name[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		ok = ok && (alnum || i > 0 && (c == '_' || c == '-' || c == '.'))
	}
	if !ok {
		return Errorf(CodeBadRequest, "%s name %.64q is not valid: 1 to 63 letters, digits, \"_\", \"-\" and \".\" are accepted, beginning with a letter or a digit", what, name)
	}
	return nil
}

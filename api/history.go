// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// Refusal describes the last rejected request for memory of a slice, and the memory's holders at that moment. Sizes in bytes.
type Refusal struct {
	Time    time.Time `json:"time"`
	Device  string    `json:"device"`            // UUID
	PID     int       `json:"pid,omitempty"`     // in the enforcer's pid namespace; absent for several processes. It may have exited since
	Command string    `json:"command,omitempty"` // the process's name, which it can choose
	// Call is the driver call that needed the memory, such as "cuMemAlloc"; Requested is the bytes that would have been charged.
	// If the process reported neither, both are absent, as are Needed and Holders, and Used and Overhead are 0.
	Call      string `json:"call,omitempty"`
	Requested uint64 `json:"requested,omitempty"`
	// Pool is set if a pool's limit was exceeded, and Limit, Used and Overhead are then the pool's. It is absent for the slice's
	// own limit.
	Pool     string  `json:"pool,omitempty"`
	Limit    *uint64 `json:"limit,omitempty"` // nil if it is unknown whether the slice's or the pool's was exceeded
	Used     uint64  `json:"used"`            // requested by programs
	Overhead uint64  `json:"overhead"`        // held by the driver beyond Used
	// Needed is the quota that would have been sufficient for this request.
	Needed uint64 `json:"needed,omitempty"`
	// Frozen is the reason why nothing could be granted at all; "" if the limit was exceeded.
	Frozen string `json:"frozen,omitempty"`
	// Holders are the processes that held most when the enforcer learned of the rejection, at most 16. MoreCount others held
	// MoreBytes. The rejected process may have exited by then.
	Holders   []Holder `json:"holders,omitempty"`
	MoreCount int      `json:"more_count,omitempty"`
	MoreBytes uint64   `json:"more_bytes,omitempty"`
}

// Holder is a process that held memory at the time of a rejection.
type Holder struct {
	PID      int    `json:"pid"`
	Command  string `json:"command,omitempty"`
	Slice    string `json:"slice,omitempty"` // for a pool: the slice that the process belongs to; "" if unknown
	Used     uint64 `json:"used"`
	Overhead uint64 `json:"overhead"`
}

// Run is one run of a slice, and its memory needs.
type Run struct {
	Slice     string `json:"slice"`
	Container string `json:"container,omitempty"`
	Names
	Tenant  string     `json:"tenant,omitempty"`
	UID     *uint32    `json:"uid,omitempty"` // of the session's user
	Began   time.Time  `json:"began"`
	Ended   *time.Time `json:"ended,omitempty"` // nil while it runs
	Devices []RunUse   `json:"devices"`
	Refusal *Refusal   `json:"refusal,omitempty"` // the last
}

// RunUse is the memory need of a run on one device. Sizes in bytes.
type RunUse struct {
	Device      string `json:"device"`         // UUID
	Pool        string `json:"pool,omitempty"` // whose quota applied on this device
	Limit       uint64 `json:"limit"`          // as set last; 0 in record mode
	Peak        uint64 `json:"peak"`           // of Used + Overhead
	Allocations uint64 `json:"allocations"`
	Refusals    uint64 `json:"refusals"`
	// Needed is the quota that would have been sufficient for each single request that the slice's own limit rejected; 0 if there
	// was none.
	Needed uint64 `json:"needed"`
}

// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// Refusal is a slice's last request for memory that was refused, and who held what at that moment. Sizes in bytes.
type Refusal struct {
	Time    time.Time `json:"time"`
	Device  string    `json:"device"`            // UUID
	PID     int       `json:"pid,omitempty"`     // in the enforcer's pid namespace; absent if it was several. It may have ended since
	Command string    `json:"command,omitempty"` // the process's name, which it can choose
	// Call is what the memory was for, such as "cuMemAlloc", and Requested what would have been charged. Both are absent, and so is all
	// below but Limit, if the process could not say.
	Call      string `json:"call,omitempty"`
	Requested uint64 `json:"requested,omitempty"`
	// Pool is the one whose limit it was; then Limit, Used and Overhead are the pool's. Absent if it was the slice's own.
	Pool     string  `json:"pool,omitempty"`
	Limit    *uint64 `json:"limit,omitempty"` // nil if it is not known whether it was the slice's or the pool's
	Used     uint64  `json:"used"`            // asked for by programs
	Overhead uint64  `json:"overhead"`        // held by the driver beyond that
	// Needed is the quota with which this request would have fitted.
	Needed uint64 `json:"needed,omitempty"`
	// Frozen is why nothing was granted at all, whatever was free; "" if it was the limit.
	Frozen string `json:"frozen,omitempty"`
	// Holders are those that held most when the enforcer heard of it, at most 16; MoreCount others held MoreBytes. The process
	// that was refused may have ended by then.
	Holders   []Holder `json:"holders,omitempty"`
	MoreCount int      `json:"more_count,omitempty"`
	MoreBytes uint64   `json:"more_bytes,omitempty"`
}

// Holder is a process that held memory when another one, or itself, was refused some.
type Holder struct {
	PID      int    `json:"pid"`
	Command  string `json:"command,omitempty"`
	Slice    string `json:"slice,omitempty"` // of a pool's; "" is not known
	Used     uint64 `json:"used"`
	Overhead uint64 `json:"overhead"`
}

// Run is one life of a slice, and what it needed.
type Run struct {
	Slice     string `json:"slice"`
	Container string `json:"container,omitempty"`
	Names
	Tenant  string     `json:"tenant,omitempty"`
	UID     *uint32    `json:"uid,omitempty"` // of the user whose session it is
	Began   time.Time  `json:"began"`
	Ended   *time.Time `json:"ended,omitempty"` // nil: it runs
	Devices []RunUse   `json:"devices"`
	Refusal *Refusal   `json:"refusal,omitempty"` // the last
}

// RunUse is what a run needed of one device. Sizes in bytes.
type RunUse struct {
	Device      string `json:"device"`         // UUID
	Pool        string `json:"pool,omitempty"` // on whose quota it drew there
	Limit       uint64 `json:"limit"`          // that it had last; 0 in record mode
	Peak        uint64 `json:"peak"`           // of what it held, overhead included
	Allocations uint64 `json:"allocations"`
	Refusals    uint64 `json:"refusals"`
	// Needed is the quota with which every request would have fitted that was refused by the slice's own limit, each by itself; 0 if
	// none was.
	Needed uint64 `json:"needed"`
}

// SPDX-License-Identifier: Apache-2.0

package core

import (
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

// Command is a request, which can be refused. Its Client, if not 0, gets exactly one Reply. The error of a Reply is an *api.Error, or that
// of an effect that failed. A command waits while an operation is pending for its slice or pool.
type Command interface {
	client() uint64
	target() (Kind, string)
}

// Register asks for a slice. The reply comes when the slice is stored and its processes can attach. Errors: CodeExists, CodeBadRequest,
// CodeNoDevice, CodeQuotaExceeded, and CodeBusy while memory is being evicted for it.
type Register struct {
	Client uint64
	// The caller sets ID, Name, Tenant, UID, Pools, Quotas, Limits, Unlimited, Elastic, Priority, Native and TTL, and may set Generation. Core
	// overwrites the other fields. Tenant, Elastic, Priority and TTL may come from the pools instead.
	Slice  Record
	Holder *refusal.Holder // names the slice in errors; nil: its ID, or the record's Name
	User   *refusal.User   // the limit of the session's user; nil is none
	Grant  bool            // private pools are allowed: a grant names them
	Stay   bool            // no slice is evicted for it
}

// Change gives a slice other limits, another time to live, or both. The reply comes when they are stored and no charge beyond the new limits can
// take effect. Errors: CodeNotFound, CodeExpired, CodeBadRequest, CodeNoDevice, CodeQuotaExceeded, CodeBusy.
type Change struct {
	Client uint64
	ID     string
	Quotas []api.Quota    // all of them; nil leaves Quotas and Limits unchanged
	Limits Bytes          // the quotas in bytes, for each device of the slice and each that this change adds
	User   *refusal.User  // the limit of the slice's user; nil is none
	TTL    *time.Duration // from now; nil leaves it unchanged, 0 is unlimited
}

// UseDevice adds a device that a process has begun to use to a slice or pool. For a member, the pool with a quota on the device must have it
// first. If the bytes cannot be granted, the device is added with a limit of 0, and the Reply has the error. Errors: CodeNotFound, CodeExpired,
// CodeBadRequest, CodeNoDevice, CodeQuotaExceeded.
type UseDevice struct {
	Client uint64
	Kind   Kind
	ID     string
	Device string // UUID
	Bytes  uint64 // the quota of the slice or pool on the device; NoLimit for a member without a quota of its own
}

// Attach asks whether a process of the slice may attach. Errors: CodeNotFound, CodeExpired, CodeBadRequest, and CodeBusy while the slice's memory
// is not on its devices: send AskReturn then, and repeat Attach later.
type Attach struct {
	Client uint64
	ID     string
}

// AskReturn asks for an evicted slice to return to its devices, since one of its processes waits. It has no Reply. Repeat it at least every three
// seconds while the process waits.
type AskReturn struct {
	ID string
}

// Release ends a slice. Its processes are granted nothing more, and the memory that they hold counts until the fact Empty. Errors: CodeNotFound;
// CodeRunning if the slice has processes, and Force is not set or memory of them is on the host.
type Release struct {
	Client     uint64
	ID         string
	Generation uint64 // 0 is any
	Cause      string // of the event
	Force      bool
	NoneHosted bool // no living process of it has memory on the host
}

// Causes of a release.
const (
	CauseAsked    = "asked"
	CauseEnded    = "ended"    // its processes have exited
	CauseExpired  = "expired"  // its deadline had passed
	CauseReplaced = "replaced" // it had ended, and another slice took its id or cgroup
)

// Suspend moves the slice's memory to host memory until Resume. The reply comes when it is there and stored. Errors: CodeNotFound, CodeExpired,
// CodeBadRequest, and the error of Moved.
type Suspend struct {
	Client uint64
	ID     string
	Evict  bool  // it makes room for others, and returns when one of its processes asks
	Stay   Bytes // with Evict: the bytes that may remain on each device
	Busy   bool  // with Evict: a call that does not end does not prevent the move
}

// Resume moves the memory back. An elastic slice is evicted from then on, and no longer suspended: if it does not fit, it returns later, when one of its
// processes asks. Errors: CodeNotFound, CodeExpired, CodeBadRequest, CodeQuotaExceeded, CodeBusy, and the error of Moved.
type Resume struct {
	Client uint64
	ID     string
	User   *refusal.User // the limit of the slice's user; nil leaves it
}

// CreatePool makes a pool. The reply comes when it is stored. Errors: CodeExists, CodeBadRequest, CodeQuotaExceeded, CodeBusy.
type CreatePool struct {
	Client uint64
	// The caller sets ID, Tenant, Private, Quotas, Limits, Elastic, Priority and TTL (of the members). Core overwrites the other fields.
	Pool   Record
	Holder *refusal.Holder // names the pool in errors; nil: its ID
}

// ChangePool gives a pool other limits. Errors: CodeNotFound, CodeBadRequest, CodeQuotaExceeded, CodeBusy.
type ChangePool struct {
	Client uint64
	ID     string
	Quotas []api.Quota // all of them
	Limits Bytes       // the quotas in bytes, by device
}

// DeletePool ends a pool without members. Errors: CodeNotFound, CodeRunning.
type DeletePool struct {
	Client uint64
	ID     string
}

func (r Register) client() uint64   { return r.Client }
func (r Change) client() uint64     { return r.Client }
func (r UseDevice) client() uint64  { return r.Client }
func (r Attach) client() uint64     { return r.Client }
func (r AskReturn) client() uint64  { return 0 }
func (r Release) client() uint64    { return r.Client }
func (r Suspend) client() uint64    { return r.Client }
func (r Resume) client() uint64     { return r.Client }
func (r CreatePool) client() uint64 { return r.Client }
func (r ChangePool) client() uint64 { return r.Client }
func (r DeletePool) client() uint64 { return r.Client }

func (r Register) target() (Kind, string)   { return Slice, r.Slice.ID }
func (r Change) target() (Kind, string)     { return Slice, r.ID }
func (r UseDevice) target() (Kind, string)  { return r.Kind, r.ID }
func (r Attach) target() (Kind, string)     { return Slice, r.ID }
func (r AskReturn) target() (Kind, string)  { return Slice, r.ID }
func (r Release) target() (Kind, string)    { return Slice, r.ID }
func (r Suspend) target() (Kind, string)    { return Slice, r.ID }
func (r Resume) target() (Kind, string)     { return Slice, r.ID }
func (r CreatePool) target() (Kind, string) { return Pool, r.Pool.ID }
func (r ChangePool) target() (Kind, string) { return Pool, r.ID }
func (r DeletePool) target() (Kind, string) { return Pool, r.ID }

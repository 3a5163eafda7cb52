// SPDX-License-Identifier: Apache-2.0

// Package api defines the control API between the enforcer and its clients: types, errors and default paths. Programs that run
// several times per container start import it, so it depends on the standard library only, and never does I/O.
package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Version is the version of gpuslice, set by the linker.
var Version = "0.0.0-dev"

// Default paths on a host; the configuration can set others.
const (
	DefaultSocket  = "/run/gpuslice/gpuslice.sock"
	DefaultRunDir  = "/run/gpuslice"
	DefaultState   = "/var/lib/gpuslice"
	DefaultConfig  = "/etc/gpuslice/config.toml"
	DefaultLibrary = "/usr/local/lib/gpuslice/libgpuslice.so"

	// ContainerDir is the read-only bind mount of a slice's directory in the container.
	ContainerDir = "/.gpuslice"
	// LibraryName is the name of the interceptor in ContainerDir.
	LibraryName = "libgpuslice.so"
	// PreloadName is the file in a slice's directory that the hook binds over /etc/ld.so.preload of the container.
	PreloadName = "ld.so.preload"
	// AttachSocketName is the name of the attach socket in ContainerDir. An elastic slice also has the file ElasticName there.
	AttachSocketName = "attach.sock"
	ElasticName      = "elastic"
	// DirEnv is set in processes of a session to the slice's directory on the host.
	DirEnv = "GPUSLICE_DIR"
	// SessionEnv is set in processes of a session to the slice's id.
	SessionEnv = "GPUSLICE_SESSION"
)

// AllDevices as Quota.Device means every device that has no quota of its own.
const AllDevices = "*"

// Mode is the treatment of a request that exceeds a limit.
type Mode string

const (
	Enforce Mode = "enforce" // it is rejected
	Record  Mode = "record"  // it is counted and shown, never rejected
)

// Quota limits the VRAM that a slice may hold on one device. Exactly one of Bytes and Percent is set.
type Quota struct {
	Device  string `json:"device"`            // a UUID, an index (turned into a UUID by the enforcer), or AllDevices
	Bytes   uint64 `json:"bytes,omitempty"`   // > 0
	Percent uint32 `json:"percent,omitempty"` // of the device's memory, 1 to 100
}

// RegisterRequest asks for a slice. Its processes are those of PID's cgroup, or, with Session, PID and its descendants.
type RegisterRequest struct {
	ID string `json:"id"` // see CheckID
	// Quotas may be empty for a member of a pool, which then draws on the pool's quota alone, and in record mode, which also
	// counts devices without a quota.
	Quotas []Quota `json:"quotas"`
	Mode   Mode    `json:"mode,omitempty"` // "" is Enforce
	// Pools are the pools that the slice joins. No two of them may have quotas on one device.
	Pools PoolNames `json:"pool,omitempty"`
	// ByGrant is true if root named the pools, for example in the CDI specification of a resource claim, rather than an
	// annotation, a variable or a label.
	ByGrant bool   `json:"by_grant,omitempty"`
	Tenant  string `json:"tenant,omitempty"`
	// TTL is the slice's time to live in nanoseconds; 0 is unlimited, or the enforcer's maximum. When the slice expires, its
	// processes get no more memory and are ended.
	TTL time.Duration `json:"ttl,omitempty"`
	// Visible lists the devices that the slice's processes see: UUIDs, indices, and VisibleMinor of device nodes. Admission
	// counts a quota on AllDevices for these devices only. A quota that names another device is rejected. The list does not keep
	// a process from another device: the quota on AllDevices limits it there, too. An empty list means all devices. The list of
	// an unprivileged user counts as empty, since the user's limit has to hold on every device.
	Visible []string `json:"visible,omitempty"`

	// Elastic allows the enforcer to evict the slice's memory to host memory while it is idle, until the next CUDA call. The
	// quotas count for admission while the slice is on its devices. Lower Priority is evicted first; MinPriority to MaxPriority,
	// 0 without Elastic.
	Elastic  bool `json:"elastic,omitempty"`
	Priority int  `json:"priority,omitempty"`

	// PID is the container's init, or the session's first process, in the enforcer's pid namespace. The enforcer reads the
	// slice's cgroup from the kernel by this pid, never from the request.
	PID int `json:"pid"`
	// Container is the container's id in its engine; "" for a session.
	Container string `json:"container,omitempty"`
	Names
	// Session limits the slice to PID, which is a subreaper, and its descendants. Without it, all processes of PID's cgroup
	// belong to the slice.
	Session bool `json:"session,omitempty"`
	// UID and GID own the attach directory of a session, or of a slice with For; ignored for a container.
	UID uint32 `json:"uid,omitempty"`
	GID uint32 `json:"gid,omitempty"`

	// For is the user that root registers the slice for. That user's limit applies, and the user can see, renew and release the
	// slice. Its processes are those of PID's cgroup; they run on the host with UID and GID. The slice ends with the cgroup, and not
	// with its last process.
	For *User `json:"for,omitempty"`
}

// User is a user of the host, as the kernel reported it to root.
type User struct {
	UID    uint32   `json:"uid"` // 0 has no limit
	Groups []uint32 `json:"groups,omitempty"`
	// Remote is the address of the machine that the user asks from, for the audit log.
	Remote string `json:"remote,omitempty"`
}

// OnHost reports whether the slice's processes use its directory at the host path, without a bind mount in a container.
func (r *RegisterRequest) OnHost() bool { return r.Session || r.For != nil }

// RegisterReply holds what the hook needs to bind the slice into the container.
type RegisterReply struct {
	Slice Slice `json:"slice"`
	// Dir is the slice's directory on the host. The hook writes PreloadName into it. Its subdirectory "bind" becomes
	// ContainerDir; it has the attach socket and an empty LibraryName to mount the library on.
	Dir string `json:"dir"`
	// Library is the installed interceptor on the host; its path names its version.
	Library string `json:"library"`
}

// State is the state of a slice or pool.
type State string

const (
	Active   State = "active"
	Released State = "released" // in answers to Release, and while processes of it are alive
	Damaged  State = "damaged"  // its ledger was overwritten, or could not be restored; nothing more is charged
	Frozen   State = "frozen"   // a process holds memory past the ledger; nothing more is charged until that ends
	// A Suspended slice has all its memory in host memory until it is resumed. Suspending and Resuming are transitions.
	Suspending State = "suspending"
	Suspended  State = "suspended"
	Resuming   State = "resuming"
	// An Evicted slice is elastic, and has all its memory in host memory until its next CUDA call.
	Evicting  State = "evicting"
	Evicted   State = "evicted"
	Returning State = "returning"
	Expired   State = "expired" // its time to live is over; nothing more is charged, and its processes are being ended
)

// Slice is a slice as the enforcer shows it.
type Slice struct {
	ID         string    `json:"id"`
	Generation uint64    `json:"generation"` // tells slices with the same id apart
	State      State     `json:"state"`
	Reason     string    `json:"reason,omitempty"` // why State is not Active
	Mode       Mode      `json:"mode"`
	Pools      PoolNames `json:"pool,omitempty"` // that the slice is a member of
	Tenant     string    `json:"tenant,omitempty"`
	Quotas     []Quota   `json:"quotas"` // by UUID, or AllDevices; empty if only the quotas of pools apply
	Container  string    `json:"container,omitempty"`
	Names
	PoolLabels   []string      `json:"pool_labels,omitempty"` // labels of its pools, such as a claim's namespace/name
	Session      bool          `json:"session,omitempty"`
	PID          int           `json:"pid"`
	UID          *uint32       `json:"uid,omitempty"`     // of the user whose session it is
	Command      string        `json:"command,omitempty"` // line of process PID, which can choose it; only in GET /v1/slices?commands=true
	Cgroup       string        `json:"cgroup,omitempty"`
	Created      time.Time     `json:"created"`
	TTL          time.Duration `json:"ttl,omitempty"`       // as set last
	Expires      *time.Time    `json:"expires,omitempty"`   // by the current clock of the host; nil for never
	Remaining    time.Duration `json:"remaining,omitempty"` // until Expires; 0 if expired, or without Expires
	Devices      []DeviceUse   `json:"devices"`
	Processes    []Process     `json:"processes,omitempty"` // only in GET /v1/slices/{id}
	ProcessCount int           `json:"process_count"`
	Elastic      *Elastic      `json:"elastic,omitempty"` // nil if not elastic
	Refusal      *Refusal      `json:"refusal,omitempty"` // the last; only in GET /v1/slices/{id}
}

// MinPriority and MaxPriority bound RegisterRequest.Priority.
const (
	MinPriority = -1000
	MaxPriority = 1000
)

// Elastic is the elastic state of a slice. Counts and times begin with the enforcer's start.
type Elastic struct {
	Priority  int           `json:"priority"`
	Evictions uint64        `json:"evictions"`
	Waited    time.Duration `json:"waited"`             // for returns, in nanoseconds, including a current wait
	Waits     *time.Time    `json:"waits,omitempty"`    // start of the current wait; nil if no process waits
	Idle      time.Duration `json:"idle"`               // since its last call; 0 during a call
	Obstacle  string        `json:"obstacle,omitempty"` // why the last eviction or return failed
}

// DeviceUse is a slice's use of one device. Sizes in bytes.
type DeviceUse struct {
	Device      string `json:"device"` // UUID
	Index       int    `json:"index"`  // NVML's, -1 without NVML
	Name        string `json:"name,omitempty"`
	Pool        string `json:"pool,omitempty"` // whose quota applies on this device
	Limit       uint64 `json:"limit"`          // 0 in record mode, and if nothing can be granted
	Used        uint64 `json:"used"`           // requested by programs
	Overhead    uint64 `json:"overhead"`       // held by the driver beyond Used: contexts, modules
	Peak        uint64 `json:"peak"`           // of Used + Overhead
	Allocations uint64 `json:"allocations"`
	Refusals    uint64 `json:"refusals"`
	Recovered   uint64 `json:"recovered"` // released for exited processes
	Suspended   uint64 `json:"suspended"` // in host memory until the slice is resumed; not in Used and Overhead

	Enforcement Enforcement `json:"enforcement"` // Native or Intercept
	Bypass      uint64      `json:"bypass"`      // part of Overhead that processes hold past the ledger
}

// Process is a process of a slice that attached, or that driver truth found.
type Process struct {
	PID      int          `json:"pid"`               // in the enforcer's pid namespace
	Command  string       `json:"command,omitempty"` // its name, which it can choose
	Attached bool         `json:"attached"`
	Bypass   string       `json:"bypass,omitempty"` // BypassUnattached or BypassExcess if it holds memory past the ledger
	Devices  []ProcessUse `json:"devices"`
}

// ProcessUse is a process's use of one device. Sizes in bytes.
type ProcessUse struct {
	Device    string  `json:"device"`
	Used      uint64  `json:"used"`
	Overhead  uint64  `json:"overhead"`
	Suspended uint64  `json:"suspended,omitempty"` // in host memory until the slice is resumed; not in Used and Overhead
	Driver    *uint64 `json:"driver,omitempty"`    // driver truth; nil if unknown
	Busy      *uint32 `json:"busy,omitempty"`      // percent of the last second in which its kernels ran; nil if unknown
}

// Device is a device of the host, as driver truth shows it.
type Device struct {
	UUID    string `json:"uuid"`
	Index   int    `json:"index"`
	Name    string `json:"name"`
	Total   uint64 `json:"total"`   // bytes
	Reserve uint64 `json:"reserve"` // bytes that are never granted
	Quotas  uint64 `json:"quotas"`  // bytes granted to slices, and those that released slices still hold
	// Free is the bytes that can still be granted; nil without driver truth.
	Free *uint64 `json:"free,omitempty"`
	// Suspended is the bytes of this device's memory that suspended slices have in host memory.
	Suspended uint64 `json:"suspended"`
	Slices    int    `json:"slices"` // number of slices with a quota on it
	// Pools is the bytes granted to each pool that is not elastic, by name, at the same moment as Quotas and Free.
	Pools   map[string]uint64 `json:"pools,omitempty"`
	Context uint64            `json:"context"` // measured cost of a process's first context, bytes; 0 if unknown
	// Elastic is nil if slices cannot be elastic on this device.
	Elastic *ElasticDevice `json:"elastic,omitempty"`
	// For a MIG instance, the next three fields describe its GPU. They are absent if NVML does not report them.
	Minor             *int   `json:"minor,omitempty"`              // N of the device node /dev/nvidiaN
	PCI               string `json:"pci,omitempty"`                // address, such as "0000:3b:00.0"
	ComputeCapability string `json:"compute_capability,omitempty"` // such as "9.0"

	// Used is the bytes in use by all processes and the driver; nil without a recent report. OutsideCount processes of no slice
	// hold OutsideUsed of them; Outside lists the largest, at most 64.
	Used         *uint64          `json:"used,omitempty"`
	OutsideUsed  uint64           `json:"outside_used"`
	OutsideCount int              `json:"outside_count"`
	Outside      []OutsideProcess `json:"outside,omitempty"`

	Enforcement       Enforcement `json:"enforcement"`        // Native or Intercept
	EnforcementReason string      `json:"enforcement_reason"` // why Enforcement has this value
}

// ElasticDevice is the use of a device by elastic slices and pools. Sizes in bytes.
type ElasticDevice struct {
	Promised uint64 `json:"promised"` // sum of their quotas, including evicted ones
	Free     uint64 `json:"free"`     // that can still be promised
	Most     uint64 `json:"most"`     // that one slice or pool can be promised
	// Pools is the bytes promised to each elastic pool, by name, at the same moment as Promised.
	Pools map[string]uint64 `json:"pools,omitempty"`
	// Idle is the bytes granted to those that are on the device and idle for at least IdleAfter. They are evicted when another
	// slice needs the room.
	Idle uint64 `json:"idle"`
}

// IdleAfter is the time without a call after which an elastic slice counts as idle.
const IdleAfter = time.Minute

// OutsideProcess is a process of no slice that uses a device.
type OutsideProcess struct {
	PID     int     `json:"pid"`               // in the enforcer's pid namespace
	Command string  `json:"command,omitempty"` // its name, which it can choose
	Bytes   *uint64 `json:"bytes,omitempty"`   // memory that the driver holds for it; nil if unknown
}

// Info is the answer to GET /v1/info.
type Info struct {
	Version string `json:"version"`
	Driver  string `json:"driver,omitempty"` // NVML's driver version
	Truth   string `json:"truth"`            // "nvml", or why driver truth is absent
	// Enforcement is the configured value; Device.Enforcement is the effective one.
	Enforcement Enforcement `json:"enforcement"`
	BootID      string      `json:"boot_id"`
	PID         int         `json:"pid"`
	Instance    string      `json:"instance,omitempty"` // identifies the series of events; changes with each start
}

// Code classifies an Error. Codes are stable across versions.
type Code string

const (
	CodeBadRequest    Code = "bad_request"    // 400
	CodeNotFound      Code = "not_found"      // 404: no such slice, or no such path
	CodeMethod        Code = "bad_method"     // 405: the path does not have that method
	CodeExists        Code = "exists"         // 409: an active slice has that id
	CodeRunning       Code = "running"        // 409: its processes are alive
	CodeQuotaExceeded Code = "quota_exceeded" // 409: the devices have too little memory left
	CodeTooLarge      Code = "too_large"      // 413: the request is too large
	CodeNoDevice      Code = "no_device"      // 400: no such device
	CodeExpired       Code = "expired"        // 409: the slice has expired
	CodeForbidden     Code = "forbidden"      // 403: not allowed for this user
	CodeBusy          Code = "busy"           // 503: try later: stopping, making room, or too many requests, followers or joined processes
	CodeStorage       Code = "storage"        // 500: a disk rejected a write: try again when the operator has made room
	CodeInternal      Code = "internal"       // 500
)

// Error is the body of every answer with a status other than 2xx.
type Error struct {
	Code      Code   `json:"code"`
	Message   string `json:"message"` // one sentence: what, why, what to do
	Device    string `json:"device,omitempty"`
	Requested uint64 `json:"requested,omitempty"` // bytes
	Limit     uint64 `json:"limit,omitempty"`     // bytes; if Requested is 0, the number of a user's sessions
	Current   uint64 `json:"current,omitempty"`   // of Limit
}

func (e *Error) Error() string { return e.Message }

// MarshalJSON writes Requested, Limit and Current if Requested is set, zeros included.
func (e *Error) MarshalJSON() ([]byte, error) {
	type plain Error
	if e.Requested == 0 {
		return json.Marshal((*plain)(e))
	}
	return json.Marshal(struct {
		*plain
		Requested uint64 `json:"requested"`
		Limit     uint64 `json:"limit"`
		Current   uint64 `json:"current"`
	}{(*plain)(e), e.Requested, e.Limit, e.Current})
}

// Is reports whether target is an *Error with the same code, so that errors.Is(err, ErrNotFound) works across the API.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Errorf returns an Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// From returns the *Error in err's tree. Without one it returns CodeStorage if a disk rejected a write, else CodeInternal.
func From(err error) *Error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e
	}
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO} {
		if errors.Is(err, errno) {
			return Errorf(CodeStorage, "the enforcer cannot write its files: %v: have the host's operator make room in the directories that `gpuslice doctor` names", errno)
		}
	}
	return Errorf(CodeInternal, "%s", err.Error())
}

// Sentinels for errors.Is; only the code is compared.
var (
	ErrBadRequest    = &Error{Code: CodeBadRequest, Message: "bad request"}
	ErrNotFound      = &Error{Code: CodeNotFound, Message: "no such slice"}
	ErrExists        = &Error{Code: CodeExists, Message: "a slice with that id is active"}
	ErrRunning       = &Error{Code: CodeRunning, Message: "the slice's processes are alive"}
	ErrQuotaExceeded = &Error{Code: CodeQuotaExceeded, Message: "the quotas exceed the device"}
	ErrExpired       = &Error{Code: CodeExpired, Message: "the slice has expired"}
	ErrBusy          = &Error{Code: CodeBusy, Message: "try again later"}
	ErrForbidden     = &Error{Code: CodeForbidden, Message: "not for this user"}
	ErrNoDevice      = &Error{Code: CodeNoDevice, Message: "no such device"}
)

// ErrUnreachable is returned by the client if the enforcer's socket does not answer.
var ErrUnreachable = errors.New("the enforcer does not answer")

// CheckID checks the id of a slice: 1 to 255 letters, digits, and "_.+-", not beginning with a dot. Its error is an *Error with
// CodeBadRequest.
func CheckID(id string) error {
	if id == "" || len(id) > 255 {
		return Errorf(CodeBadRequest, "slice id has %d characters: 1 to 255 are accepted", len(id))
	}
	for i, c := range id {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '+', c == '-':
		case c == '.' && i > 0:
		default:
			return Errorf(CodeBadRequest, "slice id %.64q has %q: letters, digits and \"_+-\" are accepted, and \".\" except at the start", id, c)
		}
	}
	return nil
}

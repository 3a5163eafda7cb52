// SPDX-License-Identifier: Apache-2.0

// Package api is what the enforcer and those who talk to it say to one another: the types of the
// control API, its errors, and the places where things are. It is imported by programs that run several
// times per container start, so it depends on the standard library only, and never does I/O.
package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Version is the version of gpuslice; set by the linker.
var Version = "0.0.0-dev"

// Where things are on a host, unless the configuration says otherwise.
const (
	DefaultSocket  = "/run/gpuslice/gpuslice.sock"
	DefaultRunDir  = "/run/gpuslice"
	DefaultState   = "/var/lib/gpuslice"
	DefaultConfig  = "/etc/gpuslice/config.toml"
	DefaultLibrary = "/usr/local/lib/gpuslice/libgpuslice.so"

	// ContainerDir is where the hook binds a slice's directory in the container, read-only.
	ContainerDir = "/.gpuslice"
	// LibraryName is the interceptor's name in that directory.
	LibraryName = "libgpuslice.so"
	// PreloadName is the file in a slice's directory that the hook binds on the container's own of that name in /etc.
	PreloadName = "ld.so.preload"
	// AttachSocketName is the attach socket's name in that directory, and ElasticName that of a file beside it of an elastic slice.
	AttachSocketName = "attach.sock"
	ElasticName      = "elastic"
	// DirEnv names that directory for processes of a session outside containers.
	DirEnv = "GPUSLICE_DIR"
	// SessionEnv tells processes of a session its slice's id.
	SessionEnv = "GPUSLICE_SESSION"
)

// AllDevices as a Quota's Device means every device that has no quota of its own.
const AllDevices = "*"

// Mode says what happens to a request that does not fit.
type Mode string

const (
	Enforce Mode = "enforce" // it is refused
	Record  Mode = "record"  // it is counted and shown, never refused
)

// Quota is the bytes of VRAM that a slice may keep on one device.
// Exactly one of Bytes and Percent is set.
type Quota struct {
	Device  string `json:"device"`            // a UUID, an index (turned into a UUID by the enforcer), or AllDevices
	Bytes   uint64 `json:"bytes,omitempty"`   // > 0
	Percent uint32 `json:"percent,omitempty"` // of that device's memory, 1 to 100
}

// RegisterRequest asks for a slice. Exactly one of Cgroup (a container) and Session (a
// `gpuslice run`) says who its processes are.
type RegisterRequest struct {
	ID string `json:"id"` // see CheckID
	// Quotas may be empty in a pool: then the pool's counts. In record mode what none covers is counted on as a whole.
	Quotas []Quota `json:"quotas"`
	Mode   Mode    `json:"mode,omitempty"` // "" is Enforce
	// Pools are those of which it becomes a member. No two may have quotas on one device.
	Pools PoolNames `json:"pool,omitempty"`
	// ByGrant: root named the pools, such as by the CDI specification of a resource claim. An annotation, a variable, or a label did not.
	ByGrant bool   `json:"by_grant,omitempty"`
	Tenant  string `json:"tenant,omitempty"`
	// TTL is how long the slice lives, in nanoseconds; 0 is for ever, or as long as the enforcer lets any slice live. When
	// it is over nothing more is granted to the slice's processes, and they are ended.
	TTL time.Duration `json:"ttl,omitempty"`
	// Visible are the devices that the slice's processes see: UUIDs, indices, and VisibleMinor of device nodes; the
	// enforcer turns them into UUIDs. A quota on all devices counts on these, and one on any other device is refused. It
	// is where quotas count and no barrier: a process that uses another device nevertheless has the quota there, too.
	// Empty is unknown, which is all; and so is what a user without privileges says, whose limit would else not hold for the others.
	Visible []string `json:"visible,omitempty"`

	// Elastic: its memory may be moved to host memory while it is idle, and comes back with its next CUDA call. Its quotas count for
	// admission while it is on its devices. Priority is who goes last: MinPriority to MaxPriority; 0 without Elastic.
	Elastic  bool `json:"elastic,omitempty"`
	Priority int  `json:"priority,omitempty"`

	// PID is the container's init, or the session's first process, in the enforcer's pid namespace.
	// The slice's cgroup is read from the kernel, from this pid, never from the request.
	PID int `json:"pid"`
	// Container is the container's id as its engine shows it; "" for a session.
	Container string `json:"container,omitempty"`
	Names
	// Session is true if the slice's processes are PID and its descendants (PID is
	// a subreaper), rather than all processes of PID's cgroup.
	Session bool `json:"session,omitempty"`
	// UID and GID own a session's attach directory, and that of a slice for a user; ignored for a container.
	UID uint32 `json:"uid,omitempty"`
	GID uint32 `json:"gid,omitempty"`

	// For is the user for whom root asks: it is his limit that holds, and he sees, renews and releases the slice as his own session.
	// The slice's processes are those of PID's cgroup, and run on the host with UID and GID.
	For *User `json:"for,omitempty"`
}

// User is a user of the host, as the kernel reported him to root.
type User struct {
	UID    uint32   `json:"uid"` // 0 has no limit
	Groups []uint32 `json:"groups,omitempty"`
	// Remote is the address of another machine from which he asks, for the audit log.
	Remote string `json:"remote,omitempty"`
}

// OnHost says whether the slice's processes find its directory by its path on the host, and not bound into a container.
func (r *RegisterRequest) OnHost() bool { return r.Session || r.For != nil }

// RegisterReply is what the hook needs to bind the slice into the container.
type RegisterReply struct {
	Slice Slice `json:"slice"`
	// Dir is the slice's directory on the host. It holds "bind", which becomes ContainerDir (the attach
	// socket, and an empty LibraryName to bind the library on), and is
	// where the hook writes the container's PreloadName.
	Dir string `json:"dir"`
	// Library is the installed interceptor on the host; its path names its version.
	Library string `json:"library"`
}

// State of a slice.
type State string

const (
	Active   State = "active"
	Released State = "released" // in answers to Release, and as long as processes of it are alive
	Damaged  State = "damaged"  // its ledger was overwritten, or could not be taken up again; nothing more is charged
	Frozen   State = "frozen"   // a process holds memory past the ledger; nothing more is charged until that is gone
	// Suspended: the memory of its processes is in host memory until it is resumed; nothing of it is on a device. Suspending and Resuming are
	// on the way.
	Suspending State = "suspending"
	Suspended  State = "suspended"
	Resuming   State = "resuming"
	// Evicted: the same of an elastic slice, which comes back with its next CUDA call.
	Evicting  State = "evicting"
	Evicted   State = "evicted"
	Returning State = "returning"
	Expired   State = "expired" // its time is over; nothing more is charged, and its processes are being ended
)

// Slice as the enforcer shows it.
type Slice struct {
	ID         string    `json:"id"`
	Generation uint64    `json:"generation"` // differs between two slices of one id
	State      State     `json:"state"`
	Reason     string    `json:"reason,omitempty"` // why it is not active
	Mode       Mode      `json:"mode"`
	Pools      PoolNames `json:"pool,omitempty"` // of which it is a member
	Tenant     string    `json:"tenant,omitempty"`
	Quotas     []Quota   `json:"quotas"` // by UUID, or AllDevices; none of a pool's member that draws on the pool's alone
	Container  string    `json:"container,omitempty"`
	Names
	PoolLabels   []string      `json:"pool_labels,omitempty"` // of its pools that have one, such as a claim's namespace/name
	Session      bool          `json:"session,omitempty"`
	PID          int           `json:"pid"`
	Cgroup       string        `json:"cgroup,omitempty"`
	Created      time.Time     `json:"created"`
	TTL          time.Duration `json:"ttl,omitempty"`       // how long it was to live when that was said last
	Expires      *time.Time    `json:"expires,omitempty"`   // by the host's clock as it is now; nil for never
	Remaining    time.Duration `json:"remaining,omitempty"` // until then; 0 if that was, or is never
	Devices      []DeviceUse   `json:"devices"`
	Processes    []Process     `json:"processes,omitempty"` // only in GET /v1/slices/{id}
	ProcessCount int           `json:"process_count"`
	Elastic      *Elastic      `json:"elastic,omitempty"` // nil of a slice that stays where it is
	Refusal      *Refusal      `json:"refusal,omitempty"` // the last; only in GET /v1/slices/{id}
}

// MinPriority and MaxPriority bound RegisterRequest.Priority.
const (
	MinPriority = -1000
	MaxPriority = 1000
)

// Elastic is how an elastic slice fares. Counts and times are of this enforcer, since its start.
type Elastic struct {
	Priority  int           `json:"priority"`
	Evictions uint64        `json:"evictions"`
	Waited    time.Duration `json:"waited"`             // for its return, in nanoseconds, what it waits now included
	Waits     *time.Time    `json:"waits,omitempty"`    // since when processes of it wait; nil if none does
	Idle      time.Duration `json:"idle"`               // since its last call; 0 if one is under way
	Obstacle  string        `json:"obstacle,omitempty"` // why it could not be moved, or not be brought back, when that was tried last
}

// DeviceUse is what a slice holds on one device. Sizes in bytes.
type DeviceUse struct {
	Device      string `json:"device"` // UUID
	Index       int    `json:"index"`  // NVML's, -1 without NVML
	Name        string `json:"name,omitempty"`
	Pool        string `json:"pool,omitempty"` // on whose quota it draws there
	Limit       uint64 `json:"limit"`          // 0 in record mode, and where the slice can be given nothing
	Used        uint64 `json:"used"`           // asked for by programs
	Overhead    uint64 `json:"overhead"`       // held by the driver beyond that: contexts, modules
	Peak        uint64 `json:"peak"`           // of used + overhead
	Allocations uint64 `json:"allocations"`
	Refusals    uint64 `json:"refusals"`
	Recovered   uint64 `json:"recovered"` // given back for dead processes
	Suspended   uint64 `json:"suspended"` // in host memory until the slice is resumed; not of Used and Overhead

	Enforcement Enforcement `json:"enforcement"` // Native or Intercept
	Bypass      uint64      `json:"bypass"`      // of Overhead, held past the ledger by processes that were found to
}

// Process of a slice that has attached, or that driver truth found.
type Process struct {
	PID      int          `json:"pid"`               // in the enforcer's pid namespace
	Command  string       `json:"command,omitempty"` // its name, which it can choose
	Attached bool         `json:"attached"`
	Bypass   string       `json:"bypass,omitempty"` // how it holds memory past the ledger: BypassUnattached or BypassExcess
	Devices  []ProcessUse `json:"devices"`
}

// ProcessUse is what a process holds on one device. Sizes in bytes.
type ProcessUse struct {
	Device    string  `json:"device"`
	Used      uint64  `json:"used"`
	Overhead  uint64  `json:"overhead"`
	Suspended uint64  `json:"suspended,omitempty"` // in host memory until the slice is resumed; not of Used and Overhead
	Driver    *uint64 `json:"driver,omitempty"`    // driver truth; nil if unknown
	Busy      *uint32 `json:"busy,omitempty"`      // percent of the last second in which its kernels ran; nil if the driver does not say
}

// Device of the host, as driver truth shows it.
type Device struct {
	UUID    string `json:"uuid"`
	Index   int    `json:"index"`
	Name    string `json:"name"`
	Total   uint64 `json:"total"`   // bytes
	Reserve uint64 `json:"reserve"` // bytes of it that are nobody's quota
	Quotas  uint64 `json:"quotas"`  // what was given of it, bytes: slices' quotas, and what released ones still hold
	// Free is the bytes that may still be given; nil without driver truth, since nobody knows how much there is.
	Free *uint64 `json:"free,omitempty"`
	// Suspended is the bytes that suspended slices held of it, which are in host memory.
	Suspended uint64 `json:"suspended"`
	Slices    int    `json:"slices"` // to how many it was given
	// Pools is the bytes granted to each pool that is not elastic, by name. It is of the same moment as Quotas and Free.
	Pools   map[string]uint64 `json:"pools,omitempty"`
	Context uint64            `json:"context"` // learned cost of a process's first context, bytes; 0 if unknown
	// Elastic is nil where slices cannot be elastic.
	Elastic *ElasticDevice `json:"elastic,omitempty"`
	// Of a MIG instance these three are its GPU's; absent if NVML does not say.
	Minor             *int   `json:"minor,omitempty"`              // of the device node /dev/nvidiaN
	PCI               string `json:"pci,omitempty"`                // address, such as "0000:3b:00.0"
	ComputeCapability string `json:"compute_capability,omitempty"` // such as "9.0"

	// Used is the bytes that are in use, by whomever, the driver's own included; nil if the driver has not said that of late. Of that
	// OutsideCount processes of no slice hold OutsideUsed; Outside are those that hold most, at most 64.
	Used         *uint64          `json:"used,omitempty"`
	OutsideUsed  uint64           `json:"outside_used"`
	OutsideCount int              `json:"outside_count"`
	Outside      []OutsideProcess `json:"outside,omitempty"`

	Enforcement       Enforcement `json:"enforcement"`        // Native or Intercept
	EnforcementReason string      `json:"enforcement_reason"` // why it is that one
}

// ElasticDevice is how a device stands with elastic slices and pools. Sizes in bytes.
type ElasticDevice struct {
	Promised uint64 `json:"promised"` // their quotas together, wherever they are
	Free     uint64 `json:"free"`     // how much more may be promised
	Most     uint64 `json:"most"`     // to one of them
	// Pools is the bytes promised to each elastic pool, by name. It is of the same moment as Promised and Free.
	Pools map[string]uint64 `json:"pools,omitempty"`
	// Idle is what was given to those that are on the device, and have been idle for IdleAfter: who is refused room has them moved aside.
	Idle uint64 `json:"idle"`
}

// IdleAfter is how long an elastic slice makes no call before it counts as idle on its devices.
const IdleAfter = time.Minute

// OutsideProcess is a process of no slice that uses a device.
type OutsideProcess struct {
	PID     int     `json:"pid"`               // in the enforcer's pid namespace
	Command string  `json:"command,omitempty"` // its name, which it can choose
	Bytes   *uint64 `json:"bytes,omitempty"`   // what the driver holds for it; nil if the driver does not say
}

// Info is GET /v1/info.
type Info struct {
	Version string `json:"version"`
	Driver  string `json:"driver,omitempty"` // NVML's driver version
	Truth   string `json:"truth"`            // "nvml", or why there is none
	// Enforcement is what the configuration says of it; what came of that, each Device has.
	Enforcement Enforcement `json:"enforcement"`
	BootID      string      `json:"boot_id"`
	PID         int         `json:"pid"`
	Instance    string      `json:"instance,omitempty"` // of its events; another one after each start
}

// Code of an Error, stable across versions.
type Code string

const (
	CodeBadRequest    Code = "bad_request"    // 400
	CodeNotFound      Code = "not_found"      // 404: no such slice, or no such path
	CodeMethod        Code = "bad_method"     // 405: the path has not that method
	CodeExists        Code = "exists"         // 409: an active slice has that id
	CodeRunning       Code = "running"        // 409: its processes are alive
	CodeQuotaExceeded Code = "quota_exceeded" // 409: the devices have not that much left
	CodeTooLarge      Code = "too_large"      // 413: the request is
	CodeNoDevice      Code = "no_device"      // 400: no such device
	CodeExpired       Code = "expired"        // 409: its time is over
	CodeForbidden     Code = "forbidden"      // 403: not for this user
	CodeBusy          Code = "busy"           // 503: ask again later: the enforcer is stopping, makes room, or as many ask, follow or have joined as may
	CodeStorage       Code = "storage"        // 500: a disk refused a write of the enforcer: ask again when the operator has made room
	CodeInternal      Code = "internal"       // 500
)

// Error is the body of every answer that is not 2xx.
type Error struct {
	Code      Code   `json:"code"`
	Message   string `json:"message"` // one sentence: what, why, what to do
	Device    string `json:"device,omitempty"`
	Requested uint64 `json:"requested,omitempty"`
	Limit     uint64 `json:"limit,omitempty"`
	Current   uint64 `json:"current,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// MarshalJSON shows all three figures of a refusal that has any, also those that are 0.
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

// Is makes errors.Is(err, ErrNotFound) work across the API: two Errors are the same if their codes are.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Errorf returns an Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// From returns the Error in err's tree. Any other error gets CodeStorage if a disk has refused a write, else CodeInternal.
func From(err error) *Error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e
	}
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO} {
		if errors.Is(err, errno) {
			return Errorf(CodeStorage, "the enforcer cannot write its files: %v: the host's operator has to make room in the directories that `gpuslice doctor` names", errno)
		}
	}
	return Errorf(CodeInternal, "%s", err.Error())
}

// Sentinels for errors.Is.
var (
	ErrBadRequest    = &Error{Code: CodeBadRequest, Message: "bad request"}
	ErrNotFound      = &Error{Code: CodeNotFound, Message: "no such slice"}
	ErrExists        = &Error{Code: CodeExists, Message: "a slice with that id is active"}
	ErrRunning       = &Error{Code: CodeRunning, Message: "the slice's processes are alive"}
	ErrQuotaExceeded = &Error{Code: CodeQuotaExceeded, Message: "the quotas exceed the device"}
	ErrExpired       = &Error{Code: CodeExpired, Message: "the slice's time is over"}
	ErrBusy          = &Error{Code: CodeBusy, Message: "ask again later"}
	ErrForbidden     = &Error{Code: CodeForbidden, Message: "not for this user"}
	ErrNoDevice      = &Error{Code: CodeNoDevice, Message: "no such device"}
)

// ErrUnreachable is returned by the client when nobody answers on the enforcer's socket.
var ErrUnreachable = errors.New("the enforcer does not answer")

// CheckID says whether id can name a slice: 1 to 255 of letters, digits, and "_.+-", not beginning with a dot.
func CheckID(id string) error {
	if id == "" || len(id) > 255 {
		return Errorf(CodeBadRequest, "slice id has %d characters: 1 to 255 are accepted", len(id))
	}
	for i, c := range id {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '+', c == '-':
		case c == '.' && i > 0:
		default:
			return Errorf(CodeBadRequest, "slice id %.64q has %q: letters, digits and \"_+-\" are accepted, and \".\" but at the start", id, c)
		}
	}
	return nil
}

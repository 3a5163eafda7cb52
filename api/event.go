// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// EventKind says what an Event is about.
type EventKind string

const (
	EventRegistered EventKind = "registered" // a slice began
	EventReleased   EventKind = "released"   // a slice ended
	EventRefused    EventKind = "refused"    // memory was refused to a process, Count times
	EventFreed      EventKind = "freed"      // bytes of processes that ended holding them were given back
	EventChanged    EventKind = "changed"    // a slice has another quota, or other time
	EventExpired    EventKind = "expired"    // a slice's time is over: it gets nothing more, and its processes are ended
	// EventDenied: a process uses a device of which the slice, or its pool, cannot be given its quota, and gets nothing there; or, without
	// a Device, a slice or a pool could not be restored, and nothing more is granted in it. Cause says why.
	EventDenied EventKind = "denied"
	// EventSuspended: Bytes that the slice held on Device are in host memory. EventResumed: they are back. Each is told once for each device, and
	// once without one if the slice held nothing.
	EventSuspended EventKind = "suspended"
	EventResumed   EventKind = "resumed"
	// EventEvicted and EventReturned are the same of an elastic slice.
	EventEvicted  EventKind = "evicted"
	EventReturned EventKind = "returned"
	// EventUnlimited: the driver does not limit the slice's cgroup on Device (Cause says why); the interceptor does. It is reported once,
	// until the driver does again.
	EventUnlimited EventKind = "unlimited"
	// EventAttachRefused: a process got no place in the ledger, Count times.
	EventAttachRefused EventKind = "attach_refused"
	EventBypass        EventKind = "bypass"  // a process was found to hold memory past the ledger, or the page of a slice or a pool to be overwritten
	EventCleared       EventKind = "cleared" // it does not any more
	EventKilled        EventKind = "killed"  // it was killed for it, or Count processes were
	// EventPoolCreated and EventPoolChanged are told for each device, or once while none is known.
	EventPoolCreated EventKind = "pool_created"
	EventPoolChanged EventKind = "pool_changed" // it has another quota
	EventPoolDeleted EventKind = "pool_deleted"
	// EventMissed: Count events up to this number are not kept any more, all of Slice if it has one. It is for a reader, and not of the enforcer.
	EventMissed EventKind = "missed"
)

// MissedRestarted is the Cause of EventMissed where another enforcer has begun since: it kept nothing of the one before it. Count is
// then of its own events that are not kept any more.
const MissedRestarted = "restarted"

// EventKinds are all kinds that there are.
func EventKinds() []EventKind {
	return []EventKind{EventRegistered, EventReleased, EventRefused, EventFreed, EventChanged, EventExpired, EventDenied, EventSuspended, EventResumed, EventEvicted, EventReturned, EventUnlimited, EventAttachRefused, EventBypass, EventCleared, EventKilled, EventPoolCreated, EventPoolChanged, EventPoolDeleted, EventMissed}
}

// Event is something that happened to a slice, or to a pool, told once. Fields that an event has nothing to say in are
// absent. Sizes in bytes.
type Event struct {
	Seq  uint64    `json:"seq"` // 1 and up, of this Instance
	Time time.Time `json:"time"`
	Kind EventKind `json:"kind"`
	// Instance is the enforcer that numbered it, from one start to the next.
	Instance string `json:"instance,omitempty"`

	Slice      string `json:"slice,omitempty"`
	Generation uint64 `json:"generation,omitempty"`
	Container  string `json:"container,omitempty"`
	Names
	Tenant string `json:"tenant,omitempty"`
	// Pool is the one that an event of a pool is about; of EventRefused the one whose limit it was, and then Limit, Used
	// and Overhead are the pool's. It is absent if the limit was the slice's own.
	Pool string `json:"pool,omitempty"`

	PID     int    `json:"pid,omitempty"`     // in the enforcer's pid namespace; absent if it was several
	Command string `json:"command,omitempty"` // the process's name, which it can choose
	Device  string `json:"device,omitempty"`  // UUID

	// Of EventRefused. The last of the Count requests, if its process could say what it was; else Call, Requested, Used and
	// Overhead are absent.
	Count     uint64 `json:"count,omitempty"`     // since the last event that counted this process's refusals
	Call      string `json:"call,omitempty"`      // what it was for, such as "cuMemAlloc"
	Requested uint64 `json:"requested,omitempty"` // as it would have been charged
	// Limit, Used and Overhead are as DeviceUse and PoolUse have them, at that moment; nil is not known, or no limit. Of what is
	// refused or changed, of pools, and Limit of EventBypass. Whether it was its own limit or the pool's is not known of a member that has
	// both, if its process did not say.
	Limit    *uint64 `json:"limit,omitempty"`
	Used     *uint64 `json:"used,omitempty"`
	Overhead *uint64 `json:"overhead,omitempty"`

	Bytes uint64 `json:"bytes,omitempty"` // of EventFreed, EventSuspended, EventResumed, EventEvicted and EventReturned; of EventBypass and what follows from it, those past the ledger
	Cause string `json:"cause,omitempty"` // of EventReleased: asked, ended, expired, or replaced; of EventChanged: quota, or ttl; of EventDenied: a sentence; of EventBypass: one of Bypass*; of EventMissed: MissedRestarted, or nothing

	Action Action `json:"action,omitempty"` // of EventBypass: what is done about it
	// Preload is of EventBypass where Cause is BypassUnattached, in a container; absent if it is not known.
	Preload Preload `json:"preload,omitempty"`

	// Of EventRegistered, and EventChanged where Cause is ttl: how long the slice lives from then on, in nanoseconds; absent is
	// for ever. Of EventExpired: how long it lived since that was said.
	TTL time.Duration `json:"ttl,omitempty"`
}

// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// EventKind is the kind of an Event.
type EventKind string

const (
	EventRegistered EventKind = "registered" // a slice began
	EventReleased   EventKind = "released"   // a slice ended
	EventRefused    EventKind = "refused"    // Count requests of a process were rejected
	EventFreed      EventKind = "freed"      // memory of exited processes was released
	EventChanged    EventKind = "changed"    // a slice has another quota, or another time to live
	EventExpired    EventKind = "expired"    // a slice expired: it gets no more memory, and its processes are ended
	// EventDenied reports that a process uses Device, on which the quota of its slice or pool cannot be granted: it gets nothing
	// there. Without Device, a slice or a pool could not be restored, and is granted nothing more. Cause has the reason.
	EventDenied EventKind = "denied"
	// EventSuspended reports that Bytes of the slice on Device moved to host memory, EventResumed that they are back. There is
	// one event for each device, or one without Device if the slice held nothing.
	EventSuspended EventKind = "suspended"
	EventResumed   EventKind = "resumed"
	// EventEvicted and EventReturned report the same of an elastic slice.
	EventEvicted  EventKind = "evicted"
	EventReturned EventKind = "returned"
	// EventUnlimited reports that the driver stopped limiting the slice's cgroup on Device, for the reason in Cause; the
	// interceptor still does. It is reported once until the driver limits it again.
	EventUnlimited EventKind = "unlimited"
	// EventAttachRefused reports that Count attaches of a process were rejected, as the ledger has no free entry.
	EventAttachRefused EventKind = "attach_refused"
	EventBypass        EventKind = "bypass"  // a process holds memory past the ledger, or the page of a slice or a pool was overwritten
	EventCleared       EventKind = "cleared" // the process no longer holds memory past the ledger
	EventKilled        EventKind = "killed"  // the process was killed for it, or Count processes were
	// EventPoolCreated and EventPoolChanged are reported for each device, or once if none is known.
	EventPoolCreated EventKind = "pool_created"
	EventPoolChanged EventKind = "pool_changed" // the pool has another quota
	EventPoolDeleted EventKind = "pool_deleted"
	// EventMissed reports that Count events up to this number are no longer stored, all of them events of Slice if it is set. It
	// is made for a reader, and has no number of its own.
	EventMissed EventKind = "missed"
)

// MissedRestarted is the Cause of EventMissed after a restart of the enforcer, which loses all earlier events. Count is then the
// number of its own events that are no longer stored.
const MissedRestarted = "restarted"

// EventKinds returns all kinds.
func EventKinds() []EventKind {
	return []EventKind{EventRegistered, EventReleased, EventRefused, EventFreed, EventChanged, EventExpired, EventDenied, EventSuspended, EventResumed, EventEvicted, EventReturned, EventUnlimited, EventAttachRefused, EventBypass, EventCleared, EventKilled, EventPoolCreated, EventPoolChanged, EventPoolDeleted, EventMissed}
}

// Event reports something that happened to a slice or a pool. Fields that do not apply are absent. Sizes in bytes.
type Event struct {
	Seq  uint64    `json:"seq"` // 1 and up, within Instance
	Time time.Time `json:"time"`
	Kind EventKind `json:"kind"`
	// Instance identifies one run of the enforcer, which numbers the events.
	Instance string `json:"instance,omitempty"`

	Slice      string `json:"slice,omitempty"`
	Generation uint64 `json:"generation,omitempty"`
	Container  string `json:"container,omitempty"`
	Names
	Tenant string `json:"tenant,omitempty"`
	// Pool is the pool of the event. In EventRefused it is set if the limit of a pool was exceeded, and Limit, Used and Overhead
	// are then the pool's; it is absent for the slice's own limit.
	Pool string `json:"pool,omitempty"`

	PID     int    `json:"pid,omitempty"`     // in the enforcer's pid namespace; absent for several processes
	Command string `json:"command,omitempty"` // the process's name, which it can choose
	Device  string `json:"device,omitempty"`  // UUID

	// The next three fields describe EventRefused. Call, Requested, Used and Overhead are those of the last of Count requests,
	// and absent if the process did not report them.
	Count     uint64 `json:"count,omitempty"`     // since the last event that counted this process's rejections
	Call      string `json:"call,omitempty"`      // driver call that needed the memory, such as "cuMemAlloc"
	Requested uint64 `json:"requested,omitempty"` // bytes that would have been charged
	// Limit, Used and Overhead are the values of DeviceUse or PoolUse at that moment; nil if unknown or unlimited. They are set
	// for rejections, changes and pools, Limit also for EventBypass. In a pool, Limit is also nil if the process did not report
	// whether its own or the pool's was exceeded.
	Limit    *uint64 `json:"limit,omitempty"`
	Used     *uint64 `json:"used,omitempty"`
	Overhead *uint64 `json:"overhead,omitempty"`

	// Bytes is set in EventFreed, EventSuspended, EventResumed, EventEvicted and EventReturned. In EventBypass and the events
	// after it, it is the bytes past the ledger.
	Bytes uint64 `json:"bytes,omitempty"`
	// Cause depends on Kind: EventReleased has asked, ended, expired or replaced; EventChanged quota or ttl; EventDenied and
	// EventUnlimited a sentence; EventBypass one of Bypass*; EventMissed MissedRestarted or nothing.
	Cause string `json:"cause,omitempty"`

	Action Action `json:"action,omitempty"` // of EventBypass: the enforcer's response
	// Preload belongs to EventBypass with the cause BypassUnattached in a container; absent if unknown.
	Preload Preload `json:"preload,omitempty"`

	// TTL is the time to live in nanoseconds, counted from the event, for EventRegistered and for EventChanged with the cause
	// ttl; absent is unlimited. In EventExpired it is the one that was set last.
	TTL time.Duration `json:"ttl,omitempty"`
}

// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// EventKind says what an Event is about.
type EventKind string

const (
	EventRegistered EventKind = "registered" // a slice began
	EventReleased   EventKind = "released"   // a slice ended
	EventRefused    EventKind = "refused"    // memory was refused to a process, Count times
	EventRecovered  EventKind = "recovered"  // bytes of processes that ended holding them were given back
	EventMissed     EventKind = "missed"     // Count events are not kept any more; of who asks, not of the enforcer
)

// EventKinds are all kinds that there are.
func EventKinds() []EventKind {
	return []EventKind{EventRegistered, EventReleased, EventRefused, EventRecovered, EventMissed}
}

// Event is something that happened to a slice, told once. Fields that an event has nothing to say in, and
// figures that are 0, are absent. Sizes in bytes.
type Event struct {
	Seq  uint64    `json:"seq"` // 1 and up, of this enforcer since it was started
	Time time.Time `json:"time"`
	Kind EventKind `json:"kind"`

	Slice      string `json:"slice,omitempty"`
	Generation uint64 `json:"generation,omitempty"`
	Container  string `json:"container,omitempty"`
	Tenant     string `json:"tenant,omitempty"`

	PID     int    `json:"pid,omitempty"`     // in the enforcer's pid namespace; absent if it was several
	Command string `json:"command,omitempty"` // what the process is named, by its own word
	Device  string `json:"device,omitempty"`  // UUID

	// Of EventRefused. The last of the Count requests, if its process could say what it was; else Requested and what
	// follows are absent. Used and Overhead are as DeviceUse has them, at that moment.
	Count     uint64 `json:"count,omitempty"`     // since the last event that counted this process's refusals
	Call      string `json:"call,omitempty"`      // what it was for, such as "cuMemAlloc"
	Requested uint64 `json:"requested,omitempty"` // as it would have been charged
	Limit     uint64 `json:"limit,omitempty"`
	Used      uint64 `json:"used,omitempty"`
	Overhead  uint64 `json:"overhead,omitempty"`

	Bytes uint64 `json:"bytes,omitempty"` // of EventRecovered
	Cause string `json:"cause,omitempty"` // of EventReleased: asked, ended, or replaced
}

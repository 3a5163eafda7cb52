// SPDX-License-Identifier: Apache-2.0

package core

import (
	"maps"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Bytes maps UUIDs of devices to sizes in bytes. A device without a key has 0.
type Bytes map[string]uint64

// NoLimit in Record.Limits means that the slice has no quota of its own on a device: only its pool's limit applies.
const NoLimit = ^uint64(0)

// Kind tells slices and pools apart.
type Kind uint8

// The kinds of a Record.
const (
	Slice Kind = iota
	Pool       // a limit that several slices share, which are its members
)

// Phase is the stage of a slice's or pool's life. It only grows. A pool is Admitted or Live.
type Phase uint8

// The phases.
const (
	Admitted  Phase = iota // its record is not stored yet, and no client knows it; a stored record never has this phase
	Live                   // stored; processes may attach
	Expiring               // its time is over: it is granted nothing more, and its processes are ended
	Lingering              // released, with processes that may still hold memory
)

// Residence is the place of a slice's memory.
type Residence uint8

// The residences.
const (
	Resident  Residence = iota // on its devices
	Leaving                    // being moved to host memory
	Away                       // in host memory, but for Record.Left
	Returning                  // being moved back
)

// Trust says whether the ledger of a slice or pool can be relied on.
type Trust uint8

// The degrees of trust.
const (
	Sound   Trust = iota
	Frozen        // a process holds memory that the ledger does not show: nothing more is granted until that ends
	Damaged       // a process overwrote the ledger, or it is lost: nothing more is granted ever
)

// Record is all that the store keeps of a slice or pool. Its maps and lists do not change once they are in a Record.
type Record struct {
	Kind       Kind
	ID         string // of a slice; the name of a pool
	Generation uint64 // identifies the record: no two records have the same
	Name       string // in refusals
	Tenant     string
	UID        *uint32  // the user whose session it is; nil if it is no session
	Private    bool     // of a pool: only a grant may name it, and refusals do not
	Pools      []string // of a slice: the pools that it is a member of, no two of them with a common device

	Quotas []api.Quota // as asked for; Limits are what they come to
	Limits Bytes       // by device: the bytes that it may hold there; 0 if none could be granted
	Kept   Bytes       // by device: bytes that were held when the limit was lowered below them. They count until they are freed. It never grows

	Unlimited bool // record mode: it is never refused memory, and takes nothing from others
	Elastic   bool // its memory may be evicted while it is idle
	Priority  int  // of an elastic one: lower is evicted first
	Native    bool // the driver limits its cgroup, too

	Phase     Phase
	Residence Residence
	Manual    bool  // suspended by hand: it returns only when it is resumed
	Hosted    bool  // processes of it have memory on the host
	Left      Bytes // while it is Away or Lingering: bytes that its processes may hold on devices; it only falls

	Trust Trust
	Why   string // it is not Sound, or expired before its time

	TTL      time.Duration // 0 is unlimited
	Deadline time.Duration // since boot; 0 is never
	Asked    time.Duration // since boot: its processes were asked to end; 0 if they were not
}

// counts returns the bytes of devices that a slice with this record takes from others. The bytes of a pool's member count in its pools only.
func (c *grants) counts(r *Record) Bytes {
	has := make(Bytes)
	switch {
	case r.Unlimited, len(r.Pools) > 0:
	case r.Phase == Lingering, r.Residence == Away:
		maps.Copy(has, r.Left)
	default:
		return c.present(r)
	}
	return has
}

// present returns the bytes that a slice or pool counts for while it is on its devices.
func (c *grants) present(r *Record) Bytes {
	has := maps.Clone(r.Kept)
	if has == nil {
		has = make(Bytes)
	}
	for uuid, limit := range r.Limits {
		has[uuid] = max(has[uuid], min(limit, c.total(uuid)))
	}
	return has
}

// closed reports whether the ledger is closed: no charge takes effect any more.
func (r *Record) closed() bool { return r.Phase >= Expiring || r.Trust == Damaged }

// page returns the limits to write to the ledger: 0 while the slice is Frozen.
func (r *Record) page() Bytes {
	if r.Trust != Frozen {
		return r.Limits
	}
	zero := make(Bytes)
	for uuid := range r.Limits {
		zero[uuid] = 0
	}
	return zero
}

// moving reports whether the record says that memory is being moved.
func (r *Record) moving() bool { return r.Residence == Leaving || r.Residence == Returning }

// raise sets each size to that of other, if that is larger.
func (b Bytes) raise(other Bytes) {
	for uuid, n := range other {
		b[uuid] = max(b[uuid], n)
	}
}

// without0 returns the sizes that are not 0.
func (b Bytes) without0() Bytes {
	some := maps.Clone(b)
	maps.DeleteFunc(some, func(_ string, n uint64) bool { return n == 0 })
	return some
}

// devices returns the UUIDs in order.
func (b Bytes) devices() []string { return slices.Sorted(maps.Keys(b)) }

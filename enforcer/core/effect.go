// SPDX-License-Identifier: Apache-2.0

package core

import (
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Effect is a request to an adapter. Effects of one key are carried out in the order in which Take returns them, those of different keys
// concurrently. Each may be carried out twice in succession. One with an Op is always answered by a fact with that Op: at its deadline with an
// error, unless the adapter says otherwise.
type Effect interface {
	Key() uint64             // the generation of a slice or pool; 0 for what waits for nothing
	Deadline() time.Duration // from its beginning; 0 is none
}

// Ref identifies the slice or pool of an effect.
type Ref struct {
	Kind       Kind
	ID         string
	Generation uint64
}

// Key implements Effect.
func (r Ref) Key() uint64 { return r.Generation }

const (
	quickly  = 5 * time.Second // without a move of memory
	slowest  = 128 << 20       // bytes a second that are moved at least
	moveTime = time.Minute     // on top of moving bytes
)

// Deadline implements Effect.
func (r Ref) Deadline() time.Duration { return quickly }

// Make makes the ledger of a slice or pool with these limits, and a slice's directory. Answered by Made.
type Make struct {
	Ref
	Op     uint64
	Client uint64 // of Register or CreatePool
	Limits Bytes
	Away   bool // its processes' calls wait from the beginning
}

// Store writes a record in place of that of the same generation. Answered by Stored.
type Store struct {
	Ref
	Op     uint64
	Record Record
	Place  bool // only the residence changes, or what counts beyond the limits (Kept, Left)
}

// Forget deletes the record of a generation, if there is one. Answered by Stored.
type Forget struct {
	Ref
	Op uint64
}

// Listen opens a slice's attach socket and watches for the end of its processes, once the driver has its NativeLimit. Answered by
// Opened; without an Op, after a restart, it is repeated until it succeeds.
type Listen struct {
	Ref
	Op uint64
}

// HangUp closes the attach socket and removes what Make made: the slice or pool is gone.
type HangUp struct{ Ref }

// Limit sets the limits of a ledger. Answered by Limited when no charge beyond them can take effect any more.
type Limit struct {
	Ref
	Op     uint64
	Limits Bytes // of all its devices
	Away   bool  // its processes' calls wait
}

// Close ends a ledger: no charge takes effect any more. Answered by Limited.
type Close struct {
	Ref
	Op uint64
}

// End signals a slice's processes: SIGTERM, which Signalled answers, or SIGKILL with Kill.
type End struct {
	Ref
	Kill bool
}

// MoveOut moves the memory of a slice's processes to host memory, of all or of none. The processes' calls wait from then on. Answered by Moved.
type MoveOut struct {
	Ref
	Op   uint64
	Stay Bytes // so much of each device may stay there; nil is nothing
	Busy bool  // a call that does not end does not prevent the move
	Size uint64
}

// MoveIn moves it back, and has the calls go on. It waits for memory that the driver still reports as used. Answered by Moved.
type MoveIn struct {
	Ref
	Op   uint64
	Size uint64
}

// NativeLimit sets the driver's own limits of a slice's cgroup, and removes those of other devices.
type NativeLimit struct {
	Ref
	Limits Bytes
}

// Emit appends an event of a slice or pool. Of the event, Kind, Slice, Pool, Generation, Device, Cause and TTL are set as they apply.
type Emit struct {
	Ref   Ref
	Event api.Event
}

// Reply answers a command.
type Reply struct {
	Client uint64
	Err    error  // nil if it was done
	After  uint64 // Key of the effects that are carried out before; 0 if there are none
}

// Deadline implements Effect.
func (e MoveOut) Deadline() time.Duration { return forBytes(e.Size) }

// Deadline implements Effect.
func (e MoveIn) Deadline() time.Duration { return forBytes(e.Size) }

func forBytes(size uint64) time.Duration {
	return moveTime + time.Duration(min(size/slowest, 1<<20))*time.Second
}

// Key implements Effect.
func (Emit) Key() uint64 { return 0 }

// Deadline implements Effect.
func (Emit) Deadline() time.Duration { return 0 }

// Key implements Effect.
func (Reply) Key() uint64 { return 0 }

// Deadline implements Effect.
func (Reply) Deadline() time.Duration { return 0 }

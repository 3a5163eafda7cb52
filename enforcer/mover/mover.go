// SPDX-License-Identifier: Apache-2.0

// Package mover moves the device memory of a slice's processes to host memory and back: of all of them, or of none. The driver's checkpoint moves the
// memory of a process (driver.go), or the process does itself (self.go).
//
// Each step first reads the state of the process, from the driver or from its lane: an enforcer that was killed may have taken the step already. The
// driver loses a process if its device has no room when it is restored. So a restore begins only once the driver reports enough free memory, and that
// memory is reserved (room.go).
//
// The package must never decide which slice moves, or store anything: its caller stores each state before it begins. It holds no lock while the driver,
// the disk or /proc is read.
package mover

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// Checkpointer has the driver move a process's memory off its devices and back. A call may take as long as its timeout.
type Checkpointer interface {
	State(of process.Identity, timeout time.Duration) (checkpoint.State, error)
	Do(action checkpoint.Action, to process.Identity, timeout time.Duration) error
}

// Truth is what the driver reports of a device. Each call has a timeout.
type Truth interface {
	// Processes returns the bytes of each process, by pid. Callers share the map.
	Processes(uuid string) (map[int]uint64, error)
	Free(uuid string) (uint64, error)
}

// Limits of moves. 0 is the default.
type Limits struct {
	Call    time.Duration // of a driver call that moves no bytes, including the 10 s that work on the device may take to end
	Lock    time.Duration // until a process's work has ended; then the driver locks it
	Answer  time.Duration // for what a process does at once, in addition to the time for moving bytes
	Silent  time.Duration // the same if it did not answer the last time
	Slowest uint64        // bytes that a process moves in a second, at least. The move of one large block shows no progress in between
}

const (
	callTimeout = 30 * time.Second
	// slowest is the least number of bytes moved in a second: an H100 moved 1 GiB and more.
	slowest = 128 << 20
)

// Options of a Mover. Without Truth, nothing can be moved.
type Options struct {
	Limits
	Log        *slog.Logger
	Checkpoint Checkpointer
	Truth      Truth
	Devices    []refusal.Device
	HostMemory HostMemory // nil: processes that move themselves have host memory in their own cgroups
	HostLimit  uint64     // bytes of host memory for elastic slices; 0 is all that the host has

	Meminfo     func() (available, total uint64, known bool)
	MemoryShort func(needs, beside map[int]uint64) (*cgroup.Short, error) // (*cgroup.Host).MemoryShort

	Elastic    func() []*Slice // the elastic slices
	Stopping   func() error    // the error of moves that are left to the next enforcer, once this one is stopping
	Background func(func())    // runs a function, for which the enforcer's end waits
}

// Mover moves memory between the devices and the memory of one host.
type Mover struct {
	Options
	rooms   *rooms
	Giving  *guard.Turn        // exported for tests: held while a process gets or returns host memory, so that memory found unused stays unused
	fitting *guard.Turn        // held while a move is compared with HostLimit, or with the host's memory, and counted
	granted map[*Slice]granted // moves under way; the turn fitting guards it
}

// New returns a Mover.
func New(o Options) *Mover {
	o.Call, o.Lock, o.Answer = cmp.Or(o.Call, callTimeout), cmp.Or(o.Lock, 5*time.Second), cmp.Or(o.Answer, 10*time.Second)
	o.Silent, o.Slowest = cmp.Or(o.Silent, time.Second), cmp.Or(o.Slowest, slowest)
	return &Mover{Options: o, rooms: newRooms(), Giving: guard.NewTurn(), fitting: guard.NewTurn(), granted: make(map[*Slice]granted)}
}

// stopped reports whether err means that the enforcer is stopping.
func (m *Mover) stopped(err error) bool { return err != nil && errors.Is(err, m.Stopping()) }

func (m *Mover) device(uuid string) refusal.Device {
	return m.Devices[slices.IndexFunc(m.Devices, func(d refusal.Device) bool { return d.UUID == uuid })]
}

// Owner is what a Slice needs to know of its slice.
type Owner interface {
	// Suspended returns the slice's record while its memory is off its devices, or on the way; nil otherwise. Called with the quota's lock held.
	Suspended() *store.Suspension
	Owns(pid int) bool
	// HoldersOn names the largest holders of a device, for a refusal; "" if it knows none.
	HoldersOn(uuid string) string
}

// Slice is a slice with movable memory. Fields above mover do not change.
type Slice struct {
	ID      string
	Owner   Owner
	Quota   *quota.Quota
	Turn    *guard.Turn // of the slice: held by callers that move its memory
	Elastic bool        // its processes may move their memory themselves

	mover  *Mover
	asking *guard.Turn // one request of its processes for host memory at a time waits for Mover.Giving
	moving uint64      // bytes that are on the way to host memory, see fitsLimit. Guarded by the quota's lock
}

// Slice returns a slice of this host.
func (m *Mover) Slice(s Slice) *Slice {
	s.mover, s.asking = m, guard.NewTurn()
	return &s
}

// locked calls do with the quota's lock held.
func (s *Slice) locked(do func()) {
	s.Quota.Lock.Lock()
	defer s.Quota.Lock.Unlock()
	do()
}

// processes returns the processes with lanes for which which is true, by pid.
func (s *Slice) processes(which func(*quota.Lane) bool) (all []store.Process) {
	s.locked(func() {
		for l := range s.Quota.Lanes() {
			if which(l) {
				all = append(all, store.Process{PID: l.Process.PID, Start: l.Process.Start})
			}
		}
	})
	slices.SortFunc(all, func(a, b store.Process) int { return cmp.Compare(a.PID, b.PID) })
	return all
}

// Unmovable is the error if a slice's own processes prevent its move.
type Unmovable struct{ Err error }

func (u Unmovable) Error() string { return u.Err.Error() }
func (u Unmovable) Unwrap() error { return u.Err }

// sum returns the bytes of all devices.
func sum(bytes map[string]uint64) (sum uint64) {
	for _, n := range bytes {
		sum += n
	}
	return sum
}

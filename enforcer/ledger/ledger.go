// SPDX-License-Identifier: Apache-2.0

// Package ledger gives the enforcer access to the shared-memory page of a slice. It owns the memfd, its mapping, and the encoding of the
// attach protocol's messages. The rules of charging are those of interceptor/ledger.h, and its code is compiled in.
//
// Any process of the slice can overwrite the page at any time. No value read from it is used unchecked as an index, a length or a loop's
// bound, and no such value can cause a panic, a wait or an allocation. Facts that the enforcer relies on (the owners of lanes, the limits)
// are in its own memory, and Check compares the page with them.
//
// The package must never decide policy, and never do I/O except on memfds and /proc.
package ledger

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra
#include "native.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"unsafe"
)

//go:generate go run ../../interceptor/tools/digest

// Layout of the page, from ledger.h.
const (
	Layout  = uint32(C.LEDGER_LAYOUT)
	Devices = int(C.LEDGER_DEVICES)
	Slots   = int(C.LEDGER_SLOTS)
	Lanes   = int(C.LEDGER_LANES)
	Size    = uint64(C.sizeof_struct_ledger)
	NoLimit = uint64(math.MaxUint64)
)

// The errors of a change to the ledger.
var (
	ErrRefused = errors.New("the bytes do not fit the limit")
	ErrBusy    = errors.New("ledger update aborted: too many retries")
	ErrDamaged = errors.New("the ledger is invalid")
)

func result(r C.enum_ledger_result) error {
	switch r {
	case C.LEDGER_OK:
		return nil
	case C.LEDGER_REFUSED:
		return ErrRefused
	case C.LEDGER_BUSY:
		return ErrBusy
	default:
		return ErrDamaged
	}
}

// Ledger is the mapped page of one slice. It is safe for concurrent use, except for Close.
type Ledger struct {
	file *os.File // nil if the mapping suffices to open the file again
	mem  []byte
	page *C.struct_ledger
	id   Identity
}

// Identity identifies a ledger among all memfds of the host.
type Identity struct {
	Name  [16]byte // random, also in the page
	Dev   uint64
	Inode uint64
}

func (l *Ledger) Identity() Identity { return l.id }

// Owner is a lane's process, as the kernel described it.
type Owner struct {
	PID   int    // in the enforcer's pid namespace
	Start uint64 // clock ticks since boot
	NSPID int    // in its own pid namespace
	PIDNS uint64 // inode of that namespace
}

// Device is the enforcer's part of one device in the page.
type Device struct {
	UUID  [16]byte
	Limit uint64 // NoLimit in record mode
	Quota uint64 // shown to programs
	Total uint64
}

func (l *Ledger) device(i int) *C.struct_ledger_device {
	return &l.page.device[i]
}

func lane(i uint32) bool            { return i < uint32(Lanes) }
func device(i int) bool             { return i >= 0 && i < Devices }
func address(p *C.uint64_t) *uint64 { return (*uint64)(unsafe.Pointer(p)) }

// Assign prepares a free lane for owner. The lane becomes live with SetLive.
func (l *Ledger) Assign(i uint32, o Owner) error {
	if i == 0 || !lane(i) {
		return ErrDamaged
	}
	owner := C.struct_native_owner{
		pid: C.uint32_t(o.PID), ns_pid: C.uint32_t(o.NSPID),
		start: C.uint64_t(o.Start), pid_ns: C.uint64_t(o.PIDNS),
	}
	return result(C.native_assign(l.page, C.uint32_t(i), &owner))
}

// SetLive makes the lane live. From then on siblings may settle it if its owner is dead.
func (l *Ledger) SetLive(i uint32) {
	if lane(i) {
		C.native_live(l.page, C.uint32_t(i))
	}
}

// SetSuspended marks the lane's owner as checkpointed: siblings do not settle it. SetLive makes it live again.
func (l *Ledger) SetSuspended(i uint32) {
	if lane(i) {
		C.native_suspended(l.page, C.uint32_t(i))
	}
}

// SetFree marks a settled lane as free.
func (l *Ledger) SetFree(i uint32) {
	if lane(i) {
		C.native_free(l.page, C.uint32_t(i))
	}
}

// Settle releases all bytes of a lane's dead owner, if the generation matches, and returns the bytes that this call released on each
// device.
func (l *Ledger) Settle(i uint32, generation uint64) (bytes [Devices]uint64, err error) {
	if !lane(i) {
		return bytes, ErrDamaged
	}
	r := C.native_settle(l.page, C.uint32_t(i), C.uint64_t(generation), C.LEDGER_DEVICES,
		(*C.uint64_t)(unsafe.Pointer(&bytes[0])))
	return bytes, result(r)
}

// Held returns the bytes that a live lane holds on a device.
func (l *Ledger) Held(dev int, i uint32) uint64 {
	if !device(dev) || !lane(i) {
		return 0
	}
	return uint64(C.native_held(l.page, C.uint32_t(dev), C.uint32_t(i)))
}

// Number returns the number of the lane's last change on a device. It is unchanged while the lane charges and releases nothing.
func (l *Ledger) Number(dev int, i uint32) uint64 {
	if !device(dev) || !lane(i) {
		return 0
	}
	return uint64(C.ledger_number(l.page, C.uint32_t(dev), C.uint32_t(i)))
}

// Calls are the calls of a lane's owner that it charges only after the driver returns, by its own claim, modulo 2^32.
type Calls struct{ UnderWay, Ended uint32 }

// Uncharged returns such calls on a device. Later reads of the lane include the charges of the ended ones.
func (l *Ledger) Uncharged(dev int, i uint32) Calls {
	if !device(dev) || !lane(i) {
		return Calls{}
	}
	calls := C.ledger_uncharged(l.page, C.uint32_t(dev), C.uint32_t(i))
	return Calls{UnderWay: uint32(calls.under_way), Ended: uint32(calls.ended)}
}

// Loads returns such calls that may take any number of bytes, on any device.
func (l *Ledger) Loads(i uint32) Calls {
	if !lane(i) {
		return Calls{}
	}
	calls := C.ledger_loads(l.page, C.uint32_t(i))
	return Calls{UnderWay: uint32(calls.under_way), Ended: uint32(calls.ended)}
}

// SetAway tells the processes of an elastic slice whether its memory is on the host or about to move there. They then enter no call of the
// driver. A later Gated reports calls that began before, or calls of a process that ignores the page.
func (l *Ledger) SetAway(away bool) {
	word := uint64(0)
	if away {
		word = 1
	}
	atomic.StoreUint64(address(&l.page.away), word)
	l.wakeGate()
}

// Gate has the driver calls of a lane's owner; none if the owner does not count them.
type Gate struct {
	UnderWay uint16 // calls
	Made     uint64 // calls, modulo 2^48
}

// Gated returns the owner's gate, by its own claim.
func (l *Ledger) Gated(i uint32) Gate {
	if !lane(i) {
		return Gate{}
	}
	word := atomic.LoadUint64(address(&l.page.lane[i].calls))
	return Gate{UnderWay: uint16(word), Made: word >> 16}
}

// Place is where the memory of a self-moving process is, or is wanted: enum ledger_place.
type Place uint8

const (
	PlaceUnknown Place = C.LEDGER_PLACE_UNKNOWN // it cannot move its memory
	Running      Place = C.LEDGER_RUNNING
	Locked       Place = C.LEDGER_LOCKED
	Aside        Place = C.LEDGER_ASIDE
	Between      Place = C.LEDGER_BETWEEN // partly on the device, partly on the host; never wanted
	Bare         Place = C.LEDGER_BARE    // only wanted: Running, without host memory kept
)

// MoveFailure is why a process gave up a move: enum ledger_move_failure.
type MoveFailure uint8

const (
	MoveDone   MoveFailure = C.LEDGER_MOVE_DONE
	MoveFew    MoveFailure = C.LEDGER_MOVE_FEW
	MoveHost   MoveFailure = C.LEDGER_MOVE_HOST
	MoveDevice MoveFailure = C.LEDGER_MOVE_DEVICE
	MoveDriver MoveFailure = C.LEDGER_MOVE_DRIVER
	MoveBusy   MoveFailure = C.LEDGER_MOVE_BUSY
)

func (f MoveFailure) String() string {
	switch f {
	case MoveDone:
		return "the process claims to have moved its memory"
	case MoveFew:
		return "too little of its memory can be moved this way"
	case MoveHost:
		return "the host has no memory for it"
	case MoveDevice:
		return "the device has no room"
	case MoveBusy:
		return "the process is capturing a graph"
	}
	return "the driver refused a call"
}

// Move is the exchange between a lane's owner and the enforcer on where its memory is. All but Want is the owner's claim.
type Move struct {
	Want     uint8 // as SetWant returned it
	Is       Place
	Answered uint8       // the Want that was completed or given up
	Failure  MoveFailure // of the answered Want
}

// Wanted returns the place that was wanted last, or PlaceUnknown.
func (m Move) Wanted() Place { return Place(m.Want & C.LEDGER_WANT_PLACE) }

// MoveOf returns the state of a lane's move.
func (l *Ledger) MoveOf(i uint32) Move {
	if !lane(i) {
		return Move{}
	}
	// One load of the whole word: the owner writes its answer last.
	word := atomic.LoadUint32((*uint32)(unsafe.Pointer(&l.page.lane[i].move)))
	b := (*[4]uint8)(unsafe.Pointer(&word))
	return Move{Want: b[0], Is: Place(b[1]), Answered: b[2], Failure: MoveFailure(b[3])}
}

// SetWant sets where a lane's memory is wanted, and wakes its owner. It returns the value that Move.Answered will have.
func (l *Ledger) SetWant(i uint32, to Place) uint8 {
	if !lane(i) {
		return 0
	}
	return uint8(C.native_want(l.page, C.uint32_t(i), C.enum_ledger_place(to)))
}

// SetStay sets how many bytes of a device each process may leave there when Aside is next wanted of it.
func (l *Ledger) SetStay(dev int, bytes uint64) {
	if device(dev) {
		atomic.StoreUint64(address(&l.page.device[dev].stay), bytes)
	}
}

// SetKeep sets how many bytes of host memory each process may keep beyond its need when Aside or Bare is next wanted of it.
func (l *Ledger) SetKeep(bytes uint64) {
	for dev := range Devices {
		atomic.StoreUint64(address(&l.page.device[dev].keep), bytes)
	}
}

// Context returns the bytes of a lane that are overhead, by its owner's claim.
func (l *Ledger) Context(dev int, i uint32) uint64 {
	if !device(dev) || !lane(i) {
		return 0
	}
	return min(atomic.LoadUint64(address(&l.page.lane[i].entry[dev].context)), l.Held(dev, i))
}

// Refusals returns the number of refusals of a lane on a device, by its owner's claim. It may include those of earlier owners, so only its
// increase is meaningful.
func (l *Ledger) Refusals(dev int, i uint32) uint64 {
	if !device(dev) || !lane(i) {
		return 0
	}
	return atomic.LoadUint64(address(&l.page.lane[i].entry[dev].refusals))
}

// Refusal describes one refusal, by the claim of the refused process.
type Refusal struct {
	Device   int    // index in the slice's ledger, or any number
	Bytes    uint64 // requested
	Used     uint64 // bytes charged then, including overhead
	Overhead uint64 // bytes of Used
	Needed   uint64 // highest sum of Used and Bytes that the slice's limit refused since the last report
	Call     string // the call that was refused
	ByPool   bool   // refused by the pool's limit, with the pool's Used and Overhead
	number   C.uint64_t
}

// LastRefusal returns the last refusal of a lane; false if that was reported. The owner describes a refusal before it counts it.
func (l *Ledger) LastRefusal(i uint32) (Refusal, bool) {
	if !lane(i) {
		return Refusal{}, false
	}
	of := &l.page.lane[i]
	if atomic.LoadUint64(address(&of.described)) == atomic.LoadUint64(address(&of.reported)) {
		return Refusal{}, false // without a call of C
	}
	var r C.struct_ledger_refusal
	number := C.ledger_last_refusal(l.page, C.uint32_t(i), &r)
	return Refusal{
		Device: int(r.device), Bytes: uint64(r.bytes), Used: uint64(r.used), Overhead: uint64(r.overhead), Needed: uint64(r.needed),
		Call: C.GoString(C.ledger_call_name(r.call)), ByPool: r.by_pool != 0, number: number,
	}, number != 0
}

// Reported marks a refusal of a lane as reported.
func (l *Ledger) Reported(i uint32, r Refusal) {
	if lane(i) {
		atomic.StoreUint64(address(&l.page.lane[i].reported), uint64(r.number))
	}
}

// Recovered returns the bytes that were recovered from exited processes on a device, by the claim of the recovering processes.
func (l *Ledger) Recovered(dev int) uint64 {
	if !device(dev) {
		return 0
	}
	return atomic.LoadUint64(address(&l.device(dev).recovered))
}

// Limit returns the page's limit of a device. Any process of the slice can overwrite it.
func (l *Ledger) Limit(dev int) uint64 {
	if !device(dev) {
		return 0
	}
	return atomic.LoadUint64(address(&l.device(dev).limit))
}

func (l *Ledger) Generation(i uint32) uint64 {
	if !lane(i) {
		return 0
	}
	return atomic.LoadUint64(address(&l.page.lane[i].generation))
}

// Lane returns the page's entry of a lane. Only the kernel can confirm it.
func (l *Ledger) Lane(i uint32) (owner Owner, generation uint64, live bool) {
	if !lane(i) {
		return Owner{}, 0, false
	}
	p := &l.page.lane[i]
	live = atomic.LoadUint32((*uint32)(unsafe.Pointer(&p.state))) != C.LEDGER_FREE
	return Owner{
		PID: int(p.pid), Start: uint64(p.start), NSPID: int(p.ns_pid), PIDNS: uint64(p.pid_ns),
	}, uint64(p.generation), live
}

// Suspended reports whether the page marks the lane's owner as checkpointed. Any process with the page can write this.
func (l *Ledger) Suspended(i uint32) bool {
	return lane(i) && atomic.LoadUint32((*uint32)(unsafe.Pointer(&l.page.lane[i].state))) == C.LEDGER_SUSPENDED
}

// HighLane returns the highest lane that was ever assigned, by the page's claim, at most Slots.
func (l *Ledger) HighLane() uint32 {
	return min(atomic.LoadUint32((*uint32)(unsafe.Pointer(&l.page.high_lane))), uint32(Slots))
}

// DeviceCount returns the number of devices in the page, at most Devices.
func (l *Ledger) DeviceCount() int {
	return int(min(atomic.LoadUint32((*uint32)(unsafe.Pointer(&l.page.device_count))), uint32(Devices)))
}

// SetRecord sets the mode that refuses nothing.
func (l *Ledger) SetRecord() { l.page.record = 1 }

// SetPool writes the name of the ledger's pool, for messages about refusals. It keeps at most 63 bytes.
func (l *Ledger) SetPool(name string) {
	for i := range min(len(name), len(l.page.pool)-1) {
		l.page.pool[i] = C.char(name[i])
	}
}

// SetContextBytes sets the bytes that a process charges before it creates its first context on a device.
func (l *Ledger) SetContextBytes(dev int, bytes uint64) {
	if device(dev) {
		C.native_context_bytes(l.page, C.uint32_t(dev), C.uint64_t(bytes))
	}
}

// SetClosed makes the ledger refuse all further charges. Processes at the gate go on.
func (l *Ledger) SetClosed() {
	C.native_close(l.page)
	l.wakeGate()
}

// Check compares the page with the enforcer's copy, and returns an error with the first difference.
func (l *Ledger) Check(record, closed bool, devices []Device) error {
	p := l.page
	switch {
	case !bool(C.ledger_valid(p, C.uint64_t(Size))):
		return fmt.Errorf("%w: magic, layout or size was overwritten", ErrDamaged)
	case *(*[16]byte)(unsafe.Pointer(&p.slice)) != l.id.Name:
		return fmt.Errorf("%w: the ledger's name was overwritten", ErrDamaged)
	case int(p.device_count) != len(devices):
		return fmt.Errorf("%w: device_count is %d, %d were set", ErrDamaged, uint32(p.device_count), len(devices))
	case (p.record == 1) != record || p.record > 1:
		return fmt.Errorf("%w: the mode was overwritten", ErrDamaged)
	case (p.flags&C.LEDGER_CLOSED != 0) != closed:
		return fmt.Errorf("%w: the flags were overwritten", ErrDamaged)
	}
	for i, want := range devices {
		d := l.device(i)
		got := Device{
			UUID:  *(*[16]byte)(unsafe.Pointer(&d.uuid)),
			Limit: uint64(d.limit), Quota: uint64(d.quota), Total: uint64(d.total),
		}
		if got != want {
			return fmt.Errorf("%w: limit, quota, memory or uuid of device %d was overwritten", ErrDamaged, i)
		}
	}
	return nil
}

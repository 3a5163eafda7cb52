// SPDX-License-Identifier: Apache-2.0

// Package ledger is the enforcer's hand on the shared-memory page of one slice. It owns the memfd, its
// mapping, and the translation of the attach protocol's messages; the rules of charging are those of
// interceptor/ledger.h, whose code it compiles in.
//
// Every process of the slice can write anything into the page at any time. Nothing that is read from it is
// used as an index, a length or a loop's bound without a check; nothing here panics, waits
// or allocates by what the page says. What the enforcer must rely on (who owns which lane, the limits) it
// keeps in its own memory, and Check says whether the page still agrees.
//
// The package must never decide policy, and never do I/O but on memfds and /proc.
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

// Layout of the page, as ledger.h has it.
const (
	Layout  = uint32(C.LEDGER_LAYOUT)
	Devices = int(C.LEDGER_DEVICES)
	Slots   = int(C.LEDGER_SLOTS)
	Lanes   = int(C.LEDGER_LANES)
	Size    = uint64(C.sizeof_struct_ledger)
	NoLimit = uint64(math.MaxUint64)
)

// What a change of the ledger can fail with.
var (
	ErrRefused = errors.New("it does not fit the limit")
	ErrBusy    = errors.New("ledger update aborted: too many retries")
	ErrDamaged = errors.New("the page holds what no honest process writes")
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

// Ledger is one slice's page, mapped. Its methods may be called by any number of goroutines, but for Close.
type Ledger struct {
	file *os.File // nil where the mapping is enough to have it again
	mem  []byte
	page *C.struct_ledger
	id   Identity
}

// Identity tells this ledger from every other memfd on the host.
type Identity struct {
	Name  [16]byte // random, in the page
	Dev   uint64
	Inode uint64
}

// Identity of the ledger.
func (l *Ledger) Identity() Identity { return l.id }

// Owner is the process that a lane is given to, as the kernel described it.
type Owner struct {
	PID   int    // in the enforcer's pid namespace
	Start uint64 // clock ticks since boot
	NSPID int    // in its own pid namespace
	PIDNS uint64 // inode of that
}

// Device is what the enforcer wrote into one device of the page.
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

// Assign gives a free lane to owner, up to the last step: the lane is not live before SetLive.
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

// SetLive makes the lane its owner's. From here on siblings may settle it if they see that the owner is dead.
func (l *Ledger) SetLive(i uint32) {
	if lane(i) {
		C.native_live(l.page, C.uint32_t(i))
	}
}

// SetSuspended says that the lane's owner was checkpointed: siblings leave it alone, SetLive makes it live again.
func (l *Ledger) SetSuspended(i uint32) {
	if lane(i) {
		C.native_suspended(l.page, C.uint32_t(i))
	}
}

// SetFree says that the lane is settled and nobody's.
func (l *Ledger) SetFree(i uint32) {
	if lane(i) {
		C.native_free(l.page, C.uint32_t(i))
	}
}

// Settle gives back what the exited owner of the lane's generation holds, on all devices, and says how much
// came back by this call.
func (l *Ledger) Settle(i uint32, generation uint64) (bytes [Devices]uint64, err error) {
	if !lane(i) {
		return bytes, ErrDamaged
	}
	r := C.native_settle(l.page, C.uint32_t(i), C.uint64_t(generation), C.LEDGER_DEVICES,
		(*C.uint64_t)(unsafe.Pointer(&bytes[0])))
	return bytes, result(r)
}

// Held is what a live lane holds on a device.
func (l *Ledger) Held(dev int, i uint32) uint64 {
	if !device(dev) || !lane(i) {
		return 0
	}
	return uint64(C.native_held(l.page, C.uint32_t(dev), C.uint32_t(i)))
}

// Number of the lane's last change on a device: unchanged means that nothing was charged.
func (l *Ledger) Number(dev int, i uint32) uint64 {
	if !device(dev) || !lane(i) {
		return 0
	}
	return uint64(C.ledger_number(l.page, C.uint32_t(dev), C.uint32_t(i)))
}

// Calls of a lane's owner that it charges only when the driver has returned, by its claim and modulo 2^32.
type Calls struct{ UnderWay, Ended uint32 }

// Uncharged are such calls on a device. What is read of the lane afterwards includes what those charged that have ended.
func (l *Ledger) Uncharged(dev int, i uint32) Calls {
	if !device(dev) || !lane(i) {
		return Calls{}
	}
	calls := C.ledger_uncharged(l.page, C.uint32_t(dev), C.uint32_t(i))
	return Calls{UnderWay: uint32(calls.under_way), Ended: uint32(calls.ended)}
}

// Loads are such calls that may take any amount, on any device.
func (l *Ledger) Loads(i uint32) Calls {
	if !lane(i) {
		return Calls{}
	}
	calls := C.ledger_loads(l.page, C.uint32_t(i))
	return Calls{UnderWay: uint32(calls.under_way), Ended: uint32(calls.ended)}
}

// SetAway says whether the memory of an elastic slice is moved aside, or about to be: then its processes enter no call of the driver. What
// Gated returns afterwards is of calls that were under way before, or of a process that pays no heed.
func (l *Ledger) SetAway(away bool) {
	word := uint64(0)
	if away {
		word = 1
	}
	atomic.StoreUint64(address(&l.page.away), word)
}

// Gate is what a lane's owner has said of its calls of the driver.
type Gate struct {
	Counts   bool   // whether it says so at all
	UnderWay uint16 // calls
	Made     uint64 // calls, modulo 2^48
}

// Gated is by the claim of the lane's owner.
func (l *Ledger) Gated(i uint32) Gate {
	if !lane(i) {
		return Gate{}
	}
	word := atomic.LoadUint64(address(&l.page.lane[i].calls))
	return Gate{Counts: word != 0, UnderWay: uint16(word), Made: word >> 16}
}

// Place is where the memory of a process is that moves it itself, or where it is wanted: enum ledger_place.
type Place uint8

const (
	PlaceUnknown Place = C.LEDGER_PLACE_UNKNOWN // it cannot
	Running      Place = C.LEDGER_RUNNING
	Locked       Place = C.LEDGER_LOCKED
	Aside        Place = C.LEDGER_ASIDE
	Between      Place = C.LEDGER_BETWEEN // not wanted: in part here, in part there
	Bare         Place = C.LEDGER_BARE    // wanted only: Running, and no host memory is kept
)

// MoveFailure is why a process has given up what was wanted: enum ledger_move_failure.
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
		return "it says that it did"
	case MoveFew:
		return "too little of it can be moved so"
	case MoveHost:
		return "the host gives no memory"
	case MoveDevice:
		return "the device has no room"
	case MoveBusy:
		return "it is recording work for a graph"
	}
	return "the driver refuses"
}

// Move is what a lane's owner and the enforcer say to one another of where the owner's memory is; all but Want is by the owner's claim.
type Move struct {
	Want     uint8 // as SetWant returned it
	Is       Place
	Answered uint8       // the Want that was done or given up
	Failure  MoveFailure // of that
}

// Wanted is the place that was wanted last; PlaceUnknown if none ever was.
func (m Move) Wanted() Place { return Place(m.Want & C.LEDGER_WANT_PLACE) }

// MoveOf a lane.
func (l *Ledger) MoveOf(i uint32) Move {
	if !lane(i) {
		return Move{}
	}
	// One word, read at once: who answers writes the answer last.
	word := atomic.LoadUint32((*uint32)(unsafe.Pointer(&l.page.lane[i].move)))
	b := (*[4]uint8)(unsafe.Pointer(&word))
	return Move{Want: b[0], Is: Place(b[1]), Answered: b[2], Failure: MoveFailure(b[3])}
}

// SetWant tells a lane's owner where its memory is wanted, and wakes it. It returns what is then answered.
func (l *Ledger) SetWant(i uint32, to Place) uint8 {
	if !lane(i) {
		return 0
	}
	return uint8(C.native_want(l.page, C.uint32_t(i), C.enum_ledger_place(to)))
}

// SetStay says how many bytes of a device a process may leave there that is told to move aside next.
func (l *Ledger) SetStay(dev int, bytes uint64) {
	if device(dev) {
		atomic.StoreUint64(address(&l.page.device[dev].stay), bytes)
	}
}

// SetKeep says how many bytes of host memory a process may keep beyond what it needs that is told to move aside, or to be Bare, next.
func (l *Ledger) SetKeep(bytes uint64) {
	for dev := range Devices {
		atomic.StoreUint64(address(&l.page.device[dev].keep), bytes)
	}
}

// Context returns the part of a lane's bytes that is overhead, as its owner says.
func (l *Ledger) Context(dev int, i uint32) uint64 {
	if !device(dev) || !lane(i) {
		return 0
	}
	return min(atomic.LoadUint64(address(&l.page.lane[i].entry[dev].context)), l.Held(dev, i))
}

// Refusals is how often a lane's owner was refused on a device, by its claim. What former owners were may be in it, so
// only its growth says something.
func (l *Ledger) Refusals(dev int, i uint32) uint64 {
	if !device(dev) || !lane(i) {
		return 0
	}
	return atomic.LoadUint64(address(&l.page.lane[i].entry[dev].refusals))
}

// Recovered is how many bytes of exited processes were given back on a device, by the claim of the process that did it.
func (l *Ledger) Recovered(dev int) uint64 {
	if !device(dev) {
		return 0
	}
	return atomic.LoadUint64(address(&l.device(dev).recovered))
}

// Limit that the page has for a device; any process of the slice can have written it.
func (l *Ledger) Limit(dev int) uint64 {
	if !device(dev) {
		return 0
	}
	return atomic.LoadUint64(address(&l.device(dev).limit))
}

// Generation of a lane.
func (l *Ledger) Generation(i uint32) uint64 {
	if !lane(i) {
		return 0
	}
	return atomic.LoadUint64(address(&l.page.lane[i].generation))
}

// Lane is what the page says of a lane: to be trusted only as far as the kernel confirms it.
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

// Suspended says whether the page calls the lane's owner checkpointed: anybody who has the page can write that.
func (l *Ledger) Suspended(i uint32) bool {
	return lane(i) && atomic.LoadUint32((*uint32)(unsafe.Pointer(&l.page.lane[i].state))) == C.LEDGER_SUSPENDED
}

// HighLane is the highest lane that was ever given out, by the page's word, within bounds.
func (l *Ledger) HighLane() uint32 {
	return min(atomic.LoadUint32((*uint32)(unsafe.Pointer(&l.page.high_lane))), uint32(Slots))
}

// DeviceCount is how many devices the page shows, within bounds.
func (l *Ledger) DeviceCount() int {
	return int(min(atomic.LoadUint32((*uint32)(unsafe.Pointer(&l.page.device_count))), uint32(Devices)))
}

// SetRecord says that nothing is refused.
func (l *Ledger) SetRecord() { l.page.record = 1 }

// SetPool names the pool whose ledger it is: for what its processes say of refusals. At most 63 bytes of name are kept.
func (l *Ledger) SetPool(name string) {
	for i := range min(len(name), len(l.page.pool)-1) {
		l.page.pool[i] = C.char(name[i])
	}
}

// SetContextBytes says what a process charges before it makes its first context on a device.
func (l *Ledger) SetContextBytes(dev int, bytes uint64) {
	if device(dev) {
		C.native_context_bytes(l.page, C.uint32_t(dev), C.uint64_t(bytes))
	}
}

// SetClosed lets nothing more be charged.
func (l *Ledger) SetClosed() { C.native_close(l.page) }

// Check compares the page with what the enforcer wrote there, and names the first difference.
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

// SPDX-License-Identifier: Apache-2.0

package ledger

/*
#include "native.h"
*/
import "C"

import (
	"sync/atomic"
	"unsafe"
)

// Account is the writer's view of one lane on one device. It is not safe for concurrent use.
type Account struct {
	c C.struct_ledger_account
}

// OpenAccount opens the account of a lane; lane 0 is the enforcer's. After a restart it determines whether the last change, left in doubt
// by the predecessor, took effect.
func (l *Ledger) OpenAccount(dev int, i uint32) (*Account, error) {
	if !device(dev) || !lane(i) {
		return nil, ErrDamaged
	}
	return &Account{c: C.ledger_open(l.page, C.uint32_t(dev), C.uint32_t(i))}, nil
}

func (a *Account) Held() uint64 { return uint64(a.c.held) }

// Charge takes bytes, or returns ErrRefused if they do not fit.
func (a *Account) Charge(bytes uint64) error {
	return result(C.ledger_charge(&a.c, C.uint64_t(bytes)))
}

// Release returns bytes, at most those that the account holds.
func (a *Account) Release(bytes uint64) error {
	return result(C.ledger_release(&a.c, C.uint64_t(bytes)))
}

// Set changes the bytes that the account holds, regardless of the limit: memory that the driver holds already cannot be refused.
func (a *Account) Set(held uint64) error {
	return result(C.ledger_set(&a.c, C.uint64_t(held)))
}

// Limit sets the device's limit. Once it returns, no charge that read an older limit can take effect.
func (a *Account) Limit(limit uint64) error {
	return result(C.ledger_limit(&a.c, C.uint64_t(limit)))
}

// SetDevice writes the account's device, and shows it to the slice's processes. The account is that of lane 0.
func (a *Account) SetDevice(d Device, contextBytes uint64) error {
	return result(C.native_device(&a.c, (*C.uint8_t)(unsafe.Pointer(&d.UUID[0])), C.uint64_t(d.Limit),
		C.uint64_t(d.Quota), C.uint64_t(d.Total), C.uint64_t(contextBytes)))
}

// Figures are the sums of one device, in bytes. Processes can forge them, and they are not of one instant.
type Figures struct {
	Used                  uint64 // charged by all lanes, including the enforcer's
	Held                  uint64 // sum over the lanes
	Context               uint64 // part of Held: contexts
	Enforcer              uint64 // part of Held: charged by the enforcer
	Peak                  uint64
	Recovered             uint64
	Allocations, Refusals uint64
	// Quiet means that nothing changed during the sum over the lanes: Held then equals Used unless the page was overwritten.
	Quiet bool
}

// Live is the set of lanes with an owner. It always includes lane 0.
type Live [Lanes]uint8

// Figures returns the figures of a device. It does not read lanes above high.
func (l *Ledger) Figures(dev int, live *Live, high uint32) Figures {
	if !device(dev) {
		return Figures{}
	}
	live[0] = 1
	lanes := min(high+1, uint32(Lanes))
	s := C.native_sums(l.page, C.uint32_t(dev), (*C.uint8_t)(unsafe.Pointer(&live[0])), C.uint32_t(lanes))
	d := l.device(dev)
	return Figures{
		Used: uint64(s.used), Held: uint64(s.held), Context: uint64(s.context),
		Enforcer:    l.Held(dev, 0),
		Peak:        max(atomic.LoadUint64(address(&d.peak)), uint64(s.used)),
		Recovered:   atomic.LoadUint64(address(&d.recovered)),
		Allocations: uint64(s.allocations), Refusals: uint64(s.refusals),
		Quiet: bool(s.quiet),
	}
}

// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Processes of an evicted slice wait at its gate: see interceptor/gate.h.

const (
	futexWake   = 1   // FUTEX_WAKE
	futex2Word  = 2   // FUTEX2_SIZE_U32
	waitedWords = 128 // FUTEX_WAITV_MAX
)

func wake(word *uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
}

// wakeGate wakes the processes at the gate.
func (l *Ledger) wakeGate() { wake((*uint32)(unsafe.Pointer(&l.page.away))) }

// Gates is a set of ledgers of which one goroutine waits for requests for the return of their slices.
type Gates struct {
	rung uint32
	set  []futexWaitv
}

// futexWaitv is struct futex_waitv of linux/futex.h.
type futexWaitv struct {
	value, address uint64
	flags, _       uint32
}

func waiter(word *uint32) futexWaitv {
	return futexWaitv{value: uint64(atomic.LoadUint32(word)), address: uint64(uintptr(unsafe.Pointer(word))), flags: futex2Word}
}

// Reset empties the set. One goroutine calls Reset, Add and Wait.
func (g *Gates) Reset() { g.set = append(g.set[:0], waiter(&g.rung)) }

// Add adds a ledger. It may be closed before Wait.
func (g *Gates) Add(l *Ledger) {
	g.set = append(g.set, waiter((*uint32)(unsafe.Pointer(&l.page.wishes))))
}

// Ring ends Wait, or the next one.
func (g *Gates) Ring() {
	atomic.AddUint32(&g.rung, 1)
	wake(&g.rung)
}

// Wait waits until a process of one of the ledgers requests the return of its slice, or until Ring, at most for patience; since Reset and Add. On
// Linux before 5.16, and for ledgers after the first 127, it returns after pace at the latest.
func (g *Gates) Wait(patience, pace time.Duration) {
	n := min(len(g.set), waitedWords)
	if n < len(g.set) {
		patience = pace
	}
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	until := unix.NsecToTimespec(now.Nano() + int64(patience))
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX_WAITV, uintptr(unsafe.Pointer(&g.set[0])), uintptr(n), 0, uintptr(unsafe.Pointer(&until)),
		unix.CLOCK_MONOTONIC, 0)
	runtime.KeepAlive(g)
	switch errno {
	case 0, unix.EAGAIN, unix.EINTR, unix.ETIMEDOUT:
	default: // ENOSYS, or a ledger was closed meanwhile
		time.Sleep(pace)
	}
}

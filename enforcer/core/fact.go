// SPDX-License-Identifier: Apache-2.0

package core

import "time"

// Fact is something that has happened. It is never refused. Facts that answer an effect have its Op; a second answer is ignored.
type Fact interface{ fact() }

// Made answers Make.
type Made struct {
	Op  uint64
	Err error
}

// Stored answers Store and Forget. With an error the store is as it was before.
type Stored struct {
	Op  uint64
	Err error
}

// Opened answers Listen.
type Opened struct {
	Op  uint64
	Err error
}

// Limited answers Limit and Close. With an error the ledger may have any of the limits requested since the last success.
type Limited struct {
	Op  uint64
	Err error
}

// Moved answers MoveOut and MoveIn.
type Moved struct {
	Op    uint64
	At    Residence // of its memory now. Returning: a part is on either side, its processes' calls wait, and Resume tries again
	Left  Bytes     // bytes that its processes hold on devices while their calls wait; they can become no more
	Stuck bool      // with an error: the slice's own processes are the reason
	Err   error
}

// Used is the memory that the processes of a slice hold on devices; for a pool, that its members hold on devices and on the host. The figures are
// read after Op.
type Used struct {
	Generation uint64
	Op         uint64 // of the generation's last successful Limit or Close, or its last MoveOut or MoveIn; 0 if none
	Bytes      Bytes
	Active     bool // a process called the driver since the last Used, or is in a call
}

// Empty says that a slice has no process, and gets none: its bytes are free.
type Empty struct{ Generation uint64 }

// Signalled says that the processes of an expired slice have had SIGTERM. Grace begins.
type Signalled struct{ Generation uint64 }

// Tampered says why the ledger of a slice or pool is no longer reliable.
type Tampered struct {
	Generation uint64
	Why        string
}

// Excess says why a slice is granted nothing for now: a process holds memory past the ledger. With an empty Why that has ended.
type Excess struct {
	Generation uint64
	Why        string
}

// Tick is the time since boot. It is due at least once a second; a time before the last one is ignored.
type Tick struct{ Now time.Duration }

func (Made) fact()      {}
func (Stored) fact()    {}
func (Opened) fact()    {}
func (Limited) fact()   {}
func (Moved) fact()     {}
func (Used) fact()      {}
func (Empty) fact()     {}
func (Signalled) fact() {}
func (Tampered) fact()  {}
func (Excess) fact()    {}
func (Tick) fact()      {}

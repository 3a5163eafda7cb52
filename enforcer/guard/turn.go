// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"sync/atomic"
)

// Turn serialises the operations on one slice or pool. Its owner may block on the disk or the driver, since only other operations on the
// same slice or pool wait for it.
type Turn struct {
	free  chan struct{}
	taken atomic.Uint64
}

// takings is the source of the numbers that Turn.Taken returns.
var takings atomic.Uint64

// NewTurn returns a free Turn.
func NewTurn() *Turn { return &Turn{free: make(chan struct{}, 1)} }

// Take waits for the turn until ctx ends, and then returns ctx's error.
func (t *Turn) Take(ctx context.Context) error {
	MayWait("another operation's turn")
	select {
	case t.free <- struct{}{}:
		t.taken.Store(takings.Add(1))
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wait takes the turn without a timeout.
func (t *Turn) Wait() { _ = t.Take(context.Background()) }

// TryTake takes the turn if it is free, and reports whether it did.
func (t *Turn) TryTake() bool {
	select {
	case t.free <- struct{}{}:
		t.taken.Store(takings.Add(1))
		return true
	default:
		return false
	}
}

// GoesOn records that the operation that owns the turn makes progress, so that it is not taken for hung.
func (t *Turn) GoesOn() { t.taken.Store(takings.Add(1)) }

// Give releases the turn.
func (t *Turn) Give() {
	t.taken.Store(0)
	<-t.free
}

// Taken returns the number of the operation that owns the turn, or 0 if the turn is free. Numbers increase over all turns: a later
// operation has a higher one.
func (t *Turn) Taken() uint64 { return t.taken.Load() }

// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"sync/atomic"
)

// Turn orders the operations on one thing: one of them has it at a time. It may be held over what waits, since nobody but
// such an operation waits for it.
type Turn struct {
	free  chan struct{}
	taken atomic.Uint64
}

// takings numbers what Turn.Taken returns.
var takings atomic.Uint64

// NewTurn returns a Turn that nobody has.
func NewTurn() *Turn { return &Turn{free: make(chan struct{}, 1)} }

// Take waits for the turn, or until ctx ends; then the error is ctx's.
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

// Wait takes the turn, however long that takes.
func (t *Turn) Wait() { _ = t.Take(context.Background()) }

// TryTake takes the turn if nobody has it.
func (t *Turn) TryTake() bool {
	select {
	case t.free <- struct{}{}:
		t.taken.Store(takings.Add(1))
		return true
	default:
		return false
	}
}

// GoesOn says that the operation which has the turn does not hang, though it takes long.
func (t *Turn) GoesOn() { t.taken.Store(takings.Add(1)) }

// Give ends the turn.
func (t *Turn) Give() {
	t.taken.Store(0)
	<-t.free
}

// Taken is the number of the operation that has the turn: of any two, on whatever, the later has the higher. It is 0 if nobody has it.
func (t *Turn) Taken() uint64 { return t.taken.Load() }

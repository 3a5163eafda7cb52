// SPDX-License-Identifier: Apache-2.0

package guard

import "context"

// Turn orders the operations on one thing: one of them has it at a time. It may be held over what waits, since nobody but
// such an operation waits for it.
type Turn struct{ free chan struct{} }

// NewTurn returns a Turn that nobody has.
func NewTurn() *Turn { return &Turn{make(chan struct{}, 1)} }

// Take waits for the turn, or until ctx ends; then the error is ctx's.
func (t *Turn) Take(ctx context.Context) error {
	MayWait("another operation's turn")
	select {
	case t.free <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wait takes the turn, however long that takes.
func (t *Turn) Wait() {
	MayWait("another operation's turn")
	t.free <- struct{}{}
}

// TryTake takes the turn if nobody has it.
func (t *Turn) TryTake() bool {
	select {
	case t.free <- struct{}{}:
		return true
	default:
		return false
	}
}

// Give ends the turn.
func (t *Turn) Give() { <-t.free }

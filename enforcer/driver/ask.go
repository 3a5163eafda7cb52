// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// ErrHangs says that the driver did not answer in time.
var ErrHangs = errors.New("the driver does not answer")

// Slot is for one question at a time. One that hangs keeps it.
type Slot chan struct{}

// NewSlot returns a free Slot.
func NewSlot() Slot { return make(Slot, 1) }

// Ask asks the driver something, if the slot is free or becomes so, and waits for the answer; in all for so long, and then it is
// ErrHangs. What question writes is its caller's only if there is no error.
func Ask[T any](slot Slot, timeout time.Duration, question func() (T, error)) (T, error) {
	guard.MayWait("a question to the driver")
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	var none T
	select {
	case slot <- struct{}{}:
	case <-timer.C:
		return none, ErrHangs
	}
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		value, err := question()
		<-slot
		answered <- answer{value, err}
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-timer.C:
		return none, ErrHangs
	}
}

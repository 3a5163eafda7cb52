// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// ErrHangs means that the driver did not answer in time.
var ErrHangs = errors.New("the driver does not answer")

// Slot admits one call to the driver at a time. A call that hangs keeps it.
type Slot chan struct{}

func NewSlot() Slot { return make(Slot, 1) }

// Ask calls question once the slot is free, and waits for the result. It returns ErrHangs after timeout, for both waits together. Data that
// question writes is safe to read only if there is no error.
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

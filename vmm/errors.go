// SPDX-License-Identifier: Apache-2.0

package vmm

import (
	"errors"
	"fmt"

	units "github.com/docker/go-units"
)

// What a call can be refused for. Compare with errors.Is; the types below name what was wrong.
var (
	ErrUnsupported   = errors.New("the device has no virtual memory management")
	ErrPageSize      = errors.New("bad page size")                // a *PageSizeError
	ErrCapacity      = errors.New("bad capacity")                 // of 0, or more than there are addresses
	ErrUnaligned     = errors.New("not aligned to the page size") // this and the next four: a *RangeError
	ErrEmpty         = errors.New("the range is empty")
	ErrOutOfBounds   = errors.New("out of bounds")
	ErrMapped        = errors.New("already mapped")
	ErrNotMapped     = errors.New("not mapped")
	ErrOutOfMemory   = errors.New("out of physical memory") // a *MemoryError
	ErrModelExists   = errors.New("the model exists already")
	ErrModelNotFound = errors.New("there is no such model")
	ErrClosed        = errors.New("closed")
)

// PageSizeError is a page size that the device does not have.
type PageSizeError struct {
	PageSize    uint64
	Granularity uint64 // the device's
}

func (e *PageSizeError) Error() string {
	return fmt.Sprintf("%v: %s is not accepted: a power of two is, of at least %s, that is a multiple of the device's granularity of %s",
		ErrPageSize, size(e.PageSize), size(minPageSize), size(e.Granularity))
}

func (e *PageSizeError) Unwrap() error { return ErrPageSize }

// RangeError is a range that cannot be mapped or unmapped.
type RangeError struct {
	Offset, Size uint64
	At           uint64 // the offset of the first page that is in the way, for ErrMapped and ErrNotMapped
	PageSize     uint64 // of the pool
	Capacity     uint64 // of the pool
	Err          error
}

func (e *RangeError) Error() string {
	what := fmt.Sprintf("offset %d, size %d: %v", e.Offset, e.Size, e.Err)
	switch {
	case errors.Is(e.Err, ErrUnaligned):
		return fmt.Sprintf("%s of %s", what, size(e.PageSize))
	case errors.Is(e.Err, ErrOutOfBounds):
		return fmt.Sprintf("%s: the capacity is %d", what, e.Capacity)
	case errors.Is(e.Err, ErrMapped), errors.Is(e.Err, ErrNotMapped):
		return fmt.Sprintf("%s: the page at offset %d", what, e.At)
	default:
		return what
	}
}

func (e *RangeError) Unwrap() error { return e.Err }

// MemoryError is a request for which there is no physical memory left, in bytes.
type MemoryError struct {
	Requested uint64 // what was missing, without what is left mapped in the range
	Limit     uint64 // of a Shared that has one; else the slice's quota, or the memory of the device
	Current   uint64 // what is used of it; where the driver refused: as it said just after that
	Err       error  // the driver's; nil where the limit of a Shared refused
}

func (e *MemoryError) Error() string {
	text := fmt.Sprintf("%v: %s requested, %s of %s are used", ErrOutOfMemory, size(e.Requested), size(e.Current), size(e.Limit))
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap is ErrOutOfMemory, and the driver's error.
func (e *MemoryError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrOutOfMemory}
	}
	return []error{ErrOutOfMemory, e.Err}
}

// size is exact where a person can read it: 2MiB, 3000001 bytes.
func size(bytes uint64) string {
	text := units.CustomSize("%.4g%s", float64(bytes), 1024, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"})
	if back, err := units.RAMInBytes(text); err != nil || uint64(back) != bytes {
		return fmt.Sprintf("%d bytes", bytes)
	}
	return text
}

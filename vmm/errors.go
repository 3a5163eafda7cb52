// SPDX-License-Identifier: Apache-2.0

package vmm

import (
	"errors"
	"fmt"

	units "github.com/docker/go-units"
)

// Errors that a call can return. Compare with errors.Is; the types below carry the details.
var (
	ErrUnsupported   = errors.New("the device has no virtual memory management")
	ErrPageSize      = errors.New("bad page size")                // a *PageSizeError
	ErrCapacity      = errors.New("bad capacity")                 // 0, or too large
	ErrUnaligned     = errors.New("not aligned to the page size") // ErrUnaligned to ErrNotMapped: a *RangeError
	ErrEmpty         = errors.New("the range is empty")
	ErrOutOfBounds   = errors.New("out of bounds")
	ErrMapped        = errors.New("already mapped")
	ErrNotMapped     = errors.New("not mapped")
	ErrOutOfMemory   = errors.New("out of physical memory") // a *MemoryError
	ErrModelExists   = errors.New("the model exists already")
	ErrModelNotFound = errors.New("there is no such model")
	ErrClosed        = errors.New("closed")
)

// PageSizeError reports a page size that the device does not support.
type PageSizeError struct {
	PageSize    uint64
	Granularity uint64 // of the device
}

func (e *PageSizeError) Error() string {
	return fmt.Sprintf("%v: %s is not accepted: a power of two is, of at least %s, that is a multiple of the device's granularity of %s",
		ErrPageSize, size(e.PageSize), size(minPageSize), size(e.Granularity))
}

func (e *PageSizeError) Unwrap() error { return ErrPageSize }

// RangeError reports a range that cannot be mapped or unmapped.
type RangeError struct {
	Offset, Size uint64
	At           uint64 // offset of the first offending page, for ErrMapped and ErrNotMapped
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

// MemoryError reports a request that exceeds the physical memory. All sizes are in bytes.
type MemoryError struct {
	Requested uint64 // without pages still mapped in the range by LeaveMapped
	Limit     uint64 // of the Shared if it has one; else the slice's quota or the device's memory
	Current   uint64 // used of Limit; after the driver refused: as reported just afterwards
	Err       error  // the driver's; nil if the limit of a Shared was exceeded
}

func (e *MemoryError) Error() string {
	text := fmt.Sprintf("%v: %s requested, %s of %s are used", ErrOutOfMemory, size(e.Requested), size(e.Current), size(e.Limit))
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns ErrOutOfMemory, and the driver's error if there is one.
func (e *MemoryError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrOutOfMemory}
	}
	return []error{ErrOutOfMemory, e.Err}
}

// size formats a size, with a unit only if that is exact: 2MiB, 3000001 bytes.
func size(bytes uint64) string {
	text := units.CustomSize("%.4g%s", float64(bytes), 1024, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"})
	if back, err := units.RAMInBytes(text); err != nil || uint64(back) != bytes {
		return fmt.Sprintf("%d bytes", bytes)
	}
	return text
}

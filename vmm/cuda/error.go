// SPDX-License-Identifier: Apache-2.0

package cuda

// #include "native.h"
import "C"

import "fmt"

// Result is a CUresult other than CUDA_SUCCESS.
type Result int

// OutOfMemory is what the driver answers where there is no room, and what a slice's interceptor answers beyond the quota.
const OutOfMemory Result = C.CUDA_ERROR_OUT_OF_MEMORY

// Error is the driver's name of the result, and its description.
func (r Result) Error() string {
	name := C.GoString(C.native_result_name(C.CUresult(r)))
	if name == "" {
		return fmt.Sprintf("CUDA error %d", int(r))
	}
	return fmt.Sprintf("%s (%s)", name, C.GoString(C.native_result_text(C.CUresult(r))))
}

// Error is a call of the driver that failed.
type Error struct {
	Function string // the driver's, such as cuMemCreate
	Result   Result
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Function, e.Result) }

// Unwrap is for errors.Is(err, cuda.OutOfMemory).
func (e *Error) Unwrap() error { return e.Result }

// UndoError is a call that failed half-way, and the first half could not be undone: what is mapped is not known any more.
type UndoError struct {
	Err  error
	Undo Result
}

func (e *UndoError) Error() string {
	return fmt.Sprintf("%v; what had been mapped could not be unmapped: %v", e.Err, e.Undo)
}

func (e *UndoError) Unwrap() error { return e.Err }

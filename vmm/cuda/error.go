// SPDX-License-Identifier: Apache-2.0

package cuda

// #include "native.h"
import "C"

import "fmt"

// Result is a CUresult other than CUDA_SUCCESS.
type Result int

// OutOfMemory is returned by the driver when memory is exhausted, and by a slice's interceptor beyond the quota.
const OutOfMemory Result = C.CUDA_ERROR_OUT_OF_MEMORY

// Error returns the driver's name of the result, and its description.
func (r Result) Error() string {
	name := C.GoString(C.native_result_name(C.CUresult(r)))
	if name == "" {
		return fmt.Sprintf("CUDA error %d", int(r))
	}
	return fmt.Sprintf("%s (%s)", name, C.GoString(C.native_result_text(C.CUresult(r))))
}

// Error is a failed driver call.
type Error struct {
	Function string // such as cuMemCreate
	Result   Result
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Function, e.Result) }

// Unwrap supports errors.Is(err, cuda.OutOfMemory).
func (e *Error) Unwrap() error { return e.Result }

// UndoError is a call that failed half-way and could not be undone: the mappings are unknown.
type UndoError struct {
	Err  error
	Undo Result
}

func (e *UndoError) Error() string {
	return fmt.Sprintf("%v; what had been mapped could not be unmapped: %v", e.Err, e.Undo)
}

func (e *UndoError) Unwrap() error { return e.Err }

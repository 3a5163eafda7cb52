// SPDX-License-Identifier: Apache-2.0

// Package cuda is a binding of the CUDA driver's API: the calls for virtual memory management, and what they need. It opens
// libcuda.so.1 at run time, so a program that imports it builds and starts without a driver.
//
// It owns the process's one handle of the library and the device's primary context, which it retains as the runtime API does. Every
// method makes that context current for its own duration, within one call to C: goroutines may use a [Device] at the same time
// and need not be locked to a thread, and the context that is current in a thread stays so.
//
// A failed call is an [*Error] with the function's name. errors.Is compares it with a [Result], such as [OutOfMemory].
//
// The package keeps no account of memory; package vmm, above it, does.
package cuda

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall
#cgo LDFLAGS: -ldl
#include "native.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"
)

//go:generate go run ../../interceptor/tools/digest

// Attributes of a device, and which granularity is asked for.
const (
	virtualMemorySupported = 102
	granularityMinimum     = 0
	granularityRecommended = 1
)

// ErrNoDriver says that libcuda.so.1 cannot be opened, or lacks a function.
var ErrNoDriver = errors.New("there is no CUDA driver")

// load opens the library and initialises the driver, once in a process.
var load = sync.OnceValue(func() error {
	var message [256]C.char
	if missing := C.native_load(&message[0], C.size_t(len(message))); missing != nil {
		return fmt.Errorf("cuda: %w: %s", ErrNoDriver, C.GoString(missing))
	}
	_, err := check(C.native_init())
	return err
})

// Address is one of the device's, as CUdeviceptr.
type Address uint64

// Range is the addresses from Start on.
type Range struct {
	Start Address
	Size  uint64
}

// Handle names physical memory, as CUmemGenericAllocationHandle.
type Handle uint64

// Access is what a device may do with mapped memory.
type Access int

// Memory is mapped without access until [Device.SetAccess] has opened it.
const (
	NoAccess  Access = 0
	ReadOnly  Access = 1
	ReadWrite Access = 3
)

// Device is one that CUDA shows this process, with its primary context.
type Device struct {
	ordinal C.int
	context C.CUcontext
}

// Count is how many devices there are.
func Count() (int, error) {
	if err := load(); err != nil {
		return 0, err
	}
	var n C.int
	_, err := check(C.native_count(&n))
	return int(n), err
}

// Open retains the primary context of the device of that number. Close releases it.
func Open(ordinal int) (*Device, error) {
	n, err := Count()
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= n {
		return nil, fmt.Errorf("cuda: there is no device %d: CUDA shows %d", ordinal, n)
	}
	d := &Device{ordinal: C.int(ordinal)}
	if _, err := check(C.native_open(d.ordinal, &d.context)); err != nil {
		return nil, err
	}
	return d, nil
}

// Close releases the primary context. What was created, mapped and reserved outlives it and has to be given back before.
func (d *Device) Close() error {
	_, err := check(C.native_close(d.ordinal))
	return err
}

// Name is what the driver calls the device.
func (d *Device) Name() (string, error) {
	var name [256]C.char
	_, err := check(C.native_name(d.ordinal, &name[0], C.int(len(name))))
	return C.GoString(&name[0]), err
}

// HasVirtualMemory says whether the device has virtual memory management.
func (d *Device) HasVirtualMemory() (bool, error) {
	var value C.int
	_, err := check(C.native_attribute(d.ordinal, virtualMemorySupported, &value))
	return value != 0, err
}

// Granularity is what sizes of physical memory and of ranges have to be multiples of, and what the driver recommends.
func (d *Device) Granularity() (minimum, recommended uint64, err error) {
	var least, best C.size_t
	if _, err = check(C.native_granularity(d.ordinal, granularityMinimum, &least)); err == nil {
		_, err = check(C.native_granularity(d.ordinal, granularityRecommended, &best))
	}
	return uint64(least), uint64(best), err
}

// MemoryInfo is the memory of the device and what is left of it. Inside a slice it is the quota, and what quota and card have left.
func (d *Device) MemoryInfo() (free, total uint64, err error) {
	var f, t C.size_t
	_, err = check(C.native_memory_info(d.context, &f, &t))
	return uint64(f), uint64(t), err
}

// Reserve takes addresses, and no memory.
func (d *Device) Reserve(size uint64) (Range, error) {
	var start C.CUdeviceptr
	_, err := check(C.native_reserve(d.context, C.size_t(size), &start))
	return Range{Address(start), size}, err
}

// Free gives back what Reserve took, in which nothing may be mapped.
func (d *Device) Free(r Range) error {
	_, err := check(C.native_free(d.context, C.CUdeviceptr(r.Start), C.size_t(r.Size)))
	return err
}

// Create fills the slice with handles of new physical memory of that size each. It returns how many it made; they are the caller's
// also if there is no room for more.
func (d *Device) Create(handles []Handle, size uint64) (int, error) {
	return check(C.native_create(d.context, d.ordinal, C.size_t(size), first(handles), C.size_t(len(handles))))
}

// Release gives the handles back; memory that is still mapped stays until it is unmapped. It goes on after a failure, and returns
// how many it released.
func (d *Device) Release(handles []Handle) (int, error) {
	return check(C.native_release(d.context, first(handles), C.size_t(len(handles))))
}

// Map maps physical memory of equal sizes, one after the other, over all of the range, and opens it to the device: as a whole, or
// not at all unless the error is an [*UndoError].
func (d *Device) Map(r Range, handles []Handle, access Access) error {
	if len(handles) == 0 || r.Size%uint64(len(handles)) != 0 {
		return fmt.Errorf("cuda: %d pieces of memory do not fill %d bytes evenly", len(handles), r.Size)
	}
	_, err := check(C.native_map(d.context, d.ordinal, C.CUdeviceptr(r.Start), C.size_t(r.Size/uint64(len(handles))),
		first(handles), C.size_t(len(handles)), C.int(access)))
	return err
}

// SetAccess says what the device may do with memory that is mapped in all of the range.
func (d *Device) SetAccess(r Range, access Access) error {
	_, err := check(C.native_access(d.context, d.ordinal, C.CUdeviceptr(r.Start), C.size_t(r.Size), C.int(access)))
	return err
}

// Unmap ends all mappings in the range. Nothing that the device still has to do may touch them.
func (d *Device) Unmap(r Range) error {
	_, err := check(C.native_unmap(d.context, C.CUdeviceptr(r.Start), C.size_t(r.Size)))
	return err
}

// Write copies to the device, and returns when that is done.
func (d *Device) Write(to Address, from []byte) error {
	_, err := check(C.native_write(d.context, C.CUdeviceptr(to), unsafe.Pointer(unsafe.SliceData(from)), C.size_t(len(from))))
	return err
}

// Read copies from the device, and returns when that is done.
func (d *Device) Read(to []byte, from Address) error {
	_, err := check(C.native_read(d.context, unsafe.Pointer(unsafe.SliceData(to)), C.CUdeviceptr(from), C.size_t(len(to))))
	return err
}

func first(handles []Handle) *C.CUmemGenericAllocationHandle {
	return (*C.CUmemGenericAllocationHandle)(unsafe.Pointer(unsafe.SliceData(handles)))
}

// check is how many pieces a call was done for, and why not for more.
func check(o C.struct_outcome) (int, error) {
	if o.result == C.CUDA_SUCCESS {
		return int(o.done), nil
	}
	err := error(&Error{Function: C.GoString(o.function), Result: Result(o.result)})
	if o.undo != C.CUDA_SUCCESS {
		err = &UndoError{Err: err, Undo: Result(o.undo)}
	}
	return int(o.done), err
}

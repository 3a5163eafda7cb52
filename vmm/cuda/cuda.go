// SPDX-License-Identifier: Apache-2.0

// Package cuda binds the CUDA driver's calls for virtual memory management, and a few others that these need. It opens
// libcuda.so.1 at run time, so that a program that imports it builds and starts without a driver.
//
// The package owns the process's handle of the library. A Device retains the device's primary context, as the runtime API
// does. Every method makes that context current within one call to C, and restores the previous one: goroutines may use a
// [Device] concurrently, and need not be locked to a thread.
//
// A failed call returns an [*Error] with the function's name. Compare it with a [Result], such as [OutOfMemory], by
// errors.Is.
//
// The package keeps no account of memory; package vmm does.
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

// Device attributes, and options of cuMemGetAllocationGranularity.
const (
	capabilityMajor        = 75
	capabilityMinor        = 76
	virtualMemorySupported = 102
	granularityMinimum     = 0
	granularityRecommended = 1
)

// ErrNoDriver is returned if libcuda.so.1 cannot be opened, or lacks a function.
var ErrNoDriver = errors.New("there is no CUDA driver")

var load = sync.OnceValue(func() error {
	var message [256]C.char
	if missing := C.native_load(&message[0], C.size_t(len(message))); missing != nil {
		return fmt.Errorf("cuda: %w: %s", ErrNoDriver, C.GoString(missing))
	}
	_, err := check(C.native_init())
	return err
})

// Address is a device address (CUdeviceptr).
type Address uint64

// Range is Size bytes of addresses from Start.
type Range struct {
	Start Address
	Size  uint64
}

// Handle names physical memory (CUmemGenericAllocationHandle).
type Handle uint64

// Access is what a device may do with mapped memory.
type Access int

// Mapped memory has NoAccess until [Device.Map] or [Device.SetAccess] grants more.
const (
	NoAccess  Access = 0
	ReadOnly  Access = 1
	ReadWrite Access = 3
)

// Device is a CUDA device of this process, with its primary context.
type Device struct {
	ordinal C.int
	context C.CUcontext
}

// Count returns the number of devices.
func Count() (int, error) {
	if err := load(); err != nil {
		return 0, err
	}
	var n C.int
	_, err := check(C.native_count(&n))
	return int(n), err
}

// Open retains the primary context of the device with that ordinal. Close releases it.
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

// Close releases the primary context. Memory, mappings and addresses outlive it and must be released before.
func (d *Device) Close() error {
	_, err := check(C.native_close(d.ordinal))
	return err
}

// Name returns the driver's name of the device.
func (d *Device) Name() (string, error) {
	var name [256]C.char
	_, err := check(C.native_name(d.ordinal, &name[0], C.int(len(name))))
	return C.GoString(&name[0]), err
}

// HasVirtualMemory reports whether the device has virtual memory management.
func (d *Device) HasVirtualMemory() (bool, error) {
	var value C.int
	_, err := check(C.native_attribute(d.ordinal, virtualMemorySupported, &value))
	return value != 0, err
}

// ComputeCapability returns the device's compute capability, such as 9.0.
func (d *Device) ComputeCapability() (string, error) {
	var major, minor C.int
	if _, err := check(C.native_attribute(d.ordinal, capabilityMajor, &major)); err != nil {
		return "", err
	}
	_, err := check(C.native_attribute(d.ordinal, capabilityMinor, &minor))
	return fmt.Sprintf("%d.%d", major, minor), err
}

// Granularity returns the minimum and the recommended granularity in bytes. Sizes of physical memory and of ranges must be
// multiples of the minimum.
func (d *Device) Granularity() (minimum, recommended uint64, err error) {
	var least, best C.size_t
	if _, err = check(C.native_granularity(d.ordinal, granularityMinimum, &least)); err == nil {
		_, err = check(C.native_granularity(d.ordinal, granularityRecommended, &best))
	}
	return uint64(least), uint64(best), err
}

// MemoryInfo returns the free and the total memory of the device in bytes. Inside a slice the total is the quota, and free is
// limited by both quota and device.
func (d *Device) MemoryInfo() (free, total uint64, err error) {
	var f, t C.size_t
	_, err = check(C.native_memory_info(d.context, &f, &t))
	return uint64(f), uint64(t), err
}

// Reserve reserves addresses. It takes no memory.
func (d *Device) Reserve(size uint64) (Range, error) {
	var start C.CUdeviceptr
	_, err := check(C.native_reserve(d.context, C.size_t(size), &start))
	return Range{Address(start), size}, err
}

// Free frees reserved addresses, in which nothing may be mapped.
func (d *Device) Free(r Range) error {
	_, err := check(C.native_free(d.context, C.CUdeviceptr(r.Start), C.size_t(r.Size)))
	return err
}

// Create fills handles with new physical memory of size bytes each. It returns the number created; the caller owns these even
// if the rest failed.
func (d *Device) Create(handles []Handle, size uint64) (int, error) {
	return check(C.native_create(d.context, d.ordinal, C.size_t(size), first(handles), C.size_t(len(handles))))
}

// Release releases the handles; mapped memory stays until it is unmapped. After a failure it continues with the rest. It
// returns the number released.
func (d *Device) Release(handles []Handle) (int, error) {
	return check(C.native_release(d.context, first(handles), C.size_t(len(handles))))
}

// Map maps handles of equal sizes one after the other over the whole range, and grants the device access. It maps all or
// nothing, unless the error is an [*UndoError].
func (d *Device) Map(r Range, handles []Handle, access Access) error {
	if len(handles) == 0 || r.Size%uint64(len(handles)) != 0 {
		return fmt.Errorf("cuda: %d pieces of memory do not fill %d bytes evenly", len(handles), r.Size)
	}
	_, err := check(C.native_map(d.context, d.ordinal, C.CUdeviceptr(r.Start), C.size_t(r.Size/uint64(len(handles))),
		first(handles), C.size_t(len(handles)), C.int(access)))
	return err
}

// SetAccess sets the device's access to the range, all of which must be mapped.
func (d *Device) SetAccess(r Range, access Access) error {
	_, err := check(C.native_access(d.context, d.ordinal, C.CUdeviceptr(r.Start), C.size_t(r.Size), C.int(access)))
	return err
}

// Unmap removes all mappings in the range. The device's work on them must be complete.
func (d *Device) Unmap(r Range) error {
	_, err := check(C.native_unmap(d.context, C.CUdeviceptr(r.Start), C.size_t(r.Size)))
	return err
}

// Write copies to the device, and returns when the copy is complete.
func (d *Device) Write(to Address, from []byte) error {
	_, err := check(C.native_write(d.context, C.CUdeviceptr(to), unsafe.Pointer(unsafe.SliceData(from)), C.size_t(len(from))))
	return err
}

// Read copies from the device, and returns when the copy is complete.
func (d *Device) Read(to []byte, from Address) error {
	_, err := check(C.native_read(d.context, unsafe.Pointer(unsafe.SliceData(to)), C.CUdeviceptr(from), C.size_t(len(to))))
	return err
}

func first(handles []Handle) *C.CUmemGenericAllocationHandle {
	return (*C.CUmemGenericAllocationHandle)(unsafe.Pointer(unsafe.SliceData(handles)))
}

// check returns the number of pieces done, and the error that stopped the call.
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

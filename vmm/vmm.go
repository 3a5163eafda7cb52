// SPDX-License-Identifier: Apache-2.0

// Package vmm manages pools of device memory with the CUDA driver's virtual memory API. A pool reserves addresses for its
// whole capacity, which costs no memory, and maps physical memory in pages on demand. A cache can thus grow in place without
// a copy, and other pools can use the memory it gives up.
//
// [Device.NewPool] makes a [Pool] for one user. [Device.NewShared] makes a [Shared]: named models, each with its own
// addresses, under one limit of physical memory. A [Device] also has the methods of [cuda.Device], the lower level: handles,
// ranges and access. Mapped memory can be read and written; a program that changes this with SetAccess must restore it before
// Unmap.
//
// The package works in any program with a CUDA driver. Inside a gpuslice slice the driver reports the quota as the device's
// memory, and each mapped or cached byte is charged to the quota when it is taken.
//
// All pools keep these rules:
//   - A range is mapped as a whole or not at all. It must start and end at multiples of the page size.
//   - One Unmap may cover several mapped ranges, or part of one.
//   - Contents are undefined after Map: they may be earlier data of the same process.
//   - The device's work on a range must be complete before Unmap: wait for its stream. Otherwise the driver destroys the
//     context.
//   - Unmapped pages are cached up to Options.Cache. They are released when a request of any pool of the Device would
//     otherwise fail; Device.Trim releases all of them.
//   - All methods are safe for concurrent use. Calls for one Device are serialized.
//
// The package must never hold physical memory that is neither mapped nor counted as cached.
package vmm

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gpuslice/gpuslice/vmm/cuda"
)

// minPageSize is the smallest page size of any GPU.
const minPageSize = 64 << 10

// Device is a GPU. Open it once per process: the pools of one Device release cached pages for each other.
type Device struct {
	*cuda.Device

	minimum, recommended uint64 // page sizes, in bytes

	mu     sync.Mutex // guards the fields below, and all stores and pools of the device
	stores []*store
	closed bool
}

// Open opens the device with that CUDA ordinal and retains its primary context. It returns [cuda.ErrNoDriver] without a
// driver, and [ErrUnsupported] if the device has no virtual memory management.
func Open(ordinal int) (*Device, error) {
	gpu, err := cuda.Open(ordinal)
	if err != nil {
		return nil, fmt.Errorf("vmm: open device %d: %w", ordinal, err)
	}
	d := &Device{Device: gpu}
	has, err := gpu.HasVirtualMemory()
	if err == nil && !has {
		err = ErrUnsupported
	}
	if err == nil {
		d.minimum, d.recommended, err = gpu.Granularity()
	}
	if err != nil {
		return nil, fmt.Errorf("vmm: open device %d: %w", ordinal, errors.Join(err, gpu.Close()))
	}
	return d, nil
}

// Close closes all pools of the device and releases its primary context.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	var err error
	for len(d.stores) > 0 {
		err = errors.Join(err, d.stores[0].close())
	}
	return errors.Join(err, d.Device.Close())
}

// Trim releases the cached pages of all pools, and returns the bytes released.
func (d *Device) Trim() (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.trim(^uint64(0))
}

// trim releases cached pages until at least wanted bytes are released or no cached page is left.
func (d *Device) trim(wanted uint64) (given uint64, err error) {
	for _, s := range d.stores {
		if given >= wanted {
			break
		}
		missing := wanted - given
		pages := missing / s.page
		if missing%s.page != 0 {
			pages++
		}
		n, trimErr := s.trim(int(min(pages, uint64(s.cached()))))
		given += uint64(n) * s.page
		err = errors.Join(err, trimErr)
	}
	return given, err
}

// Options configure a pool. Zero values select the defaults.
type Options struct {
	// PageSize is a power of two, at least 64 KiB, and a multiple of the device's granularity (2 MiB on an H100). The default
	// is the driver's recommendation. Larger pages map faster per byte.
	PageSize uint64
	// Cache is the maximum of unmapped bytes kept for reuse. Cached bytes count as used, also in the quota. The default is 0.
	Cache uint64
	// LeaveMapped leaves cached pages mapped in place until they are needed elsewhere: mapping them again needs no driver
	// call. An access after Unmap then does not fault.
	LeaveMapped bool
}

// PageSize returns the default page size in bytes: the driver's recommendation, but at least 64 KiB.
func (d *Device) PageSize() uint64 { return max(d.recommended, minPageSize) }

// check fills in the defaults and validates the page size.
func (d *Device) check(o Options) (Options, error) {
	if o.PageSize == 0 {
		o.PageSize = d.PageSize()
	}
	if o.PageSize&(o.PageSize-1) != 0 || o.PageSize < minPageSize || o.PageSize%d.minimum != 0 {
		return o, &PageSizeError{PageSize: o.PageSize, Granularity: d.minimum}
	}
	return o, nil
}

// SPDX-License-Identifier: Apache-2.0

// Package vmm has pools of device memory, over the CUDA driver's virtual memory management. A pool reserves addresses for all
// that it may ever hold, which costs no memory, and maps physical memory in pages where and while it is needed. So a cache grows
// in place, without a copy, and what it shrinks by others can use.
//
// [Device.NewPool] makes a [Pool] for one user. [Device.NewShared] makes a [Shared]: named models, each with addresses of its own,
// under one limit of physical memory. The methods of [cuda.Device], which a [Device] has too, are the lower level: handles, ranges and
// access. Mapped memory can be read and written; whoever changes that by SetAccess sets it back before Unmap.
//
// It works in any program with a CUDA driver. Inside a gpuslice slice the quota is what the driver says there is, and each byte that
// is mapped or kept is charged there as it is taken.
//
// What holds of all pools:
//   - A range is mapped as a whole, or not at all and nothing has changed. It has to begin and end at multiples of the page size:
//     others are refused.
//   - A range may be unmapped that was mapped by several calls, or a part of one.
//   - Contents are undefined after Map: they may be what the same process wrote there or elsewhere before.
//   - Work of the device on a range has to be over before it is unmapped: wait for its stream. The driver ends the context
//     otherwise.
//   - Pages that are unmapped are kept for reuse as far as Options.Cache says, and given back to the quota when a request of any
//     pool of the same Device would be refused. Device.Trim gives all of them back, for whoever else in the process needs memory.
//   - All methods may be called by several goroutines. Those of one Device take turns, as the driver has its calls take.
//
// The package must never hold physical memory that is neither mapped nor counted as cached.
package vmm

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gpuslice/gpuslice/vmm/cuda"
)

// minPageSize is the smallest that any GPU has.
const minPageSize = 64 << 10

// Device is a GPU, by its number as CUDA counts. Open it once in a process: pools of one Device give cached pages back for one another.
type Device struct {
	*cuda.Device

	minimum, recommended uint64 // of page sizes

	mu     sync.Mutex // guards this, and all stores and pools of the device
	stores []*store
	closed bool
}

// Open opens the device and retains its primary context. Without a driver the error is [cuda.ErrNoDriver], without virtual memory
// management [ErrUnsupported].
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

// Close closes all pools of the device, and releases its primary context.
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

// Trim gives the cached pages of all pools back to the quota, and returns how many bytes they were.
func (d *Device) Trim() (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.trim(^uint64(0))
}

// trim gives back cached pages until they are that many bytes, or none is left.
func (d *Device) trim(wanted uint64) (given uint64, err error) {
	for _, s := range d.stores {
		if given >= wanted {
			break
		}
		// Rounded up: a part of a page is given back with the whole.
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

// Options of a pool. Empty ones are the defaults.
type Options struct {
	// PageSize is a power of two, at least 64 KiB, and a multiple of the device's granularity (2 MiB on an H100). The default is
	// what the driver recommends. Larger pages are mapped faster for each byte; what is mapped is whole pages.
	PageSize uint64
	// Cache is how many bytes of unmapped pages are kept for reuse; they count as used, in the quota too. The default is none.
	Cache uint64
	// LeaveMapped has cached pages stay mapped where they were until they are needed elsewhere, so that mapping them there again
	// asks the driver nothing. Whoever uses an address after Unmap is then not told by a fault.
	LeaveMapped bool
}

// PageSize is that of a pool whose options name none, in bytes: what the driver recommends.
func (d *Device) PageSize() uint64 { return max(d.recommended, minPageSize) }

// check fills in the defaults.
func (d *Device) check(o Options) (Options, error) {
	if o.PageSize == 0 {
		o.PageSize = d.PageSize()
	}
	if o.PageSize&(o.PageSize-1) != 0 || o.PageSize < minPageSize || o.PageSize%d.minimum != 0 {
		return o, &PageSizeError{PageSize: o.PageSize, Granularity: d.minimum}
	}
	return o, nil
}

// SPDX-License-Identifier: Apache-2.0

package vmm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/vmm/cuda"
)

// store is the physical memory of one Pool, or of all models of one Shared: mapped pages and cached pages. The device's lock
// guards it.
//
// Memory is taken in this order: pages left mapped in the wanted range, cached pages, new pages. New pages are created only
// if the cache is empty, so reuse never exceeds the limit.
type store struct {
	device       *Device
	page         uint64
	leavesMapped bool
	bound        int    // maximum of cached pages
	limit        uint64 // bytes of physical memory; 0: no limit but the device's

	free      []cuda.Handle // cached pages not mapped anywhere
	pools     []*Pool
	mapped    int // pages
	left      int // cached pages left mapped, of all pools
	highWater int

	closed bool

	// Set after a driver call failed half-way: the mappings are unknown, and every later call fails.
	broken error
}

// newStore requires the device's lock.
func (d *Device) newStore(limit uint64, o Options) (*store, error) {
	if d.closed {
		return nil, ErrClosed
	}
	o, err := d.check(o)
	if err != nil {
		return nil, err
	}
	s := &store{
		device: d, page: o.PageSize, leavesMapped: o.LeaveMapped, limit: limit,
		bound: int(min(o.Cache/o.PageSize, 1<<31-1)),
	}
	d.stores = append(d.stores, s)
	return s, nil
}

func (s *store) bytes(pages int) uint64 { return uint64(pages) * s.page }
func (s *store) cached() int            { return len(s.free) + s.left }

// room returns the maximum of cached pages while that many pages are mapped.
func (s *store) room(mapped int) int {
	if s.limit == 0 {
		return s.bound
	}
	return int(min(uint64(s.bound), s.limit/s.page-min(s.limit/s.page, uint64(mapped))))
}

// take returns n handles, or none. The request already has that many other pages.
func (s *store) take(n, already int) ([]cuda.Handle, error) {
	if s.limit != 0 && uint64(s.mapped+already+n) > s.limit/s.page {
		return nil, &MemoryError{Requested: s.bytes(n), Limit: s.limit, Current: s.bytes(s.mapped + already)}
	}
	if n == 0 {
		return nil, nil
	}
	handles := make([]cuda.Handle, n)
	reused := copy(handles, s.free[max(0, len(s.free)-n):])
	s.free = s.free[:len(s.free)-reused]
	for ; reused < n && s.left > 0; reused++ {
		var err error
		if handles[reused], err = s.takeOldestLeft(); err != nil {
			s.free = append(s.free, handles[:reused]...)
			return nil, err
		}
	}
	made, err := s.create(handles[reused:])
	if err == nil {
		return handles, nil
	}
	s.free = append(s.free, handles[:reused]...)
	return nil, errors.Join(err, s.release(handles[reused:reused+made]))
}

// create fills handles with new physical memory. It returns how many it created.
func (s *store) create(handles []cuda.Handle) (made int, err error) {
	err = s.orGiveBack(func() (int, error) {
		n, err := s.device.Create(handles[made:], s.page)
		made += n
		return len(handles) - made, err
	})
	return made, err
}

// orGiveBack calls f until it does not fail for lack of memory. It trims the device's caches by the missing pages before each
// retry, and gives up when nothing is cached.
func (s *store) orGiveBack(f func() (missing int, err error)) error {
	for {
		missing, err := f()
		if !errors.Is(err, cuda.OutOfMemory) {
			return err
		}
		given, trimErr := s.device.trim(s.bytes(missing))
		if given == 0 || trimErr != nil {
			return errors.Join(err, trimErr)
		}
	}
}

// refusal turns the driver's out-of-memory error into a *MemoryError.
func (s *store) refusal(pages int, err error) error {
	if errors.Is(err, ErrOutOfMemory) || !errors.Is(err, cuda.OutOfMemory) {
		return err
	}
	free, total, infoErr := s.device.MemoryInfo()
	if infoErr != nil {
		return errors.Join(err, infoErr)
	}
	return &MemoryError{Requested: s.bytes(pages), Limit: total, Current: total - free, Err: err}
}

// takeOldestLeft unmaps the oldest page of the pool with the most pages left mapped, and returns its handle.
func (s *store) takeOldestLeft() (cuda.Handle, error) {
	from := slices.MaxFunc(s.pools, func(a, b *Pool) int { return a.leftPages - b.leftPages })
	return from.takeOldestLeft()
}

func (s *store) release(handles []cuda.Handle) error {
	if len(handles) == 0 {
		return nil
	}
	if _, err := s.device.Release(handles); err != nil {
		return s.fail(err)
	}
	return nil
}

// keep caches handles up to the bound, and releases the rest.
func (s *store) keep(handles []cuda.Handle) error {
	n := min(len(handles), max(0, s.room(s.mapped)-s.cached()))
	s.free = append(s.free, handles[:n]...)
	return s.release(handles[n:])
}

// trim releases n cached pages, those not mapped anywhere first.
func (s *store) trim(n int) (given int, err error) {
	n = min(n, s.cached())
	for i := len(s.free); i < n; i++ {
		h, err := s.takeOldestLeft()
		if err != nil {
			return given, err
		}
		s.free = append(s.free, h)
	}
	keep := len(s.free) - n
	err = s.release(s.free[keep:])
	s.free = s.free[:keep]
	if s.cached() == 0 {
		s.free = nil // frees the slice of handles too
	}
	return n, err
}

// fail marks the store broken, and returns the error for this and all later calls.
func (s *store) fail(err error) error {
	if s.broken == nil {
		s.broken = fmt.Errorf("the driver failed in the middle of a change, so no more can be mapped or unmapped here: %w", err)
	}
	return s.broken
}

func (s *store) close() error {
	s.closed, s.bound = true, 0
	var err error
	for len(s.pools) > 0 {
		err = errors.Join(err, s.pools[0].close())
	}
	_, trimErr := s.trim(s.cached())
	s.device.stores = slices.DeleteFunc(s.device.stores, func(other *store) bool { return other == s })
	return errors.Join(err, trimErr)
}

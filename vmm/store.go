// SPDX-License-Identifier: Apache-2.0

package vmm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/vmm/cuda"
)

// store is the physical memory of one Pool, or of all models of one Shared: what is mapped in its pools, and what is cached. The
// device's lock guards it.
//
// Memory is taken in this order: pages that are left mapped where they are wanted, cached pages, new ones. So there are new ones only
// if nothing is cached, and the store never holds more than its limit by reuse.
type store struct {
	device *Device
	page   uint64
	leave  bool
	bound  int    // cached pages at most
	limit  uint64 // bytes of physical memory; 0: what the device has

	free      []cuda.Handle // cached pages that are mapped nowhere
	pools     []*Pool
	mapped    int // pages
	left      int // cached pages that are left mapped, of all pools
	highWater int

	closed bool

	// A driver's call failed half-way, and what is mapped is not known any more. Nothing is served after that.
	broken error
}

// newStore: the caller holds the device's lock.
func (d *Device) newStore(limit uint64, o Options) (*store, error) {
	if d.closed {
		return nil, ErrClosed
	}
	o, err := d.check(o)
	if err != nil {
		return nil, err
	}
	s := &store{
		device: d, page: o.PageSize, leave: o.LeaveMapped, limit: limit,
		bound: int(min(o.Cache/o.PageSize, 1<<31-1)),
	}
	d.stores = append(d.stores, s)
	return s, nil
}

func (s *store) bytes(pages int) uint64 { return uint64(pages) * s.page }
func (s *store) cached() int            { return len(s.free) + s.left }

// room is how many pages may be cached beside that many mapped ones.
func (s *store) room(mapped int) int {
	if s.limit == 0 {
		return s.bound
	}
	return int(min(uint64(s.bound), s.limit/s.page-min(s.limit/s.page, uint64(mapped))))
}

// take returns n handles, or none. The request has that many other pages already.
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
		if handles[reused], err = s.recall(); err != nil {
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

// create fills in new handles, as many as there is room for.
func (s *store) create(handles []cuda.Handle) (made int, err error) {
	err = s.orGiveBack(func() (int, error) {
		n, err := s.device.Create(handles[made:], s.page)
		made += n
		return len(handles) - made, err
	})
	return made, err
}

// orGiveBack calls f until it succeeds, or none of the device's pools has anything cached that could be given back for the pages
// that f says are missing.
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

// refusal makes what the driver had no room for a *MemoryError.
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

// recall unmaps the page that was left mapped the longest in the pool with the most of them, and returns its handle.
func (s *store) recall() (cuda.Handle, error) {
	from := slices.MaxFunc(s.pools, func(a, b *Pool) int { return a.leftPages - b.leftPages })
	return from.recall()
}

// release gives physical memory back to the quota.
func (s *store) release(handles []cuda.Handle) error {
	if len(handles) == 0 {
		return nil
	}
	if _, err := s.device.Release(handles); err != nil {
		return s.fail(err)
	}
	return nil
}

// keep puts handles into the cache as far as the bound allows, and releases the rest.
func (s *store) keep(handles []cuda.Handle) error {
	n := min(len(handles), max(0, s.room(s.mapped)-s.cached()))
	s.free = append(s.free, handles[:n]...)
	return s.release(handles[n:])
}

// trim gives back that many cached pages, those first that are mapped nowhere.
func (s *store) trim(n int) (given int, err error) {
	n = min(n, s.cached())
	for i := len(s.free); i < n; i++ {
		h, err := s.recall()
		if err != nil {
			return given, err
		}
		s.free = append(s.free, h)
	}
	keep := len(s.free) - n
	err = s.release(s.free[keep:])
	s.free = s.free[:keep]
	if s.cached() == 0 {
		s.free = nil // so does the memory for the handles go back
	}
	return n, err
}

// fail notes that the driver failed half-way, and returns why nothing more is served.
func (s *store) fail(err error) error {
	if s.broken == nil {
		s.broken = fmt.Errorf("the driver failed half-way, nothing more is mapped or unmapped here: %w", err)
	}
	return s.broken
}

// close closes all pools, and gives back what is cached.
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

// SPDX-License-Identifier: Apache-2.0

package vmm

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/gpuslice/gpuslice/vmm/cuda"
)

// Pool is a range of addresses in which physical memory is mapped and unmapped.
type Pool struct {
	store  *store
	own    bool // the store belongs to this pool alone, not to a Shared
	closed bool
	space  cuda.Range
	pages  int // capacity

	// A page has a handle while it is mapped or left mapped. Its bit is set while it is mapped, and clear while it is cached.
	handles     []cuda.Handle
	bits        []uint64
	order       *order // pages left mapped, oldest first; nil without LeaveMapped
	mappedPages int
	leftPages   int
	highWater   int
}

// NewPool reserves addresses for capacity bytes, rounded up to whole pages. The capacity may exceed the device's memory:
// addresses take no memory.
func (d *Device) NewPool(capacity uint64, o Options) (*Pool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.newStore(0, o)
	if err != nil {
		return nil, fmt.Errorf("vmm: new pool: %w", err)
	}
	p, err := s.newPool(capacity)
	if err != nil {
		return nil, fmt.Errorf("vmm: new pool: %w", errors.Join(err, s.close()))
	}
	p.own = true
	return p, nil
}

func (s *store) newPool(capacity uint64) (*Pool, error) {
	pages := capacity / s.page
	if capacity%s.page != 0 {
		pages++
	}
	if pages == 0 || pages > math.MaxUint64/s.page || pages > math.MaxInt32 {
		return nil, fmt.Errorf("%w: %s are not accepted: up to %d pages of %s are", ErrCapacity, size(capacity), math.MaxInt32, size(s.page))
	}
	space, err := s.device.Reserve(pages * s.page)
	if err != nil {
		return nil, fmt.Errorf("reserve %s of addresses: %w", size(pages*s.page), err)
	}
	p := &Pool{
		store: s, space: space, pages: int(pages),
		handles: make([]cuda.Handle, pages), bits: make([]uint64, (pages+63)/64),
	}
	if s.leavesMapped {
		p.order = newOrder(p.pages)
	}
	s.pools = append(s.pools, p)
	return p, nil
}

// Base returns the address of offset 0, a multiple of the device's granularity.
func (p *Pool) Base() cuda.Address { return p.space.Start }

// PageSize returns the page size in bytes. Offsets and sizes must be multiples of it.
func (p *Pool) PageSize() uint64 { return p.store.page }

// Map maps physical memory over the whole range and returns its address. No page of the range may be mapped already. The
// error is a [*RangeError], a [*MemoryError], [ErrClosed], or a [*cuda.Error].
func (p *Pool) Map(offset, size uint64) (cuda.Address, error) {
	p.store.device.mu.Lock()
	defer p.store.device.mu.Unlock()
	address, err := p.mapRange(offset, size)
	if err != nil {
		return 0, fmt.Errorf("vmm: map: %w", err)
	}
	return address, nil
}

// Unmap unmaps the whole range, every page of which must be mapped. Memory that exceeds the cache is released. The errors are
// those of Map.
func (p *Pool) Unmap(offset, size uint64) error {
	p.store.device.mu.Lock()
	defer p.store.device.mu.Unlock()
	if err := p.unmapRange(offset, size); err != nil {
		return fmt.Errorf("vmm: unmap: %w", err)
	}
	return nil
}

// IsMapped reports whether the whole range is mapped. The range need not be aligned.
func (p *Pool) IsMapped(offset, size uint64) bool {
	p.store.device.mu.Lock()
	defer p.store.device.mu.Unlock()
	return p.isMapped(offset, size)
}

// Close unmaps everything, and releases memory and addresses. Closing again does nothing.
func (p *Pool) Close() error {
	p.store.device.mu.Lock()
	defer p.store.device.mu.Unlock()
	if p.closed {
		return nil
	}
	if err := p.store.close(); err != nil {
		return fmt.Errorf("vmm: close pool: %w", err)
	}
	return nil
}

// Stats is a snapshot of a pool.
type Stats struct {
	Capacity    uint64 // bytes of addresses
	PageSize    uint64
	MappedPages int
	MappedBytes uint64
	CachedPages int // kept for reuse; for a model of a Shared: those left mapped in its addresses
	CachedBytes uint64
	HighWater   uint64 // peak of mapped bytes
	// Fragmentation is the share of unmapped addresses outside the largest unmapped range, from 0 (a single range) to 1.
	Fragmentation float64
}

// Stats returns a snapshot. A closed pool has nothing mapped.
func (p *Pool) Stats() Stats {
	p.store.device.mu.Lock()
	defer p.store.device.mu.Unlock()
	return p.stats()
}

func (p *Pool) stats() Stats {
	cached := p.leftPages
	if p.own {
		cached = p.store.cached()
	}
	return Stats{
		Capacity: p.store.bytes(p.pages), PageSize: p.store.page,
		MappedPages: p.mappedPages, MappedBytes: p.store.bytes(p.mappedPages),
		CachedPages: cached, CachedBytes: p.store.bytes(cached),
		HighWater: p.store.bytes(p.highWater), Fragmentation: p.fragmentation(),
	}
}

func (p *Pool) fragmentation() float64 {
	all := p.pages - p.mappedPages
	if all == 0 {
		return 0
	}
	largest := 0
	for start := p.nextUnmapped(0, p.pages); start < p.pages; {
		end := p.nextMapped(start, p.pages)
		largest = max(largest, end-start)
		start = p.nextUnmapped(end, p.pages)
	}
	return 1 - float64(largest)/float64(all)
}

func (p *Pool) mapRange(offset, size uint64) (cuda.Address, error) {
	first, n, err := p.check(offset, size)
	if err != nil {
		return 0, err
	}
	if at := p.nextMapped(first, first+n); at < first+n {
		return 0, p.rangeError(offset, size, at, ErrMapped)
	}
	return p.space.Start + cuda.Address(offset), p.mapPages(first, n)
}

func (p *Pool) unmapRange(offset, size uint64) error {
	first, n, err := p.check(offset, size)
	if err != nil {
		return err
	}
	if at := p.nextUnmapped(first, first+n); at < first+n {
		return p.rangeError(offset, size, at, ErrNotMapped)
	}
	return p.unmapPages(first, n)
}

func (p *Pool) isMapped(offset, size uint64) bool {
	capacity := p.store.bytes(p.pages)
	if p.closed || size == 0 || offset >= capacity || size > capacity-offset {
		return false
	}
	first, end := int(offset/p.store.page), int((offset+size-1)/p.store.page)+1
	return p.nextUnmapped(first, end) == end
}

// check translates a range into pages. It cannot overflow: the end is computed only after the bounds are checked.
func (p *Pool) check(offset, size uint64) (first, n int, err error) {
	page, capacity := p.store.page, p.store.bytes(p.pages)
	switch {
	case p.closed:
		return 0, 0, ErrClosed
	case p.store.broken != nil:
		return 0, 0, p.store.broken
	case size == 0:
		err = ErrEmpty
	case offset%page != 0 || size%page != 0:
		err = ErrUnaligned
	case offset >= capacity || size > capacity-offset:
		err = ErrOutOfBounds
	default:
		return int(offset / page), int(size / page), nil
	}
	return 0, 0, p.rangeError(offset, size, 0, err)
}

func (p *Pool) rangeError(offset, size uint64, at int, err error) error {
	return &RangeError{Offset: offset, Size: size, At: p.store.bytes(at), PageSize: p.store.page, Capacity: p.store.bytes(p.pages), Err: err}
}

func (p *Pool) part(first, n int) cuda.Range {
	return cuda.Range{Start: p.space.Start + cuda.Address(p.store.bytes(first)), Size: p.store.bytes(n)}
}

func (p *Pool) mapPages(first, n int) error {
	s := p.store
	// Take these out of the cache first, or they could be recalled for other pages of the range.
	reused := p.takeLeft(first, n)
	handles, err := s.take(n-len(reused), len(reused))
	if err == nil {
		err = p.fill(first, n, handles)
	}
	if err != nil {
		for _, at := range reused {
			p.markLeft(at)
		}
		if s.broken == nil {
			err = errors.Join(err, s.keep(handles))
		}
		// Ask for the memory figures only after the unused handles are cached or released.
		return s.refusal(n-len(reused), err)
	}
	p.setBits(first, n, true)
	p.mappedPages += n
	p.highWater = max(p.highWater, p.mappedPages)
	s.mapped += n
	s.highWater = max(s.highWater, s.mapped)
	return nil
}

// fill maps the handles at the pages that have none: all of them, or none.
func (p *Pool) fill(first, n int, handles []cuda.Handle) error {
	used := 0
	for at, end := p.nextRun(first, first+n); at < first+n; at, end = p.nextRun(end, first+n) {
		run := handles[used : used+end-at]
		err := p.store.orGiveBack(func() (int, error) {
			return 1, p.store.device.Map(p.part(at, end-at), run, cuda.ReadWrite)
		})
		if err != nil {
			return p.unfill(first, n, handles, used, err)
		}
		used += copy(p.handles[at:end], run)
	}
	return nil
}

// unfill unmaps the handles that fill used before it failed.
func (p *Pool) unfill(first, n int, handles []cuda.Handle, used int, err error) error {
	var undo *cuda.UndoError
	if errors.As(err, &undo) {
		return p.store.fail(err)
	}
	undone := 0
	for at := first; at < first+n && undone < used; at++ {
		if p.handles[at] != handles[undone] {
			continue
		}
		undone++
		if undoErr := p.store.device.Unmap(p.part(at, 1)); undoErr != nil {
			return p.store.fail(errors.Join(err, undoErr))
		}
		p.handles[at] = 0
	}
	return err
}

func (p *Pool) nextRun(from, end int) (int, int) {
	for from < end && p.handles[from] != 0 {
		from++
	}
	to := from
	for to < end && p.handles[to] == 0 {
		to++
	}
	return from, to
}

func (p *Pool) unmapPages(first, n int) error {
	s := p.store
	if s.leavesMapped {
		return p.leavePages(first, n)
	}
	if err := s.device.Unmap(p.part(first, n)); err != nil {
		return err
	}
	handles := p.handles[first : first+n]
	p.forget(first, n)
	err := s.keep(handles)
	clear(handles)
	return err
}

func (p *Pool) forget(first, n int) {
	p.setBits(first, n, false)
	p.mappedPages -= n
	p.store.mapped -= n
}

// leavePages caches n mapped pages. It leaves the last of them mapped, up to the cache's bound, and releases the others and
// the oldest cached pages beyond the bound.
func (p *Pool) leavePages(first, n int) error {
	s := p.store
	room := s.room(s.mapped - n)
	if excess := n - room; excess > 0 {
		if err := s.device.Unmap(p.part(first, excess)); err != nil {
			return err
		}
		handles := p.handles[first : first+excess]
		p.forget(first, excess)
		err := s.release(handles)
		clear(handles)
		if err != nil {
			return err
		}
		first, n = first+excess, room
	}
	p.forget(first, n)
	for at := first; at < first+n; at++ {
		p.markLeft(at)
	}
	_, err := s.trim(max(0, s.cached()-room))
	return err
}

func (p *Pool) markLeft(at int) {
	p.order.push(at)
	p.leftPages++
	p.store.left++
}

// takeLeft takes the pages left mapped in a range out of the cache, and returns them.
func (p *Pool) takeLeft(first, n int) (pages []int) {
	if p.leftPages == 0 {
		return nil
	}
	for at := first; at < first+n; at++ {
		if p.handles[at] == 0 {
			continue
		}
		pages = append(pages, at)
		p.order.remove(at)
		p.leftPages--
		p.store.left--
	}
	return pages
}

// takeOldestLeft unmaps the page left mapped the longest, and returns its handle.
func (p *Pool) takeOldestLeft() (cuda.Handle, error) {
	at := p.order.oldest()
	if err := p.store.device.Unmap(p.part(at, 1)); err != nil {
		return 0, err
	}
	p.order.remove(at)
	p.leftPages--
	p.store.left--
	h := p.handles[at]
	p.handles[at] = 0
	return h, nil
}

// close unmaps all pages and frees the addresses. The store caches or releases the handles.
func (p *Pool) close() error {
	s := p.store
	var err error
	var handles []cuda.Handle
	for at := 0; at < p.pages; at++ {
		if p.handles[at] == 0 {
			continue
		}
		end := at
		for end < p.pages && p.handles[end] != 0 {
			end++
		}
		if unmapErr := s.device.Unmap(p.part(at, end-at)); unmapErr != nil {
			err = errors.Join(err, unmapErr)
		}
		handles = append(handles, p.handles[at:end]...)
		at = end
	}
	s.mapped -= p.mappedPages
	s.left -= p.leftPages
	p.mappedPages, p.leftPages = 0, 0
	p.closed = true
	p.handles, p.bits, p.order = nil, make([]uint64, len(p.bits)), nil
	s.pools = slices.DeleteFunc(s.pools, func(other *Pool) bool { return other == p })
	return errors.Join(err, s.keep(handles), s.device.Free(p.space))
}

func (p *Pool) setBits(first, n int, mapped bool) {
	for at := first; at < first+n; {
		word, low := at/64, at%64
		count := min(64-low, first+n-at)
		mask := (^uint64(0) >> (64 - count)) << low
		if mapped {
			p.bits[word] |= mask
		} else {
			p.bits[word] &^= mask
		}
		at += count
	}
}

// nextMapped returns the first mapped page in [from, end), or end.
func (p *Pool) nextMapped(from, end int) int { return p.next(from, end, 0) }

func (p *Pool) nextUnmapped(from, end int) int { return p.next(from, end, ^uint64(0)) }

func (p *Pool) next(from, end int, flip uint64) int {
	for from < end {
		if word := (p.bits[from/64] ^ flip) >> (from % 64); word != 0 {
			return min(end, from+bits.TrailingZeros64(word))
		}
		from = (from/64 + 1) * 64
	}
	return end
}

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
	own    bool // the store is of this pool alone, not of a Shared
	closed bool
	space  cuda.Range
	pages  int // of the addresses

	// A page has a handle while it is mapped, and its bit is set; without the bit it is cached, and left mapped.
	handles     []cuda.Handle
	bits        []uint64
	order       *order // of pages left mapped, the oldest first; nil if none ever are
	mappedPages int
	leftPages   int
	highWater   int
}

// NewPool reserves addresses for the capacity, rounded up to whole pages. It may be more than the device has: it takes no memory.
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
	if s.leave {
		p.order = newOrder(p.pages)
	}
	s.pools = append(s.pools, p)
	return p, nil
}

// Base is the address of offset 0. It is a multiple of the device's granularity.
func (p *Pool) Base() cuda.Address { return p.space.Start }

// PageSize is what offsets and sizes are multiples of.
func (p *Pool) PageSize() uint64 { return p.store.page }

// Map maps physical memory at all of the range and returns its address. No page of it may be mapped. The error is a [*RangeError],
// a [*MemoryError], [ErrClosed], or a [*cuda.Error].
func (p *Pool) Map(offset, size uint64) (cuda.Address, error) {
	p.store.device.mu.Lock()
	defer p.store.device.mu.Unlock()
	address, err := p.mapRange(offset, size)
	if err != nil {
		return 0, fmt.Errorf("vmm: map: %w", err)
	}
	return address, nil
}

// Unmap gives up the physical memory at all of the range, every page of which has to be mapped. What the cache has no room for is
// given back to the quota. The errors are as for Map.
func (p *Pool) Unmap(offset, size uint64) error {
	p.store.device.mu.Lock()
	defer p.store.device.mu.Unlock()
	if err := p.unmapRange(offset, size); err != nil {
		return fmt.Errorf("vmm: unmap: %w", err)
	}
	return nil
}

// IsMapped says whether all of the range is mapped; it need not be aligned.
func (p *Pool) IsMapped(offset, size uint64) bool {
	p.store.device.mu.Lock()
	defer p.store.device.mu.Unlock()
	return p.isMapped(offset, size)
}

// Close unmaps everything, and gives the memory and the addresses back. Closing a second time does nothing.
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

// Stats are of one instant.
type Stats struct {
	Capacity    uint64 // bytes of addresses
	PageSize    uint64
	MappedPages int
	MappedBytes uint64
	CachedPages int // kept for reuse; of a model of a Shared: those left mapped in its addresses
	CachedBytes uint64
	HighWater   uint64 // the most bytes that were mapped at a time
	// Fragmentation is which part of the unmapped addresses lies outside of the largest unmapped range: 0 if they are one range.
	Fragmentation float64
}

// Stats of a closed pool are of nothing mapped.
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

// check translates a range into pages. Nothing here can overflow: the end is never computed before it is known to be within the
// capacity.
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

// part is the addresses of n pages.
func (p *Pool) part(first, n int) cuda.Range {
	return cuda.Range{Start: p.space.Start + cuda.Address(p.store.bytes(first)), Size: p.store.bytes(n)}
}

// mapPages maps n pages, none of which is mapped.
func (p *Pool) mapPages(first, n int) error {
	s := p.store
	// So that they are not taken for other pages of the range.
	reused := p.unleave(first, n)
	handles, err := s.take(n-len(reused), len(reused))
	if err == nil {
		err = p.fill(first, n, handles)
	}
	if err != nil {
		for _, at := range reused {
			p.leave(at)
		}
		if s.broken == nil {
			err = errors.Join(err, s.keep(handles))
		}
		// The figures are asked for now, when what was taken for nothing is given back.
		return s.refusal(n-len(reused), err)
	}
	p.setBits(first, n, true)
	p.mappedPages += n
	p.highWater = max(p.highWater, p.mappedPages)
	s.mapped += n
	s.highWater = max(s.highWater, s.mapped)
	return nil
}

// fill maps the handles where pages have none: all of them, or none.
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

// unfill unmaps the handles that fill has used, since the next could not be mapped.
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

// nextRun is the next range of pages without handles.
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

// unmapPages gives up n pages, all of which are mapped.
func (p *Pool) unmapPages(first, n int) error {
	s := p.store
	if s.leave {
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

// forget: the pages are not mapped any more, for those who ask.
func (p *Pool) forget(first, n int) {
	p.setBits(first, n, false)
	p.mappedPages -= n
	p.store.mapped -= n
}

// leavePages gives up n mapped pages but has the last of them stay, as many as the cache is for; those that stayed longest go for
// them.
func (p *Pool) leavePages(first, n int) error {
	s := p.store
	room := s.room(s.mapped - n)
	if over := n - room; over > 0 {
		if err := s.device.Unmap(p.part(first, over)); err != nil {
			return err
		}
		handles := p.handles[first : first+over]
		p.forget(first, over)
		err := s.release(handles)
		clear(handles)
		if err != nil {
			return err
		}
		first, n = first+over, room
	}
	p.forget(first, n)
	for at := first; at < first+n; at++ {
		p.leave(at)
	}
	_, err := s.trim(max(0, s.cached()-room))
	return err
}

func (p *Pool) leave(at int) {
	p.order.push(at)
	p.leftPages++
	p.store.left++
}

// unleave takes the pages that are left mapped in a range out of the cache, and returns them.
func (p *Pool) unleave(first, n int) (pages []int) {
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

// recall unmaps the page that was left mapped the longest, and returns its handle.
func (p *Pool) recall() (cuda.Handle, error) {
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

// close gives all up; the store has what it caches.
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

// setBits says of n pages whether they are mapped.
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

// nextMapped is the first mapped page in [from, end), or end.
func (p *Pool) nextMapped(from, end int) int { return p.next(from, end, 0) }

// nextUnmapped is the first page in [from, end) that is not mapped, or end.
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

// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"slices"
	"sort"

	"github.com/gpuslice/gpuslice/vmm"
	"github.com/gpuslice/gpuslice/vmm/cuda"
)

const pieceAlignment = 256 // the driver's alignment

// reserve allocates from a block taken when the session starts. A freed piece may be reused at once: work of its former owner
// precedes the next owner's in the stream.
type reserve struct {
	start cuda.Address
	free  []piece // by offset; no two are adjacent
	sizes map[cuda.Address]uint64
}

type piece struct{ offset, size uint64 }

func newReserve(start cuda.Address, size uint64) *reserve {
	return &reserve{start: start, free: []piece{{0, size}}, sizes: map[cuda.Address]uint64{}}
}

// take allocates from the smallest piece that is large enough.
func (r *reserve) take(size uint64) (cuda.Address, bool) {
	size = (size + pieceAlignment - 1) &^ uint64(pieceAlignment-1)
	best := -1
	for i, p := range r.free {
		if p.size >= size && (best < 0 || p.size < r.free[best].size) {
			best = i
		}
	}
	if best < 0 || size == 0 {
		return 0, false
	}
	p := &r.free[best]
	address := r.start + cuda.Address(p.offset)
	r.sizes[address] = size
	p.offset += size
	if p.size -= size; p.size == 0 {
		r.free = slices.Delete(r.free, best, best+1)
	}
	return address, true
}

func (r *reserve) give(address cuda.Address) {
	given := piece{uint64(address - r.start), r.sizes[address]}
	delete(r.sizes, address)
	i := sort.Search(len(r.free), func(i int) bool { return r.free[i].offset > given.offset })
	r.free = slices.Insert(r.free, i, given)
	for _, left := range []int{i, i - 1} { // merge with the next piece, then with the previous one
		if left >= 0 && left+1 < len(r.free) && r.free[left].offset+r.free[left].size == r.free[left+1].offset {
			r.free[left].size += r.free[left+1].size
			r.free = slices.Delete(r.free, left+1, left+2)
		}
	}
}

// reserved is a context that takes all its memory at the start: one pool, fully mapped.
type reserved struct {
	*context
	memory *reserve
}

func openReserved(ordinal int, vram uint64) (*reserved, error) {
	device, err := vmm.Open(ordinal)
	if err != nil {
		return nil, err
	}
	r, err := reserveOn(device, vram)
	if err != nil {
		return nil, errors.Join(err, device.Close())
	}
	return r, nil
}

func reserveOn(device *vmm.Device, vram uint64) (*reserved, error) {
	page := device.PageSize()
	size := (vram + page - 1) / page * page
	pool, err := device.NewPool(size, vmm.Options{PageSize: size & -size}) // the largest possible: mapping time is per page
	if err != nil {
		return nil, err
	}
	start, err := pool.Map(0, size)
	if err != nil {
		return nil, err
	}
	c, err := newContext(device.Device)
	if err != nil {
		return nil, err
	}
	return &reserved{context: c, memory: newReserve(start, size)}, nil
}

func (r *reserved) Alloc(bytes uint64) (cuda.Address, error) {
	start, ok := r.memory.take(bytes)
	if !ok { // too fragmented
		return 0, &cuda.Error{Function: "reserved memory", Result: cuda.OutOfMemory}
	}
	if err := r.Set(start, 0, bytes); err != nil {
		r.memory.give(start)
		return 0, err
	}
	return start, nil
}

func (r *reserved) Free(start cuda.Address) error {
	r.memory.give(start)
	return nil
}

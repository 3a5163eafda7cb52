// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"math/rand/v2"
	"testing"

	"github.com/gpuslice/gpuslice/vmm/cuda"
)

func TestReservedMemoryIsAllocatedOnceAndMergedWhenFreed(t *testing.T) {
	const start, size = 0x7f0000000000, 1 << 20
	r := newReserve(start, size)
	held := map[cuda.Address]uint64{}
	var order []cuda.Address
	for i := range 20000 {
		if i%3 != 2 || len(order) == 0 {
			want := 1 + rand.Uint64N(8000)
			at, ok := r.take(want)
			if !ok {
				continue
			}
			if at%pieceAlignment != 0 || at < start || uint64(at-start)+want > size {
				t.Fatalf("%d bytes at %#x", want, at)
			}
			for other, bytes := range held {
				if at < other+cuda.Address(bytes) && other < at+cuda.Address(want) {
					t.Fatalf("%d bytes at %#x overlap %d at %#x", want, at, bytes, other)
				}
			}
			held[at] = want
			order = append(order, at)
			continue
		}
		n := rand.IntN(len(order))
		r.give(order[n])
		delete(held, order[n])
		order = append(order[:n], order[n+1:]...)
	}
	for _, at := range order {
		r.give(at)
	}
	if len(r.free) != 1 || r.free[0] != (piece{0, size}) || len(r.sizes) != 0 {
		t.Errorf("what is free is %v", r.free)
	}
	if _, ok := r.take(size + 1); ok {
		t.Error("more is given than there is")
	}
	if at, ok := r.take(size); !ok || at != start {
		t.Error("all of it is not given")
	}
}

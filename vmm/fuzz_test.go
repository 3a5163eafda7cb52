// SPDX-License-Identifier: Apache-2.0

package vmm

import (
	"encoding/binary"
	"errors"
	"testing"
)

// model is the simplest implementation of a pool's promise: which pages are mapped.
type model struct {
	mapped [64]bool
	limit  int // pages
}

func (m *model) pages() (n int) {
	for _, r := range m.mapped {
		if r {
			n++
		}
	}
	return n
}

// change applies Map or Unmap to the model, and returns the expected error.
func (m *model) change(offset, size uint64, to bool) error {
	switch {
	case size == 0:
		return ErrEmpty
	case offset%page != 0 || size%page != 0:
		return ErrUnaligned
	case offset/page >= uint64(len(m.mapped)) || size/page > uint64(len(m.mapped))-offset/page:
		return ErrOutOfBounds
	}
	part := m.mapped[offset/page : offset/page+size/page]
	for _, r := range part {
		if r == to && to {
			return ErrMapped
		} else if r == to {
			return ErrNotMapped
		}
	}
	if to && m.pages()+len(part) > m.limit {
		return ErrOutOfMemory
	}
	for i := range part {
		part[i] = to
	}
	return nil
}

// FuzzPool checks two models under one limit against model. A step is three bytes with small numbers of pages; if the first
// is 200 or more, 16 bytes follow with an arbitrary offset and size.
func FuzzPool(f *testing.F) {
	f.Add(true, []byte{0, 0, 10, 1, 2, 3, 0, 4, 1, 3, 40, 0, 1, 0, 2})
	f.Add(false, []byte{0, 60, 3, 4, 60, 60, 2, 61, 1, 201, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0, 32, 0, 0, 0, 0, 0})
	d, err := Open(0)
	must(f, err)
	before := used(f, d)
	f.Fuzz(func(t *testing.T, leave bool, steps []byte) {
		const limit, cache = 40, 7
		s, err := d.NewShared(limit*page, Options{PageSize: page, Cache: cache * page, LeaveMapped: leave})
		must(t, err)
		names := []string{"a", "b"}
		models := map[string]*model{}
		for _, name := range names {
			models[name] = new(model)
			must(t, s.Register(name, uint64(len(models[name].mapped))*page))
		}
		now := limit
		for len(steps) >= 3 {
			kind, offset, size := steps[0], uint64(steps[1])*page, uint64(steps[2]%24)*page
			steps = steps[3:]
			if kind >= 200 && len(steps) >= 16 {
				offset, size = binary.LittleEndian.Uint64(steps), binary.LittleEndian.Uint64(steps[8:])
				steps = steps[16:]
			}
			name := names[kind>>1&1]
			own, other := models[name], models[names[1-kind>>1&1]]
			own.limit = now - other.pages()
			switch {
			case kind&12 == 12:
				now = 1 + int(size/page%limit)
				must(t, s.SetLimit(uint64(now)*page))
			case kind&1 == 0:
				_, err := s.Map(name, offset, size)
				if want := own.change(offset, size, true); !errors.Is(err, want) {
					t.Fatalf("map %s %#x %#x: %v, not %v", name, offset, size, err, want)
				}
			default:
				err := s.Unmap(name, offset, size)
				if want := own.change(offset, size, false); !errors.Is(err, want) {
					t.Fatalf("unmap %s %#x %#x: %v, not %v", name, offset, size, err, want)
				}
			}
			stats, err := s.Stats()
			must(t, err)
			for _, name := range names {
				m := models[name]
				if stats.Models[name].MappedPages != m.pages() {
					t.Fatalf("the pool reports %+v, but %d pages of %s are mapped", stats, m.pages(), name)
				}
				for i, is := range m.mapped {
					if s.IsMapped(name, uint64(i)*page, page) != is {
						t.Fatalf("page %d of %s is mapped: %t", i, name, is)
					}
				}
			}
			all := own.pages() + other.pages()
			if stats.CachedBytes > cache*page || stats.CachedBytes > 0 && all+int(stats.CachedBytes/page) > now {
				t.Fatalf("the pool reports %+v, but the limit is %d pages", stats, now)
			}
			if taken := used(t, d) - before; taken != uint64(all)*page+stats.CachedBytes {
				t.Fatalf("%d bytes are taken: %+v", taken, stats)
			}
		}
		must(t, s.Close())
		if taken := used(t, d) - before; taken != 0 {
			t.Fatalf("%d bytes are left", taken)
		}
	})
}

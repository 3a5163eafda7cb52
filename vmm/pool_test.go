// SPDX-License-Identifier: Apache-2.0

package vmm

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/gpuslice/gpuslice/test/simulated"
	"github.com/gpuslice/gpuslice/vmm/cuda"
)

const page = 2 * mib

var pages2M = Options{PageSize: page}

func TestPoolUsesOnlyMappedMemory(t *testing.T) {
	d := open(t)
	before := used(t, d)
	p := newPool(t, d, 128*gib+1, pages2M)
	check := func(want uint64) {
		t.Helper()
		if got := used(t, d) - before; got != want {
			t.Errorf("%d bytes are taken of the card, not %d", got, want)
		}
		if s := p.Stats(); s.MappedBytes+s.CachedBytes != want {
			t.Errorf("the pool says %+v, not %d", s, want)
		}
	}
	if s := p.Stats(); s.Capacity != 128*gib+page || s.PageSize != page || p.PageSize() != page || uint64(p.Base())%page != 0 {
		t.Errorf("%+v, base %#x", s, p.Base())
	}
	check(0)
	mustMap(t, p, 127*gib, gib)
	check(gib)
	mustMap(t, p, 128*gib, page) // in the last, rounded-up page
	check(gib + page)
	must(t, p.Unmap(127*gib+page, gib)) // spans two mapped ranges
	check(page)
	if !p.IsMapped(127*gib, page) || p.IsMapped(127*gib, page+1) || p.IsMapped(127*gib+page, 1) || !p.IsMapped(127*gib+5, 1) {
		t.Error("IsMapped is wrong")
	}
	must(t, p.Close())
	check(0)
	if _, err := p.Map(0, page); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if p.IsMapped(127*gib, page) {
		t.Error("a closed pool has something mapped")
	}
}

func TestMappedMemoryHoldsWhatIsWritten(t *testing.T) {
	for _, leave := range []bool{false, true} {
		d := open(t)
		p := newPool(t, d, gib, Options{PageSize: page, Cache: 8 * mib, LeaveMapped: leave})
		for round := range 3 {
			address, err := p.Map(512*mib, 8*mib)
			must(t, err)
			want := bytes.Repeat([]byte{byte(round + 1), 7}, mib)
			must(t, d.Write(address+page-mib, want)) // across a page boundary
			got := make([]byte, len(want))
			must(t, d.Read(got, address+page-mib))
			if !bytes.Equal(got, want) {
				t.Fatal("other bytes are read than were written")
			}
			must(t, p.Unmap(512*mib, 8*mib))
		}
	}
}

func TestBadRangesAreNamed(t *testing.T) {
	d := open(t)
	p := newPool(t, d, 16*page, pages2M)
	mustMap(t, p, 2*page, 3*page)
	for _, c := range []struct {
		offset, size uint64
		unmap        bool
		want         error
		at           uint64
	}{
		{0, 0, false, ErrEmpty, 0},
		{1, page, false, ErrUnaligned, 0},
		{0, page + 1, false, ErrUnaligned, 0},
		{16 * page, page, false, ErrOutOfBounds, 0},
		{15 * page, 2 * page, false, ErrOutOfBounds, 0},
		{math.MaxUint64 - page + 1, page, false, ErrOutOfBounds, 0},
		{page, math.MaxUint64 - page + 1, false, ErrOutOfBounds, 0},
		{math.MaxUint64 - page + 1, math.MaxUint64 - page + 1, false, ErrOutOfBounds, 0},
		{math.MaxUint64, math.MaxUint64, false, ErrUnaligned, 0},
		{0, 3 * page, false, ErrMapped, 2 * page},
		{4 * page, page, false, ErrMapped, 4 * page},
		{0, 0, true, ErrEmpty, 0},
		{page / 2, page, true, ErrUnaligned, 0},
		{page, math.MaxUint64 - page + 1, true, ErrOutOfBounds, 0},
		{2 * page, 4 * page, true, ErrNotMapped, 5 * page},
		{0, page, true, ErrNotMapped, 0},
	} {
		var err error
		if c.unmap {
			err = p.Unmap(c.offset, c.size)
		} else {
			_, err = p.Map(c.offset, c.size)
		}
		var ranged *RangeError
		if !errors.As(err, &ranged) || !errors.Is(err, c.want) || ranged.At != c.at || ranged.Offset != c.offset || ranged.Size != c.size {
			t.Errorf("%+v: %v", c, err)
		}
		if s := p.Stats(); s.MappedBytes != 3*page || !p.IsMapped(2*page, 3*page) {
			t.Fatalf("%+v: after it: %+v", c, s)
		}
	}
}

func TestBadPageSizesAndCapacitiesAreNamed(t *testing.T) {
	d := open(t)
	for _, size := range []uint64{1, 4096, 64 << 10, 3 * mib, page + 1, 6 * mib, math.MaxUint64} {
		_, err := d.NewPool(gib, Options{PageSize: size})
		var bad *PageSizeError
		if !errors.As(err, &bad) || !errors.Is(err, ErrPageSize) || bad.PageSize != size || bad.Granularity != page {
			t.Errorf("page size %d: %v", size, err)
		}
	}
	for _, capacity := range []uint64{0, math.MaxUint64, math.MaxUint64 - page} {
		if _, err := d.NewPool(capacity, pages2M); !errors.Is(err, ErrCapacity) {
			t.Errorf("capacity %d: %v", capacity, err)
		}
	}
	var refused *cuda.Error
	if _, err := d.NewPool(1<<50, pages2M); !errors.As(err, &refused) || refused.Function != "cuMemAddressReserve" {
		t.Errorf("more addresses than there are: %v", err)
	}
	p := newPool(t, d, 1, Options{})
	if s := p.Stats(); s.Capacity != page || s.PageSize != page {
		t.Errorf("the defaults are %+v", s)
	}
	p = newPool(t, d, gib, Options{PageSize: 32 * mib})
	mustMap(t, p, 32*mib, 64*mib)
}

func TestOutOfMemoryNamesTheFiguresAndChangesNothing(t *testing.T) {
	for _, leave := range []bool{false, true} {
		d := open(t)
		p := newPool(t, d, 256*gib, Options{PageSize: 512 * mib, Cache: gib, LeaveMapped: leave})
		mustMap(t, p, gib, 2*gib)
		must(t, p.Unmap(gib, gib)) // cached
		free, total, err := d.MemoryInfo()
		must(t, err)
		fits := (free + gib) / (512 * mib) * (512 * mib)
		_, err = p.Map(4*gib, fits+512*mib)
		var memory *MemoryError
		if !errors.As(err, &memory) || !errors.Is(err, ErrOutOfMemory) || !errors.Is(err, cuda.OutOfMemory) {
			t.Fatal(err)
		}
		if memory.Requested != fits+512*mib || memory.Limit != total || memory.Current != used(t, d) {
			t.Errorf("%+v of %d, %d used", memory, total, used(t, d))
		}
		if s := p.Stats(); s.MappedBytes != gib || used(t, d) != total-free-gib+s.CachedBytes {
			t.Errorf("%+v, %d were free and %d are used", s, free, used(t, d))
		}
		mustMap(t, p, 4*gib, fits)
		must(t, p.Close())
	}
}

func TestPagesAreKeptUpToTheBound(t *testing.T) {
	for _, leave := range []bool{false, true} {
		d := open(t)
		before := used(t, d)
		p := newPool(t, d, gib, Options{PageSize: page, Cache: 8 * page, LeaveMapped: leave})
		check := func(mapped, cached int) {
			t.Helper()
			if s := p.Stats(); s.MappedPages != mapped || s.CachedPages != cached || used(t, d)-before != uint64(mapped+cached)*page {
				t.Errorf("the pool reports %+v and uses %d bytes: want %d pages mapped and %d cached", s, used(t, d)-before, mapped, cached)
			}
		}
		mustMap(t, p, 0, 32*page)
		check(32, 0)
		must(t, p.Unmap(0, 4*page))
		check(28, 4)
		must(t, p.Unmap(4*page, 12*page))
		check(16, 8)
		mustMap(t, p, 100*page, 6*page) // all from the cache
		check(22, 2)
		mustMap(t, p, 12*page, 4*page) // two of them left mapped in place, if leave
		check(26, 0)
		must(t, p.Unmap(100*page, 6*page))
		given, err := d.Trim()
		must(t, err)
		if given != 6*page {
			t.Errorf("%d bytes were given back", given)
		}
		check(20, 0)
		if s := p.Stats(); s.HighWater != 32*page {
			t.Errorf("the high-water mark is %d", s.HighWater)
		}
		must(t, p.Close())
	}
}

// Pages left mapped are recalled oldest first; a page that was mapped again is not recalled.
func TestPagesLeftMappedAreTakenInTurn(t *testing.T) {
	d := open(t)
	p := newPool(t, d, gib, Options{PageSize: page, Cache: 4 * page, LeaveMapped: true})
	mustMap(t, p, 0, 4*page)
	for _, at := range []uint64{2, 0, 3, 1} {
		must(t, p.Unmap(at*page, page))
	}
	mustMap(t, p, 0, page)
	mustMap(t, p, 100*page, page)
	for at, want := range []bool{true, true, false, true} {
		if got := p.handles[at] != 0; got != want {
			t.Errorf("page %d has memory: %t", at, got)
		}
	}
}

func TestAPoolTakesAnothersCachedMemory(t *testing.T) {
	for _, leave := range []bool{false, true} {
		d := open(t)
		big := Options{PageSize: gib, Cache: 1 << 40, LeaveMapped: leave}
		keeps := newPool(t, d, 256*gib, big)
		free, _, err := d.MemoryInfo()
		must(t, err)
		fits := free / gib * gib
		mustMap(t, keeps, 0, fits)
		must(t, keeps.Unmap(0, fits))
		wants := newPool(t, d, 256*gib, Options{PageSize: page})
		mustMap(t, wants, 0, 3*gib+page)
		missing := 3*gib + page - free%gib/page*page
		if s := keeps.Stats(); s.CachedBytes != fits-(missing+gib-1)/gib*gib {
			t.Errorf("the pool reports %+v; %d bytes were missing", s, missing)
		}
		must(t, wants.Close())
		must(t, keeps.Close())
	}
}

func TestFragmentation(t *testing.T) {
	d := open(t)
	p := newPool(t, d, 100*page, pages2M)
	if f := p.Stats().Fragmentation; f != 0 {
		t.Error(f)
	}
	mustMap(t, p, 20*page, 20*page)
	if f := p.Stats().Fragmentation; f != 0.25 { // 20 and 60 pages
		t.Error(f)
	}
	mustMap(t, p, 0, 20*page)
	if f := p.Stats().Fragmentation; f != 0 {
		t.Error(f)
	}
	mustMap(t, p, 40*page, 60*page)
	if f := p.Stats().Fragmentation; f != 0 {
		t.Error(f)
	}
}

func TestPoolsAreSafeForGoroutines(t *testing.T) {
	d := open(t)
	before := used(t, d)
	p := newPool(t, d, 64*gib, Options{PageSize: page, Cache: 16 * page, LeaveMapped: true})
	q := newPool(t, d, 64*gib, Options{PageSize: page, Cache: 16 * page})
	var wait sync.WaitGroup
	for worker := range uint64(8) {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(1, worker))
			pool, own := p, worker*gib
			if worker%2 == 1 {
				pool = q
			}
			for range 200 {
				offset, size := own+random.Uint64N(200)*page, (1+random.Uint64N(20))*page
				if _, err := pool.Map(offset, size); err != nil {
					t.Error(err)
				}
				if !pool.IsMapped(offset, size) {
					t.Error("what was mapped is not")
				}
				if err := pool.Unmap(offset, size); err != nil {
					t.Error(err)
				}
				if random.IntN(20) == 0 {
					if _, err := d.Trim(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	// These goroutines race for one range, which one of them holds at a time.
	for range 4 {
		wait.Go(func() {
			for range 200 {
				_, err := p.Map(32*gib, 4*page)
				if errors.Is(err, ErrMapped) {
					continue
				}
				if err == nil {
					err = p.Unmap(32*gib, 4*page)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	if held := p.Stats().CachedBytes + q.Stats().CachedBytes; used(t, d)-before != held || held > 32*page {
		t.Errorf("the pool uses %d bytes, but %d are cached", used(t, d)-before, held)
	}
}

func TestClosingADeviceClosesItsPools(t *testing.T) {
	watch := open(t)
	d, err := Open(0)
	must(t, err)
	before := used(t, watch)
	p, err := d.NewPool(gib, Options{Cache: gib, LeaveMapped: true})
	must(t, err)
	s, err := d.NewShared(gib, Options{})
	must(t, err)
	must(t, s.Register("model", gib))
	mustMap(t, p, 0, 64*mib)
	must(t, p.Unmap(0, 32*mib))
	_, err = s.Map("model", 0, 64*mib)
	must(t, err)
	must(t, d.Close())
	must(t, d.Close())
	must(t, p.Close())
	must(t, s.Close())
	if now := used(t, watch); now != before {
		t.Errorf("%d bytes are left", now-before)
	}
	if _, err := p.Map(0, page); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := s.Register("another", gib); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := d.NewPool(gib, Options{}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestUnknownDeviceIsAnError(t *testing.T) {
	for _, ordinal := range []int{-1, 1 << 20} {
		if _, err := Open(ordinal); err == nil {
			t.Errorf("device %d was opened", ordinal)
		}
	}
}

func TestADeviceWithoutVirtualMemoryManagement(t *testing.T) {
	if os.Getenv(simulated.OnCard) != "" {
		t.Skip("requires the simulated driver")
	}
	t.Setenv("FAKECUDA_VMM", "none")
	if _, err := Open(0); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
}

// A foreign mapping in the pool's addresses makes the driver fail half-way.
func TestFailedMapIsUndone(t *testing.T) {
	for _, leave := range []bool{false, true} {
		d := open(t)
		before := used(t, d)
		p := newPool(t, d, 16*page, Options{PageSize: page, Cache: 4 * page, LeaveMapped: leave})
		mustMap(t, p, 2*page, page)
		must(t, p.Unmap(2*page, page))
		other := make([]cuda.Handle, 1)
		if _, err := d.Create(other, page); err != nil {
			t.Fatal(err)
		}
		there := cuda.Range{Start: p.Base() + 6*page, Size: page}
		must(t, d.Map(there, other, cuda.ReadWrite))

		_, err := p.Map(0, 10*page)
		var refused *cuda.Error
		if !errors.As(err, &refused) || refused.Function != "cuMemMap" {
			t.Error(err)
		}
		if s := p.Stats(); s.MappedPages != 0 || s.CachedPages > 4 || used(t, d)-before != s.CachedBytes+page || p.IsMapped(0, page) {
			t.Errorf("the pool reports %+v, but uses %d bytes", s, used(t, d)-before)
		}
		must(t, d.Unmap(there))
		if _, err := d.Release(other); err != nil {
			t.Error(err)
		}
		mustMap(t, p, 0, 10*page)
		must(t, p.Unmap(0, 10*page))
		must(t, p.Close())
	}
}

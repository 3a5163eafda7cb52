// SPDX-License-Identifier: Apache-2.0

package vmm

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
)

func sharedStats(t *testing.T, s *Shared) SharedStats {
	t.Helper()
	stats, err := s.Stats()
	must(t, err)
	return stats
}

func TestModelsShareOneLimit(t *testing.T) {
	for _, leave := range []bool{false, true} {
		d := open(t)
		before := used(t, d)
		s := newShared(t, d, 10*page+1, Options{PageSize: page, Cache: 4 * page, LeaveMapped: leave})
		must(t, s.Register("a", 8*page))
		must(t, s.Register("b", 8*page))
		_, err := s.Map("a", 0, 7*page)
		must(t, err)
		_, err = s.Map("b", 0, 4*page)
		var memory *MemoryError
		if !errors.As(err, &memory) || memory.Requested != 4*page || memory.Limit != 10*page+1 || memory.Current != 7*page || memory.Err != nil {
			t.Errorf("beyond the limit: %v", err)
		}
		must(t, s.Unmap("a", 0, 3*page))
		base, err := s.Base("b")
		must(t, err)
		address, err := s.Map("b", 2*page, 6*page) // all that a gave up
		must(t, err)
		if address != base+2*page || !s.IsMapped("b", 2*page, 6*page) || s.IsMapped("b", 0, page) || s.IsMapped("c", 0, page) {
			t.Errorf("%#x, of base %#x", address, base)
		}
		if used(t, d)-before != 10*page {
			t.Errorf("%d bytes are taken", used(t, d)-before)
		}
		stats := sharedStats(t, s)
		if stats.Current != 10*page || stats.MappedBytes != 10*page || stats.HighWater != 10*page ||
			stats.Models["a"].MappedPages != 4 || stats.Models["b"].MappedPages != 6 || stats.Models["a"].HighWater != 7*page {
			t.Errorf("%+v", stats)
		}
		must(t, s.Close())
	}
}

// Pages left mapped in the wanted range count towards the limit like others.
func TestReuseInPlaceKeepsTheLimit(t *testing.T) {
	d := open(t)
	s := newShared(t, d, 10*page, Options{PageSize: page, Cache: 5 * page, LeaveMapped: true})
	must(t, s.Register("a", 16*page))
	for _, c := range []struct {
		unmap        bool
		offset, size uint64
		fits         bool
	}{
		{false, 0, 10 * page, true},
		{true, 0, 5 * page, true},
		{false, 2 * page, 1 * page, true},
		{true, 2 * page, 1 * page, true},
		{false, 10 * page, 6 * page, false},
		{false, 10 * page, 2 * page, true},
		{false, 0, 4 * page, false},
		{false, 2 * page, 3 * page, true},
		{false, 0, 1 * page, false},
	} {
		var err error
		if c.unmap {
			err = s.Unmap("a", c.offset, c.size)
		} else {
			_, err = s.Map("a", c.offset, c.size)
		}
		if c.fits && err != nil || !c.fits && !errors.Is(err, ErrOutOfMemory) {
			t.Errorf("%+v: %v", c, err)
		}
		if stats := sharedStats(t, s); stats.Current > 10*page {
			t.Errorf("%+v: %d bytes are taken", c, stats.Current)
		}
	}
}

func TestTheLimitChangesWhileModelsRun(t *testing.T) {
	for _, leave := range []bool{false, true} {
		d := open(t)
		before := used(t, d)
		s := newShared(t, d, 10*page, Options{PageSize: page, Cache: 8 * page, LeaveMapped: leave})
		must(t, s.Register("a", 64*page))
		_, err := s.Map("a", 0, 10*page)
		must(t, err)
		must(t, s.Unmap("a", 0, 6*page))
		must(t, s.SetLimit(6*page)) // four mapped, so two may be cached
		if stats := sharedStats(t, s); stats.CachedBytes != 2*page || used(t, d)-before != 6*page {
			t.Errorf("%+v, %d bytes taken", stats, used(t, d)-before)
		}
		must(t, s.SetLimit(2*page)) // less than is mapped
		if _, err := s.Map("a", 32*page, page); !errors.Is(err, ErrOutOfMemory) {
			t.Errorf("beyond a lowered limit: %v", err)
		}
		must(t, s.Unmap("a", 6*page, page))
		if used(t, d)-before != 3*page {
			t.Errorf("%d bytes are taken: something is cached beyond the limit", used(t, d)-before)
		}
		must(t, s.SetLimit(20*page))
		_, err = s.Map("a", 32*page, 17*page)
		must(t, err)
		must(t, s.SetLimit(0))
		free, total, err := d.MemoryInfo()
		must(t, err)
		if stats := sharedStats(t, s); stats.Limit != total || stats.Current != total-free {
			t.Errorf("without a limit of its own: %+v", stats)
		}
		must(t, s.Close())
	}
}

func TestModelsHaveOneName(t *testing.T) {
	d := open(t)
	before := used(t, d)
	s := newShared(t, d, gib, Options{PageSize: page, Cache: 2 * page})
	must(t, s.Register("a", gib))
	if err := s.Register("a", gib); !errors.Is(err, ErrModelExists) {
		t.Error(err)
	}
	_, err := s.Map("a", 0, 8*page)
	must(t, err)
	must(t, s.Unregister("a"))
	if used(t, d)-before != 2*page {
		t.Errorf("%d bytes are taken", used(t, d)-before)
	}
	_, mapErr := s.Map("a", 0, page)
	_, baseErr := s.Base("a")
	for _, err := range []error{mapErr, baseErr, s.Unmap("a", 0, page), s.Unregister("a")} {
		if !errors.Is(err, ErrModelNotFound) {
			t.Error(err)
		}
	}
	must(t, s.Register("a", gib))
	if s.IsMapped("a", 0, page) {
		t.Error("a new model has what the former had")
	}
}

func TestModelsComeAndGoWhileOthersMap(t *testing.T) {
	d := open(t)
	before := used(t, d)
	const limit = 64 * page
	s := newShared(t, d, limit, Options{PageSize: page, Cache: 8 * page, LeaveMapped: true})
	var wait sync.WaitGroup
	for worker := range 6 {
		wait.Go(func() {
			name := string(rune('a' + worker%3)) // two workers share each model, and either may unregister it
			random := rand.New(rand.NewPCG(3, uint64(worker)))
			for range 300 {
				offset, size := random.Uint64N(32)*page, (1+random.Uint64N(24))*page
				var err error
				switch random.IntN(12) {
				case 0:
					err = s.Register(name, 64*page)
				case 1:
					err = s.Unregister(name)
				case 2:
					err = s.SetLimit(limit - random.Uint64N(32)*page)
				case 3, 4, 5, 6, 7:
					_, err = s.Map(name, offset, size)
				default:
					err = s.Unmap(name, offset, size)
				}
				for _, expected := range []error{ErrModelExists, ErrModelNotFound, ErrMapped, ErrNotMapped, ErrOutOfMemory} {
					if errors.Is(err, expected) {
						err = nil
					}
				}
				if err != nil {
					t.Error(err)
				}
				if stats, err := s.Stats(); err != nil || stats.Current > limit {
					t.Errorf("%+v, %v", stats, err)
				}
			}
		})
	}
	wait.Wait()
	if stats := sharedStats(t, s); used(t, d)-before != stats.Current {
		t.Errorf("%d bytes are taken: %+v", used(t, d)-before, stats)
	}
}

func TestErrorsAreOneSentence(t *testing.T) {
	d := open(t)
	s := newShared(t, d, 4*page, pages2M)
	must(t, s.Register("a", 8*page))
	_, err := s.Map("a", page, page)
	must(t, err)
	of := func(_ any, err error) error { return err }
	for want, err := range map[string]error{
		`vmm: map in model "a": offset 0, size 4194304: already mapped: the page at offset 2097152`:                                                                 of(s.Map("a", 0, 2*page)),
		`vmm: unmap in model "a": offset 0, size 4194304: not mapped: the page at offset 0`:                                                                         s.Unmap("a", 0, 2*page),
		`vmm: map in model "a": offset 5, size 2097152: not aligned to the page size of 2MiB`:                                                                       of(s.Map("a", 5, page)),
		`vmm: map in model "a": offset 0, size 0: the range is empty`:                                                                                               of(s.Map("a", 0, 0)),
		`vmm: map in model "a": offset 0, size 18874368: out of bounds: the capacity is 16777216`:                                                                   of(s.Map("a", 0, 9*page)),
		`vmm: map in model "a": out of physical memory: 8MiB requested, 2MiB of 8MiB are used`:                                                                      of(s.Map("a", 4*page, 4*page)),
		`vmm: map in model "b": there is no such model`:                                                                                                             of(s.Map("b", 0, page)),
		`vmm: register model "a": the model exists already`:                                                                                                         s.Register("a", page),
		`vmm: new pool: bad capacity: 0B are not accepted: up to 2147483647 pages of 2MiB are`:                                                                      of(d.NewPool(0, pages2M)),
		`vmm: new pool: bad page size: 3000000 bytes is not accepted: a power of two is, of at least 64KiB, that is a multiple of the device's granularity of 2MiB`: of(d.NewPool(1, Options{PageSize: 3000000})),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("%v\nis not\n%s", err, want)
		}
	}
}

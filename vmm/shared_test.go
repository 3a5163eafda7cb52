// SPDX-License-Identifier: Apache-2.0

package vmm

import (
	"errors"
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
		address, err := s.Map("b", 2*page, 6*page) // with all that a gave up
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

// Pages that are left mapped in the wanted range count for the limit as the others do.
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

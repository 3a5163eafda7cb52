// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/vmm"
	"github.com/gpuslice/gpuslice/vmm/cuda"
)

const page = 2 * mib

// caches grows and shrinks two pools and two models of a Shared concurrently, and compares their sizes after each round.
type caches struct {
	time   time.Duration
	seed   uint64
	socket string
	within uint64 // accepted difference to the driver's figure, bytes

	device *vmm.Device
	shared *vmm.Shared
	pools  []*vmm.Pool
	all    []*cache
	base   uint64 // bytes used before the start
	slice  string // the slice of this process
	worst  uint64 // maximum difference to the driver's figure, bytes
}

// cache records its mapped pages independently.
type cache struct {
	id     uint64
	device *vmm.Device
	grow   func(offset, size uint64) (cuda.Address, error)
	shrink func(offset, size uint64) error
	random *rand.Rand
	base   cuda.Address
	mapped []bool
	pages  int
	target int // pages to grow or shrink to

	grown, shrunk, refused int
}

func (c *caches) run(d *vmm.Device) error {
	c.device = d
	if err := c.open(); err != nil {
		return err
	}
	fmt.Printf("seed %d\n", c.seed)
	rounds, filled := 0, 0
	for end := time.Now().Add(c.time); time.Now().Before(end); rounds++ {
		if err := c.round(); err != nil {
			return fmt.Errorf("round %d: %w", rounds, err)
		}
		if err := c.compare(); err != nil {
			return fmt.Errorf("after round %d: %w", rounds, err)
		}
		if c.socket != "" && rounds%50 == 49 {
			if err := c.fill(); err != nil {
				return fmt.Errorf("after round %d: %w", rounds, err)
			}
			filled++
		}
	}
	for _, one := range c.all {
		fmt.Printf("cache %d: grew %d times, shrank %d times, was refused %d times\n", one.id, one.grown, one.shrunk, one.refused)
	}
	for _, p := range c.pools {
		if err := p.Close(); err != nil {
			return err
		}
	}
	if err := c.shared.Close(); err != nil {
		return err
	}
	if err := c.compareWith(0); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	if c.socket == "" {
		fmt.Printf("%d comparisons, the driver's figure differs by %d bytes at most\n", rounds+1, c.worst)
	} else {
		fmt.Printf("%d comparisons, all exact; filled to the last page %d times\n", rounds+1, filled)
	}
	return nil
}

func (c *caches) open() error {
	free, total, err := c.device.MemoryInfo()
	if err != nil {
		return err
	}
	c.base = total - free
	if c.socket != "" {
		if c.slice, err = c.find(); err != nil {
			return err
		}
	}
	capacity := free / 2 / page * page // all four together: twice the free memory
	for i, o := range []vmm.Options{{PageSize: page, Cache: free / 16}, {PageSize: page, Cache: free / 16, LeaveMapped: true}} {
		p, err := c.device.NewPool(capacity, o)
		if err != nil {
			return err
		}
		c.pools = append(c.pools, p)
		c.add(uint64(i), capacity, p.Base(), p.Map, p.Unmap)
	}
	c.shared, err = c.device.NewShared(free*2/3, vmm.Options{PageSize: page, Cache: free / 16, LeaveMapped: true})
	if err != nil {
		return err
	}
	for i, model := range []string{"one", "other"} {
		if err := c.shared.Register(model, capacity); err != nil {
			return err
		}
		base, err := c.shared.Base(model)
		if err != nil {
			return err
		}
		c.add(uint64(2+i), capacity, base,
			func(offset, size uint64) (cuda.Address, error) { return c.shared.Map(model, offset, size) },
			func(offset, size uint64) error { return c.shared.Unmap(model, offset, size) })
	}
	return nil
}

func (c *caches) add(id, capacity uint64, base cuda.Address, grow func(uint64, uint64) (cuda.Address, error), shrink func(uint64, uint64) error) {
	c.all = append(c.all, &cache{
		id: id, device: c.device, grow: grow, shrink: shrink, base: base,
		random: rand.New(rand.NewPCG(c.seed, id)), mapped: make([]bool, capacity/page),
	})
}

func (c *caches) round() error {
	var wait sync.WaitGroup
	failed := make([]error, len(c.all))
	for i, one := range c.all {
		wait.Go(func() {
			for range 1 + one.random.IntN(8) {
				if failed[i] = one.step(); failed[i] != nil {
					return
				}
			}
		})
	}
	wait.Wait()
	return errors.Join(failed...)
}

// step grows or shrinks a random range towards a target that changes occasionally, and checks the result.
func (c *cache) step() error {
	if c.random.IntN(20) == 0 {
		c.target = c.random.IntN(len(c.mapped))
	}
	first := c.random.IntN(len(c.mapped))
	if c.random.IntN(10) == 0 {
		return c.tryInvalid(first)
	}
	grow := c.pages < c.target
	n, maxPages := 0, 1+c.random.IntN(1+len(c.mapped)/8)
	for first+n < len(c.mapped) && n < maxPages && c.mapped[first+n] != grow {
		n++
	}
	if n == 0 {
		return nil
	}
	offset, size := uint64(first)*page, uint64(n)*page
	if !grow {
		if err := c.check(first, n); err != nil {
			return err
		}
		if err := c.shrink(offset, size); err != nil {
			return fmt.Errorf("cache %d: %w", c.id, err)
		}
		c.shrunk++
		c.set(first, n, false)
		return nil
	}
	_, err := c.grow(offset, size)
	if errors.Is(err, vmm.ErrOutOfMemory) {
		c.refused++
		return nil
	}
	if err != nil {
		return fmt.Errorf("cache %d: %w", c.id, err)
	}
	c.grown++
	c.set(first, n, true)
	return c.mark(first, n)
}

// tryInvalid maps mapped pages or unmaps unmapped ones: both must fail and change nothing.
func (c *cache) tryInvalid(first int) error {
	n := 1 + c.random.IntN(len(c.mapped)-first)
	offset, size := uint64(first)*page, uint64(n)*page
	if slices.Contains(c.mapped[first:first+n], true) {
		if _, err := c.grow(offset, size); !errors.Is(err, vmm.ErrMapped) {
			return fmt.Errorf("cache %d: something of pages %d to %d is mapped, but they were mapped: %w", c.id, first, first+n-1, err)
		}
	}
	if slices.Contains(c.mapped[first:first+n], false) {
		if err := c.shrink(offset, size); !errors.Is(err, vmm.ErrNotMapped) {
			return fmt.Errorf("cache %d: something of pages %d to %d is not mapped, but they were unmapped: %w", c.id, first, first+n-1, err)
		}
	}
	return nil
}

func (c *cache) set(first, n int, mapped bool) {
	for i := range n {
		c.mapped[first+i] = mapped
	}
	if !mapped {
		n = -n
	}
	c.pages += n
}

func (c *cache) tag(at int) uint64 { return c.id<<32 | uint64(at) }

func (c *cache) mark(first, n int) error {
	for at := first; at < first+n; at++ {
		if err := c.device.Write(c.at(at), binary.LittleEndian.AppendUint64(nil, c.tag(at))); err != nil {
			return fmt.Errorf("cache %d: write to page %d: %w", c.id, at, err)
		}
	}
	return nil
}

// check reads back up to eight pages.
func (c *cache) check(first, n int) error {
	for i := range min(n, 8) {
		at := first + i*(n-1)/7
		var got [8]byte
		if err := c.device.Read(got[:], c.at(at)); err != nil {
			return fmt.Errorf("cache %d: read page %d: %w", c.id, at, err)
		}
		if v := binary.LittleEndian.Uint64(got[:]); v != c.tag(at) {
			return fmt.Errorf("cache %d: page %d holds %#x", c.id, at, v)
		}
	}
	return nil
}

func (c *cache) at(number int) cuda.Address { return c.base + cuda.Address(number)*page }

// compare checks the pools against the caches, and the ledger against the pools.
func (c *caches) compare() error {
	stats, err := c.shared.Stats()
	if err != nil {
		return err
	}
	says := []int{c.pools[0].Stats().MappedPages, c.pools[1].Stats().MappedPages, stats.Models["one"].MappedPages, stats.Models["other"].MappedPages}
	for i, one := range c.all {
		if says[i] != one.pages {
			return fmt.Errorf("cache %d has %d pages, but its pool says %d", i, one.pages, says[i])
		}
	}
	want := stats.MappedBytes + stats.CachedBytes
	if want > stats.Limit {
		return fmt.Errorf("%d bytes are taken, but the limit is %d", want, stats.Limit)
	}
	for _, p := range c.pools {
		s := p.Stats()
		want += s.MappedBytes + s.CachedBytes
	}
	return c.compareWith(want)
}

func (c *caches) compareWith(want uint64) error {
	if c.socket == "" {
		free, total, err := c.device.MemoryInfo()
		if err != nil {
			return err
		}
		got, all := total-free, want+c.base
		c.worst = max(c.worst, max(got, all)-min(got, all))
		if c.worst > c.within {
			return fmt.Errorf("%d bytes are mapped and cached, but the driver reports %d in use, %d before", want, got, c.base)
		}
		return nil
	}
	use, err := c.use()
	if err != nil {
		return err
	}
	if use.Used != want {
		return fmt.Errorf("%d bytes are mapped and cached, but the ledger has %d", want, use.Used)
	}
	return nil
}

// fill maps the remaining quota: the last page must fit, and one page more must be refused.
func (c *caches) fill() error {
	if _, err := c.device.Trim(); err != nil {
		return err
	}
	for {
		before, err := c.use()
		if err != nil {
			return err
		}
		fillErr := c.fillWith((before.Limit - min(before.Limit, before.Used+before.Overhead)) / page * page)
		after, err := c.use()
		if err != nil {
			return err
		}
		// The enforcer may have charged allocations of the driver since.
		if fillErr == nil || before.Used+before.Overhead == after.Used+after.Overhead {
			return fillErr
		}
	}
}

func (c *caches) use() (api.DeviceUse, error) {
	slice, err := client.New(c.socket).Slice(context.Background(), c.slice)
	if err != nil {
		return api.DeviceUse{}, err
	}
	return slice.Devices[0], nil
}

func (c *caches) fillWith(left uint64) (err error) {
	p, err := c.device.NewPool(left+page, vmm.Options{PageSize: page})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if _, err := p.Map(0, left+page); !errors.Is(err, vmm.ErrOutOfMemory) {
		return fmt.Errorf("%d bytes are left, but more were mapped: %w", left, err)
	}
	if left == 0 {
		return nil
	}
	if _, err := p.Map(0, left); err != nil {
		return fmt.Errorf("%d bytes are left: %w", left, err)
	}
	return nil
}

func (c *caches) find() (string, error) {
	enforcer, ctx := client.New(c.socket), context.Background()
	all, err := enforcer.Slices(ctx)
	if err != nil {
		return "", err
	}
	for _, s := range all {
		s, err := enforcer.Slice(ctx, s.ID)
		if err != nil {
			continue // ended meanwhile
		}
		for _, p := range s.Processes {
			if p.PID == os.Getpid() && len(s.Devices) == 1 && s.State == api.Active {
				return s.ID, nil
			}
		}
	}
	return "", fmt.Errorf("this process is in no slice of the enforcer at %s", c.socket)
}

// SPDX-License-Identifier: Apache-2.0

package main

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall
#cgo LDFLAGS: -ldl
#include "native.h"
*/
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/vmm"
)

//go:generate go run ../../interceptor/tools/digest

var errNative = errors.New("the driver refused the calls in C")

// speed compares Map with the same driver calls in C, in turns, so that other load affects both.
func speed(d *vmm.Device, quick bool, rows string) error {
	if !C.native_start() {
		return errNative
	}
	defer C.native_end()
	name, err := d.Name()
	if err != nil {
		return err
	}
	rounds, pages := 15, 200
	if quick {
		rounds, pages = 3, 50
	}
	fmt.Printf("%s; medians of %d rounds of %d pages, µs\n\n", name, rounds, pages)
	if err := single(d, rounds, pages); err != nil {
		return err
	}
	points, err := many(d, quick)
	if err != nil {
		return err
	}
	if rows != "" {
		text, err := json.Marshal(points)
		if err != nil {
			return err
		}
		if err := os.WriteFile(rows, text, 0o644); err != nil {
			return err
		}
	}
	if err := later(d, quick); err != nil {
		return err
	}
	return metadata(d)
}

// way performs one operation on each of `pages` pages, and returns the time of each.
type way func(pages int) ([]time.Duration, error)

func inC(what C.enum_native_what) way {
	return func(pages int) ([]time.Duration, error) {
		took := make([]C.uint64_t, pages)
		if !C.native_pages(what, page, C.size_t(pages), &took[0]) {
			return nil, errNative
		}
		durations := make([]time.Duration, pages)
		for i, t := range took {
			durations[i] = time.Duration(t)
		}
		return durations, nil
	}
}

// inPool creates a pool, calls before for all of it, and times do for each page.
func inPool(d *vmm.Device, o vmm.Options, before func(*vmm.Pool, uint64) error, do func(*vmm.Pool, uint64) error) way {
	return func(pages int) ([]time.Duration, error) {
		o.PageSize = page
		o.Cache *= uint64(pages)
		p, err := d.NewPool(uint64(pages)*page, o)
		if err != nil {
			return nil, err
		}
		if err := before(p, uint64(pages)*page); err != nil {
			return nil, errors.Join(err, p.Close())
		}
		took := make([]time.Duration, pages)
		for i := range took {
			begin := time.Now()
			err := do(p, uint64(i)*page)
			took[i] = time.Since(begin)
			if err != nil {
				return nil, errors.Join(err, p.Close())
			}
		}
		return took, p.Close()
	}
}

func nothing(*vmm.Pool, uint64) error { return nil }

func mapAll(p *vmm.Pool, size uint64) error {
	_, err := p.Map(0, size)
	return err
}

func mapAndUnmap(p *vmm.Pool, size uint64) error {
	return errors.Join(mapAll(p, size), p.Unmap(0, size))
}

func mapOne(p *vmm.Pool, offset uint64) error {
	_, err := p.Map(offset, page)
	return err
}

func unmapOne(p *vmm.Pool, offset uint64) error { return p.Unmap(offset, page) }

func single(d *vmm.Device, rounds, pages int) error {
	cache := vmm.Options{Cache: page} // per page
	left := vmm.Options{Cache: page, LeaveMapped: true}
	fmt.Println("| one page of 2 MiB | driver, in C | vmm | ratio of each round: median, worst | goal |")
	fmt.Println("|---|---|---|---|---|")
	for _, c := range []struct {
		name      string
		own, ours way
		goal      string
	}{
		{"map, new (create, map, access)", inC(C.NATIVE_NEW), inPool(d, vmm.Options{}, nothing, mapOne), "≤ 1.1"},
		{"map, from the cache (map, access)", inC(C.NATIVE_CACHED), inPool(d, cache, mapAndUnmap, mapOne), "≤ 1.1"},
		{"map, left mapped", nil, inPool(d, left, mapAndUnmap, mapOne), "≤ 5 µs"},
		{"unmap, given back (unmap, release)", inC(C.NATIVE_GIVE), inPool(d, vmm.Options{}, mapAll, unmapOne), ""},
		{"unmap, to the cache", nil, inPool(d, cache, mapAll, unmapOne), ""},
		{"unmap, left mapped", nil, inPool(d, left, mapAll, unmapOne), ""},
	} {
		var own, ours, ratios []float64
		for range rounds {
			took, err := c.ours(pages)
			if err != nil {
				return err
			}
			ours = append(ours, micros(median(took)))
			if c.own == nil {
				continue
			}
			if took, err = c.own(pages); err != nil {
				return err
			}
			own = append(own, micros(median(took)))
			ratios = append(ratios, ours[len(ours)-1]/own[len(own)-1])
		}
		if c.own == nil {
			fmt.Printf("| %s | – | %.2f | – | %s |\n", c.name, median(ours), c.goal)
		} else {
			fmt.Printf("| %s | %.2f | %.2f | %.3f, %.3f | %s |\n", c.name, median(own), median(ours), median(ratios), slices.Max(ratios), c.goal)
		}
	}
	return nil
}

// point is a point of the curve, as test/bench/plot.py reads it: the time per page.
type point struct {
	Call   string  `json:"call"`
	Pages  int     `json:"pages"`
	Native float64 `json:"native_ns"`
	Ours   float64 `json:"slice_ns"`
}

// many maps ranges of increasing length with one call each.
func many(d *vmm.Device, quick bool) (points []point, err error) {
	fmt.Println("\n| pages mapped by one call | page | in all, ms | a page, µs | the same in C, a page, µs | ratio |")
	fmt.Println("|---|---|---|---|---|---|")
	for _, size := range []uint64{2 * mib, 32 * mib} {
		for _, pages := range []int{1, 10, 32, 100, 512, 1000, 3000, 10000} {
			free, _, err := d.MemoryInfo()
			if err != nil {
				return nil, err
			}
			if quick && pages > 1000 || uint64(pages) > free/size {
				continue
			}
			var ours, own, ratios []float64
			for range max(3, min(100, 3000/pages)) {
				p, err := d.NewPool(uint64(pages)*size, vmm.Options{PageSize: size})
				if err != nil {
					return nil, err
				}
				begin := time.Now()
				_, err = p.Map(0, uint64(pages)*size)
				took := time.Since(begin)
				if err = errors.Join(err, p.Close()); err != nil {
					return nil, err
				}
				var native C.uint64_t
				if !C.native_range(C.size_t(size), C.size_t(pages), &native) {
					return nil, errNative
				}
				ours = append(ours, micros(took)/float64(pages))
				own = append(own, float64(native)/1000/float64(pages))
				ratios = append(ratios, ours[len(ours)-1]/own[len(own)-1])
			}
			points = append(points, point{fmt.Sprintf("pages of %d MiB", size/mib), pages, median(own) * 1000, median(ours) * 1000})
			note := ""
			if uint64(pages)*size == gib {
				note = " (1 GiB)"
			}
			fmt.Printf("| %d%s | %d MiB | %.3f | %.2f | %.2f | %.3f |\n", pages, note, size/mib, median(ours)*float64(pages)/1000, median(ours), median(own), median(ratios))
		}
	}
	return points, nil
}

// later maps single pages after many others.
func later(d *vmm.Device, quick bool) (err error) {
	fmt.Println("\n| pages of 2 MiB that are mapped already, one by one | the next one, µs |")
	fmt.Println("|---|---|")
	free, _, err := d.MemoryInfo()
	if err != nil {
		return err
	}
	const capacity = 128 * gib
	p, err := d.NewPool(capacity, vmm.Options{PageSize: page})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	mapped := 0
	for _, before := range []int{0, 100, 1000, 10000} {
		if quick && before > 1000 || uint64(before+200)*page > free {
			continue
		}
		for ; mapped < before; mapped++ {
			if err := mapOne(p, uint64(mapped)*page); err != nil {
				return err
			}
		}
		took := make([]time.Duration, 100)
		for i := range took {
			begin := time.Now()
			if err := mapOne(p, uint64(mapped+i)*page); err != nil {
				return err
			}
			took[i] = time.Since(begin)
		}
		mapped += len(took)
		fmt.Printf("| %d | %.2f |\n", before, micros(median(took)))
	}
	return nil
}

// metadata measures the growth of Go's heap per pool.
func metadata(d *vmm.Device) error {
	fmt.Println("\n| bookkeeping of a pool of 128 GiB in pages of 2 MiB | bytes | of the capacity |")
	fmt.Println("|---|---|---|")
	for _, o := range []vmm.Options{{PageSize: page}, {PageSize: page, Cache: 128 * gib, LeaveMapped: true}} {
		var pools []*vmm.Pool
		before := heapBytes()
		const count = 8
		for range count {
			p, err := d.NewPool(128*gib, o)
			if err != nil {
				return err
			}
			pools = append(pools, p)
			if err := mapAndUnmap(p, 64*page); err != nil {
				return err
			}
		}
		bytes := float64(heapBytes()-before) / count
		for _, p := range pools {
			if err := p.Close(); err != nil {
				return err
			}
		}
		name := "plain"
		if o.LeaveMapped {
			name = "pages are left mapped"
		}
		fmt.Printf("| %s | %.0f | %.6f %% |\n", name, bytes, 100*bytes/(128*gib))
	}
	return nil
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func median[T time.Duration | float64](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/gpuslice/gpuslice/vmm"
)

// The simulation advances a virtual clock by arrivals, waits and prefills: a minute takes a second, and requests depend on the
// seed only. Mapping and unmapping take real time.
const (
	prefill  = 50 * time.Millisecond // from allocation to the first token
	patience = 10 * time.Second      // a request without memory is dropped after this time
	phase    = 10 * time.Second      // duration for which one model is busy
	length   = 80 * time.Second      // of all arrivals; each model is busy twice
	hold     = 2 * time.Second       // mean time for which a request holds memory
)

type request struct {
	model   int
	arrives time.Duration
	bytes   uint64
	holds   time.Duration

	offset uint64
	waited bool
	took   time.Duration // to the first token; 0: never served
}

// share allocates memory to models. take and give return the time spent on mapping.
type share interface {
	// take returns false if no memory is free.
	take(r *request) (time.Duration, bool, error)
	give(r *request) (time.Duration, error)
	close() error
}

// static partitions memory by model. All of it stays mapped, so take and give only count.
type static struct{ left []uint64 }

func (s *static) take(r *request) (time.Duration, bool, error) {
	if s.left[r.model] < r.bytes {
		return 0, false, nil
	}
	s.left[r.model] -= r.bytes
	return 0, true, nil
}

func (s *static) give(r *request) (time.Duration, error) {
	s.left[r.model] += r.bytes
	return 0, nil
}

func (s *static) close() error { return nil }

// elastic allocates from a Shared, at the lowest free addresses of each model.
type elastic struct {
	shared *vmm.Shared
	used   [][]*request // per model, sorted by offset
	room   uint64       // address space per model
}

func newElastic(d *vmm.Device, memory uint64, count int) (*elastic, error) {
	shared, err := d.NewShared(memory, vmm.Options{PageSize: page, Cache: memory / 4, LeaveMapped: true})
	if err != nil {
		return nil, err
	}
	e := &elastic{shared: shared, used: make([][]*request, count), room: 4 * memory}
	for model := range count {
		if err := shared.Register(strconv.Itoa(model), e.room); err != nil {
			return nil, errors.Join(err, shared.Close())
		}
	}
	return e, nil
}

func (e *elastic) take(r *request) (time.Duration, bool, error) {
	at, offset := 0, uint64(0)
	for ; at < len(e.used[r.model]) && e.used[r.model][at].offset-offset < r.bytes; at++ {
		offset = e.used[r.model][at].offset + e.used[r.model][at].bytes
	}
	begin := time.Now()
	_, err := e.shared.Map(strconv.Itoa(r.model), offset, r.bytes)
	took := time.Since(begin)
	if errors.Is(err, vmm.ErrOutOfMemory) {
		return took, false, nil
	}
	if err != nil {
		return took, false, err
	}
	r.offset = offset
	e.used[r.model] = slices.Insert(e.used[r.model], at, r)
	return took, true, nil
}

func (e *elastic) give(r *request) (time.Duration, error) {
	at, _ := slices.BinarySearchFunc(e.used[r.model], r, func(a, b *request) int { return cmp.Compare(a.offset, b.offset) })
	e.used[r.model] = slices.Delete(e.used[r.model], at, at+1)
	begin := time.Now()
	err := e.shared.Unmap(strconv.Itoa(r.model), r.offset, r.bytes)
	return time.Since(begin), err
}

func (e *elastic) close() error { return e.shared.Close() }

// running is a heap of requests that hold memory, ordered by end.
type running []*ending

type ending struct {
	at time.Duration
	r  *request
}

func (h running) Len() int           { return len(h) }
func (h running) Less(i, j int) bool { return h[i].at < h[j].at }
func (h running) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *running) Push(x any)        { *h = append(*h, x.(*ending)) }
func (h *running) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// server serves the requests of each model in order of arrival. Across models, the oldest waiting request is tried first.
type server struct {
	share   share
	running running
	waiting []*request
	busy    time.Duration // end of the last map or unmap operation; operations are serial
}

func (s *server) serve(requests []*request) error {
	for len(requests) > 0 || len(s.running) > 0 {
		if len(s.running) > 0 && (len(requests) == 0 || s.running[0].at <= requests[0].arrives) {
			if err := s.end(heap.Pop(&s.running).(*ending)); err != nil {
				return err
			}
			continue
		}
		r := requests[0]
		requests = requests[1:]
		behind := slices.ContainsFunc(s.waiting, func(other *request) bool { return other.model == r.model })
		served := false
		if !behind {
			var err error
			if served, err = s.try(r, r.arrives); err != nil {
				return err
			}
		}
		if !served {
			r.waited = true
			s.waiting = append(s.waiting, r)
		}
	}
	return nil
}

// end frees a request's memory and retries waiting requests.
func (s *server) end(e *ending) error {
	took, err := s.share.give(e.r)
	if err != nil {
		return err
	}
	s.busy = max(s.busy, e.at) + took
	stuck := make(map[int]bool)
	waiting := s.waiting
	s.waiting = nil
	for _, r := range waiting {
		if e.at-r.arrives > patience {
			continue
		}
		served := false
		if !stuck[r.model] {
			if served, err = s.try(r, e.at); err != nil {
				return err
			}
		}
		if !served {
			stuck[r.model] = true
			s.waiting = append(s.waiting, r)
		}
	}
	return nil
}

func (s *server) try(r *request, now time.Duration) (bool, error) {
	took, fits, err := s.share.take(r)
	s.busy = max(s.busy, now) + took
	if err != nil || !fits {
		return false, err
	}
	r.took = s.busy + prefill - r.arrives
	heap.Push(&s.running, &ending{s.busy + prefill + r.holds, r})
	return true, nil
}

// arrivals returns the requests of a run, determined by the arguments alone. busy is the fraction sent to one model, in turns.
func arrivals(memory uint64, count int, load, busy float64) []*request {
	random := rand.New(rand.NewPCG(1, 2))
	mean := memory / 160 // 160 requests fill the memory
	each := hold + prefill
	gap := float64(each) * float64(mean) / (load * float64(memory))
	var requests []*request
	for now := time.Duration(0); ; {
		now += time.Duration(random.ExpFloat64() * gap)
		if now > length {
			return requests
		}
		model := int(now/phase) % count
		if random.Float64() >= busy {
			model = random.IntN(count)
		}
		bytes := mean/2 + random.Uint64N(mean) // half to one and a half of the mean
		requests = append(requests, &request{
			model: model, arrives: now, bytes: (bytes + page - 1) / page * page,
			holds: time.Duration(random.ExpFloat64() * float64(hold)),
		})
	}
}

func models(d *vmm.Device, memory uint64) error {
	if memory == 0 {
		free, _, err := d.MemoryInfo()
		if err != nil {
			return err
		}
		memory = free / 10 * 9
	}
	memory = memory / (8 * page) * (8 * page)
	name, err := d.Name()
	if err != nil {
		return err
	}
	fmt.Printf("%s; %.1f GiB for all models; a request has 1/160 of it on average, for %v; its first token comes %v after its memory; it waits for memory up to %v\n\n",
		name, float64(memory)/gib, hold, prefill, patience)
	fmt.Println("| models | load | | found room at once | found room | time to the first token: median, mean, 99 % |")
	fmt.Println("|---|---|---|---|---|---|")
	for _, c := range []struct {
		name       string
		count      int
		load, busy float64
	}{
		{"4, one busy in turns", 4, 0.3, 0.8},
		{"4, one busy in turns", 4, 0.5, 0.8},
		{"4, one busy in turns", 4, 0.7, 0.8},
		{"4, all alike", 4, 0.7, 0},
		{"1", 1, 0.7, 0},
	} {
		shares := &static{left: make([]uint64, c.count)}
		for i := range shares.left {
			shares.left[i] = memory / uint64(c.count)
		}
		own := arrivals(memory, c.count, c.load, c.busy)
		if err := (&server{share: shares}).serve(own); err != nil {
			return err
		}
		pool, err := newElastic(d, memory, c.count)
		if err != nil {
			return err
		}
		ours := arrivals(memory, c.count, c.load, c.busy)
		if err := errors.Join((&server{share: pool}).serve(ours), pool.close()); err != nil {
			return err
		}
		fmt.Printf("| %s | %.0f %% | static | %s |\n", c.name, 100*c.load, summary(own))
		fmt.Printf("| | | elastic | %s |\n", summary(ours))
		fmt.Printf("| | | static / elastic | | | %s |\n", ratios(own, ours))
	}
	return nil
}

// times returns the sorted times to the first token of served requests.
func times(requests []*request) (took []time.Duration) {
	for _, r := range requests {
		if r.took != 0 {
			took = append(took, r.took)
		}
	}
	slices.Sort(took)
	return took
}

func figures(requests []*request) [3]time.Duration {
	took := times(requests)
	var sum time.Duration
	for _, t := range took {
		sum += t
	}
	return [3]time.Duration{took[len(took)/2], sum / time.Duration(len(took)), took[len(took)*99/100]}
}

func summary(requests []*request) string {
	atOnce := 0
	for _, r := range requests {
		if !r.waited {
			atOnce++
		}
	}
	all, f := float64(len(requests)), figures(requests)
	return fmt.Sprintf("%.1f %% | %.1f %% | %.4g, %.4g, %.4g ms", 100*float64(atOnce)/all, 100*float64(len(times(requests)))/all,
		micros(f[0])/1000, micros(f[1])/1000, micros(f[2])/1000)
}

func ratios(own, ours []*request) string {
	a, b := figures(own), figures(ours)
	return fmt.Sprintf("%.2f, %.2f, %.2f", float64(a[0])/float64(b[0]), float64(a[1])/float64(b[1]), float64(a[2])/float64(b[2]))
}

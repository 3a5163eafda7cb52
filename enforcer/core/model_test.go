// SPDX-License-Identifier: Apache-2.0

package core

import (
	"flag"
	"maps"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/must"
)

var (
	steps = flag.Int("steps", 30_000, "commands, facts and effects of the model test, each followed by all invariants")
	first = flag.Uint64("seed", 0, "the first seed of the model test")
)

// rest carries out all effects, without further failures, until none is left.
func (w *world) rest() {
	w.calm = true
	for _, generation := range slices.Sorted(maps.Keys(w.pages)) {
		if p := w.pages[generation]; p.alive && p.away && w.holder(generation) != nil {
			w.do(AskReturn{p.ID})
		}
	}
	for ticks, n := 0, 0; ticks < 12 || len(w.todo)+len(w.answers)+len(w.late) > 0; n++ {
		if n > 20_000 {
			w.fail("it does not come to rest: %+v", w.todo)
		}
		w.steps++
		if len(w.todo)+len(w.answers)+len(w.late) > 0 {
			if w.r.IntN(2) == 0 || !w.deliver() {
				w.effect()
			}
		} else {
			if ticks++; ticks < 12 { // what the last tick has ended is reported, too
				w.now += time.Second
				w.note(Tick{w.now})
				w.askAgain()
			}
			w.report()
		}
		w.check()
	}
	w.checkAtRest()
}

// askAgain has the waiting processes ask again.
func (w *world) askAgain() {
	for _, h := range w.c.holders {
		if h.waitingSince != 0 && w.pages[h.Generation].alive {
			w.do(AskReturn{h.ID})
		}
	}
}

// report reads all ledgers.
func (w *world) report() {
	for _, h := range w.c.holders {
		p := w.pages[h.Generation]
		w.answers = append(w.answers, Used{Generation: h.Generation, Op: p.op, Bytes: w.used(p)})
	}
}

// processorTime returns the test's CPU time.
func processorTime(t *testing.T) time.Duration {
	var u unix.Rusage
	must.Do(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The model test: the core in a world in which everything fails.
func TestModel(t *testing.T) {
	const each = 1000
	begun, before, sum := time.Now(), processorTime(t), world{}
	for seed := *first; sum.steps < *steps; seed++ {
		w := newWorld(t, seed)
		for range each {
			w.step()
		}
		w.rest()
		sum.steps, sum.crashes, sum.moves = sum.steps+w.steps, sum.crashes+w.crashes, sum.moves+w.moves
	}
	took, busy := time.Since(begun), processorTime(t)-before
	t.Logf("%d steps, %d crashes, %d moves: %.0f a second, %.0f a second of processor time", sum.steps, sum.crashes, sum.moves,
		float64(sum.steps)/took.Seconds(), float64(sum.steps)/busy.Seconds())
}

//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
)

// last reports whether the slice ends with this process.
func (p *worker) last() bool {
	all := p.slice.workers
	return len(all) == 1 || p == p.slice.init || p.slice.session && p == all[0] && all[1].run != nil
}

func endProcess(w *world, r *rand.Rand) bool {
	p := w.pickWorker(r, func(p *worker) bool { return !p.last() && (!p.slice.session || p != p.slice.workers[0]) })
	if p == nil {
		return false
	}
	w.say("process %d of %s ends", p.pid, p.slice.id)
	p.writeLine("exit")
	p.wantGone()
	return true
}

func killProcess(w *world, r *rand.Rand) bool {
	p := w.pickWorker(r, func(p *worker) bool { return !p.last() })
	if p == nil {
		return false
	}
	w.say("process %d of %s is killed", p.pid, p.slice.id)
	p.kill()
	return true
}

func endSlice(w *world, r *rand.Rand) bool {
	s := w.pickSlice(r, func(*slice) bool { return true })
	if s == nil {
		return false
	}
	w.say("%s ends", s.id)
	w.stop(s)
	return true
}

func loseContainer(w *world, r *rand.Rand) bool {
	s := w.pickSlice(r, func(s *slice) bool { return !s.session })
	if s == nil {
		return false
	}
	w.say("%s ends, and nobody says so", s.id)
	w.killAll(s)
	w.drop(s)
	return true
}

// killRun kills `gpuslice run`; the session's processes survive and get no more memory.
func killRun(w *world, r *rand.Rand) bool {
	s := w.pickSlice(r, func(s *slice) bool { return s.session && s.state == active && s.run != nil })
	if s == nil {
		return false
	}
	w.say("`gpuslice run` of %s is killed", s.id)
	w.must(s.run.Process.Kill())
	w.ended(s.run)
	s.run = nil
	s.state = released
	w.eventually("the session is released", func() bool {
		_, err := w.client.Slice(w.Context(), s.id)
		return errors.Is(err, api.ErrNotFound)
	})
	return true
}

func releaseByForce(w *world, r *rand.Rand) bool {
	s := w.pickSlice(r, func(s *slice) bool { return s.state == active })
	if s == nil {
		return false
	}
	w.say("%s is released by force", s.id)
	_, err := w.client.Release(w.Context(), s.id, 0, true)
	switch {
	case err == nil:
		s.state = released
	case w.mayFail == "":
		w.fail("release %s by force: %v", s.id, err)
	default:
		w.say("… %v", err)
		s.state, s.releaseUnknown = unknown, answered(err)
	}
	return true
}

func releaseWhatRuns(w *world, r *rand.Rand) bool {
	s := w.pickSlice(r, func(s *slice) bool { return s.state == active })
	if s == nil {
		return false
	}
	w.say("%s shall be released, and runs", s.id)
	if _, err := w.client.Release(w.Context(), s.id, 0, false); !errors.Is(err, api.ErrRunning) && w.mayFail == "" {
		w.fail("release %s, which runs: %v", s.id, err)
	}
	return true
}

func show(w *world, r *rand.Rand) bool {
	s := w.pickSlice(r, func(s *slice) bool { return s.state == active })
	if w.mayFail != "" {
		return false
	}
	w.prompt("who is the enforcer", func(ctx context.Context) error { _, err := w.client.Info(ctx); return err })
	w.prompt("show the devices", func(ctx context.Context) error { _, err := w.client.Devices(ctx); return err })
	w.prompt("show the events", func(ctx context.Context) error {
		return w.client.Events(ctx, "", 0, false, func(api.Event) error { return nil })
	})
	if s != nil {
		w.prompt("show a slice", func(ctx context.Context) error { _, err := w.client.Slice(ctx, s.id); return err })
	}
	return true
}

// storm has all processes allocate and free concurrently while it kills some and calls its argument.
func storm(w *world, r *rand.Rand, meanwhile func()) bool {
	var all []*worker
	for _, s := range w.slices {
		for _, p := range s.workers {
			if s.state == active && !s.frozen && (p.contexts[0] || p.contexts[1]) {
				all = append(all, p)
			}
		}
	}
	if len(all) < 2 {
		return false
	}
	const count = 4000
	w.say("%d processes allocate and free at the same time", len(all))
	for _, p := range all {
		p.writeLine("storm %d %d %d", r.Uint32(), count, min(p.slice.limit, 8*gib)/2)
	}
	var killed []*worker
	for _, p := range all {
		if p != p.slice.workers[0] && r.IntN(4) == 0 { // one stays, to keep the slice
			killed = append(killed, p)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, p := range killed {
			time.Sleep(time.Duration(1+p.pid%7) * time.Millisecond)
			_ = unix.Kill(p.pid, unix.SIGKILL)
		}
		if meanwhile != nil {
			meanwhile()
		}
	}()
	for range 3 {
		w.never(3)
	}
	<-done
	for _, p := range killed {
		p.kill()
		all = without(all, p)
	}
	for _, p := range all {
		if got := p.readLine(); !strings.HasPrefix(got, fmt.Sprint("ok ", count)) {
			w.fail("process %d of %s in the storm: %q", p.pid, p.slice.id, got)
		}
	}
	results.killed(len(killed))
	return true
}

//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
)

// A turner is an elastic container that works continuously and checks its memory at each step (e2e/programs/steady.c). No two
// fit on a card together, so they take turns. No kill or fault may lose one.
type turner struct {
	*slice
	number    string // the file with its current step
	suspended bool   // suspended by hand, or maybe so
}

const (
	turners     = 3
	turnerQuota = "300G" // of memory
	turnerBytes = 48 * mib
)

func isTurner(s api.Slice) bool { return strings.HasPrefix(s.ID, "turner-") }

func (w *world) beginTurner() {
	w.Helper()
	n := w.turned
	w.turned++
	id := fmt.Sprintf("turner-%d-%d-%d", os.Getpid(), w.seed, n)
	t := &turner{slice: &slice{id: id, state: active}, number: filepath.Join(w.dir, "fake", id)}
	t.program = []string{"/programs/steady", strconv.FormatUint(turnerBytes, 10), "/fake/" + id}
	if n%3 != 0 {
		t.env = []string{fmt.Sprint("CUDA_VISIBLE_DEVICES=", devices)}
	}
	t.cgroup = w.newCgroup(id)
	w.turners = append(w.turners, t)
	w.create(t.slice, map[string]string{"gpuslice.vram": turnerQuota, "gpuslice.elastic": "true"})
	if err := w.hook("prestart", t.slice); err != nil {
		w.fail("%s was refused: %v", id, err)
	}
	_, err := t.init.in.WriteString("g")
	w.must(err)
}

func (w *world) endTurner(t *turner) {
	w.Helper()
	w.turners = without(w.turners, t)
	w.stopContainer(t.slice)
	w.must(os.RemoveAll(t.number))
}

func (w *world) turnersGoOn() {
	w.Helper()
	for _, t := range w.turners {
		if t.suspended {
			w.wake(t)
		}
		last := t.step()
		for deadline := time.Now().Add(patience); t.step() < last+2; time.Sleep(5 * time.Millisecond) {
			w.goesOn()
			if time.Now().After(deadline) || !alive(t.init.pid) {
				w.fail("%s makes no progress (alive: %v): %s", t.id, alive(t.init.pid), w.shownTurners())
			}
		}
	}
	all, err := w.client.Devices(w.Context())
	w.must(err)
	for _, d := range all {
		if d.Quotas > d.Total {
			w.fail("of the %d bytes of device %d %d are given: %s", d.Total, d.Index, d.Quotas, w.shownTurners())
		}
	}
}

func (w *world) shownTurners() string {
	var all []string
	for _, s := range w.everySlice() {
		if isTurner(s) {
			all = append(all, fmt.Sprintf("%s is %s (%s), %+v", s.ID, s.State, s.Reason, *s.Elastic))
		}
	}
	return strings.Join(all, "; ")
}

func (t *turner) step() int {
	text, _ := os.ReadFile(t.number)
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

func suspendTurner(w *world, r *rand.Rand) bool {
	if len(w.turners) == 0 || w.noTruth {
		return false
	}
	t := w.turners[r.IntN(len(w.turners))]
	if t.suspended {
		w.wake(t)
		return true
	}
	w.say("%s is suspended", t.id)
	t.suspended = true
	got, err := w.client.Suspend(w.Context(), t.id)
	switch {
	case err == nil && got.State != api.Suspended:
		w.fail("%s was suspended, but is %s", t.id, got.State)
	case err == nil && r.IntN(2) == 0:
		w.wake(t)
	case err != nil:
		w.say("… %v", err)
	}
	return true
}

// wake resumes a turner, waiting for room.
func (w *world) wake(t *turner) {
	w.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		w.goesOn()
		_, err := w.client.Resume(w.Context(), t.id)
		if err == nil || strings.HasSuffix(err.Error(), "is not suspended") { // it resumed in its turn
			t.suspended = false
			return
		}
		if w.mayFail != "" {
			w.say("… %s does not go on yet: %v", t.id, err)
			return
		}
		if time.Now().After(deadline) {
			w.fail("resume %s: %v: %s", t.id, err, w.shownTurners())
		}
	}
}

func killTurner(w *world, r *rand.Rand) bool {
	if len(w.turners) == 0 || w.mayFail != "" || w.noTruth {
		return false
	}
	t := w.turners[r.IntN(len(w.turners))]
	w.say("%s is killed, and another begins", t.id)
	time.Sleep(pause(r, 100*time.Millisecond))
	_ = unix.Kill(t.init.pid, unix.SIGKILL)
	w.endTurner(t)
	w.beginTurner()
	return true
}

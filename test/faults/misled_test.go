//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	encoding "encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
)

// lies are the false answers that programs/mislead.c gives an enforcer in the kernel's name.
type lies struct {
	ahead      time.Duration // offset of the wall clock; whole seconds
	writeError unix.Errno    // for changes of files and names in the state directory
	syncError  unix.Errno    // for syncing them
	spared     int           // calls that succeed before the first error
}

func (w *world) liesFile() string { return filepath.Join(w.dir, "lies") }
func (w *world) stateDir() string { return filepath.Join(w.dir, "state") }

func (w *world) lie(l lies) {
	w.Helper()
	w.lieCount++
	w.ahead = l.ahead
	var text bytes.Buffer // struct lies
	for _, n := range []int64{int64(l.ahead / time.Second), int64(l.writeError), int64(l.syncError), int64(l.spared), w.lieCount} {
		w.must(encoding.Write(&text, encoding.NativeEndian, n))
	}
	file, err := os.OpenFile(w.liesFile(), os.O_CREATE|os.O_WRONLY, 0o600) // overwritten in place: mislead.c reads it concurrently
	w.must(err)
	_, err = file.Write(text.Bytes())
	w.must(err)
	w.must(file.Close())
}

// startMisleading restarts the enforcer under mislead.c, until stopMisleading.
func (w *world) startMisleading() {
	w.Helper()
	w.lie(lies{})
	w.misled = true
	w.restart(unix.SIGKILL)
}

// stopMisleading ends all false answers: the enforcer continues, and a new one finds the state on disk.
func (w *world) stopMisleading(r *rand.Rand) string {
	w.Helper()
	w.lie(lies{})
	outcome := w.checkRecovered(r)
	w.misled = false
	w.restart(unix.SIGKILL)
	w.check()
	return outcome
}

// jumpingClock: setting the clock neither ends a slice nor extends its life.
func jumpingClock(w *world, r *rand.Rand) string {
	w.populate(r)
	w.startMisleading()
	const day = 24 * time.Hour
	jumps := shuffled(r, []time.Duration{time.Hour, -time.Hour, 3 * day, -40 * day, 10 * 365 * day, -10 * 365 * day})
	for i, ahead := range jumps[:3] {
		w.step++
		w.trim(mostSlices - 1)
		for range 2 {
			renew(w, w.random())
			w.step++
		}
		w.say("the clock is set, to %v from what it is", ahead)
		expireWhile(w, w.random(), func() { w.lie(lies{ahead: ahead}) })
		w.check()
		if i%2 == 1 {
			w.restart(unix.SIGKILL)
			w.check()
		}
		w.operations(2)
	}
	w.stopMisleading(r)
	return whole + "; none expires early, or late"
}

func stateTurnsReadOnly(w *world, r *rand.Rand) string {
	w.populate(r)
	w.startMisleading()
	return w.refuses(r, lies{writeError: unix.EROFS, spared: r.IntN(8)}, false)
}

func stateTurnsReadOnlyAndKilled(w *world, r *rand.Rand) string {
	w.populate(r)
	w.startMisleading()
	return w.refuses(r, lies{writeError: unix.EROFS, spared: r.IntN(8)}, true)
}

func diskFails(w *world, r *rand.Rand) string {
	w.populate(r)
	w.startMisleading()
	return w.refuses(r, failing(r), false)
}

func diskFailsAndKilled(w *world, r *rand.Rand) string {
	w.populate(r)
	w.startMisleading()
	return w.refuses(r, failing(r), true)
}

// full is a disk that rejects all writes. A full file system is not enough: the audit log frees space when it rotates.
var full = lies{writeError: unix.ENOSPC}

func diskFull(w *world, r *rand.Rand) string {
	return w.whileFull(r, false)
}

func diskFullAndKilled(w *world, r *rand.Rand) string {
	return w.whileFull(r, true)
}

// whileFull also fills the file system, for new names and for files outside the store.
func (w *world) whileFull(r *rand.Rand, kill bool) string {
	w.startMisleading()
	w.trim(mostSlices - 1)
	w.registerContainer(r)
	empty := w.fill(w.stateDir())
	w.lie(full)
	w.mayFail = "the disk is full"
	w.isFull()
	w.operations(6)
	beginContainer(w, r)
	beginSession(w, r)
	w.isFull()
	if kill {
		w.killWhileFull()
		w.operations(4)
		w.isFull()
	}
	empty()
	w.lie(lies{})
	if w.downReason != "" || kill && r.IntN(2) == 0 {
		w.restart(unix.SIGKILL)
	}
	w.downReason = ""
	w.eventually("the audit log is written again", func() bool {
		health, err := w.client.Health(w.Context())
		w.must(err)
		return !slices.ContainsFunc(health.Checks, func(c api.Check) bool { return c.Name == "audit" && !c.OK })
	})
	return w.stopMisleading(r)
}

// isFull checks that the enforcer, unable to write, grants nothing and reports the error.
func (w *world) isFull() {
	w.Helper()
	if w.downReason != "" {
		return
	}
	w.named++
	_, err := w.client.CreatePool(w.Context(), fmt.Sprint("pool-", w.named), onAll(gib))
	if !answered(err) || !strings.Contains(err.Error(), unix.ENOSPC.Error()) {
		w.fail("a pool is created while nothing can be written: %v", err)
	}
}

// failing is a disk that cannot sync writes, or rejects them too.
func failing(r *rand.Rand) lies {
	l := lies{syncError: unix.EIO, spared: r.IntN(8)}
	if r.IntN(2) == 0 {
		l.writeError = unix.EIO
	}
	return l
}

// refuses runs operations while the state fails under the enforcer, and kills the enforcer if kill is set.
func (w *world) refuses(r *rand.Rand, l lies, kill bool) string {
	w.Helper()
	w.say("the state turns bad: %+v", l)
	w.mayFail, w.diskKeepsChanges = "the state is bad", kill && l.writeError != 0 && l.syncError != 0
	w.lie(l)
	w.operations(6)
	beginContainer(w, r)
	beginSession(w, r)
	w.diskKeepsChanges = false
	if kill {
		w.daemon.end(unix.SIGKILL)
		l.spared = 0
		w.lie(l)
		w.must(w.daemon.launch("", 0))
		started := w.daemon.up() == nil
		if !started {
			w.say("it does not start")
			w.downReason = "the enforcer cannot start"
			w.hasSaid(max(l.writeError, l.syncError))
		} else if l.writeError == unix.EROFS {
			w.fail("it has started with a state that it cannot write")
		}
		w.operations(4)
		w.lie(lies{})
		if !started || r.IntN(2) == 0 {
			w.restart(unix.SIGKILL)
		}
		w.downReason = ""
	} else if r.IntN(2) == 0 {
		w.say("the disk is well, and the enforcer is stopped")
		w.lie(lies{})
		w.restart(unix.SIGTERM)
	}
	return w.stopMisleading(r)
}

func (w *world) hasSaid(why unix.Errno) {
	w.Helper()
	if text, err := os.ReadFile(w.logFile()); err != nil || !strings.Contains(string(text[max(0, len(text)-2000):]), why.Error()) {
		w.fail("it does not say that it cannot start: %s (%v)", why, err)
	}
}

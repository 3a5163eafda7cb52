//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// promptly limits the daemon's response time, without the time that the machine was stalled. Load delays single answers, so only
// 20 slow answers in a row count as a hang.
const promptly = time.Second

// prompt calls the enforcer, which must answer at once even while it waits for something itself.
func (w *world) prompt(what string, ask func(ctx context.Context) error) {
	w.Helper()
	for tries := 1; ; tries++ {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		begin := time.Now()
		err := ask(ctx)
		end := time.Now()
		cancel()
		stood := machine.Between(begin, end)
		took := end.Sub(begin) - stood
		if err != nil {
			w.fail("%s: after %v, without %v for which the machine stood still: %v", what, took, stood, err)
		}
		w.slowest = max(w.slowest, took)
		if took < promptly {
			return
		}
		if tries == 20 {
			w.fail("%s: the enforcer took %v: more than %v, as in 19 tries before, without the %v for which the machine stood still", what, took, promptly, stood)
		}
	}
}

// listing returns the enforcer's slices, except those of leases and turners.
func (w *world) listing() []api.Slice {
	return slices.DeleteFunc(w.everySlice(), func(s api.Slice) bool { return isLease(s) || isTurner(s) })
}

func (w *world) everySlice() (all []api.Slice) {
	w.Helper()
	w.asked.begin = sinceBoot()
	defer func() { w.asked.end = sinceBoot() }()
	w.prompt("list the slices", func(ctx context.Context) (err error) {
		all, err = w.client.Slices(ctx)
		return err
	})
	return all
}

// never checks that no slice has charged or holds more than its limit. In a storm a listing is not atomic and may count memory
// twice that moved between processes, so it fails only if every look finds an error.
func (w *world) never(looks int) {
	w.Helper()
	w.goesOn()
	for _, s := range w.slices {
		s.noteCharged()
	}
	for tries := 1; ; tries++ {
		err := errors.Join(w.overcharged(), w.overheld())
		if err == nil {
			return
		}
		if tries == looks {
			w.fail("%v", err)
		}
	}
}

func (w *world) overcharged() error {
	w.Helper()
	if w.downReason != "" || w.mayFail != "" {
		return nil
	}
	byID := map[string]*slice{}
	for _, s := range w.slices {
		byID[s.id] = s
	}
	for _, s := range w.listing() {
		for _, d := range s.Devices {
			if d.Index < 0 || d.Index >= devices {
				continue // without NVML there are no figures
			}
			if s := byID[s.ID]; s != nil && s.state != damaged && d.Used+d.Overhead > max(s.most(w, d.Index), s.charged[d.Index]) {
				return fmt.Errorf("slice %s has charged %d and %d bytes on device %d, where it may have %d", s.id, d.Used, d.Overhead, d.Index, s.most(w, d.Index))
			}
		}
	}
	return nil
}

func (w *world) overheld() error {
	w.Helper()
	listed := w.listed()
	for _, s := range w.slices {
		for device := range devices {
			var bytes uint64
			for _, p := range s.workers {
				bytes += listed[device][p.pid]
			}
			if bytes > s.most(w, device) && s.state != damaged {
				return fmt.Errorf("the driver holds %d bytes on device %d for slice %s, which may have %d", bytes, device, s.id, s.most(w, device))
			}
		}
	}
	for _, p := range w.pools {
		for device := range devices {
			var bytes uint64
			honest := true
			for _, s := range w.slices {
				for _, q := range s.workers {
					if s.pool == p {
						bytes += listed[device][q.pid]
						honest = honest && s.state != damaged
					}
				}
			}
			if allowed := max(p.limit, slices.Max(append(p.others, 0)), p.used(w, device)); honest && bytes > allowed {
				return fmt.Errorf("the driver holds %d bytes on device %d for %s, which may have %d", bytes, device, p.name, allowed)
			}
		}
	}
	return nil
}

// most returns a slice's maximum on a device: its limit, or its use before the limit was lowered.
func (s *slice) most(_ *world, device int) uint64 { return max(slices.Max(s.limits()), s.used(device)) }

// noteCharged records use that may stay charged after its process exits, even beyond a lowered limit, until the enforcer notices
// the exit.
func (s *slice) noteCharged() {
	for device := range devices {
		s.charged[device] = max(s.charged[device], s.used(device))
	}
}

// check compares the host with the model: the driver's figures at once, since they are always exact, and the enforcer's
// eventually, since it learns of exits later.
func (w *world) check() {
	w.Helper()
	w.never(1)
	listed := w.listed()
	mine := w.leased.brokers()
	mine[w.observer.pid] = true
	for _, t := range w.turners {
		mine[t.init.pid] = true
	}
	for _, s := range w.slices {
		for _, p := range s.workers {
			mine[p.pid] = true
			for device := range devices {
				want := p.on(device)
				if !p.contexts[device] {
					want = 0 // NVML only lists processes with a context
				}
				if got := listed[device][p.pid]; got != want && s.state != damaged {
					w.fail("the driver holds %d bytes on device %d for process %d of %s, the model %d", got, device, p.pid, s.id, want)
				}
			}
		}
	}
	for device := range devices {
		for pid, bytes := range listed[device] {
			if !mine[pid] {
				w.fail("the driver holds %d bytes on device %d for process %d, which should be dead", bytes, device, pid)
			}
		}
	}
	if w.downReason != "" || w.mayFail != "" {
		return
	}
	w.resolve()
	var why error
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if why = w.differs(); why == nil {
			for _, s := range w.slices {
				s.charged = [devices]uint64{}
				s.noteCharged()
			}
			return
		}
		if time.Now().After(deadline) {
			w.fail("after %v: %v", patience, why)
		}
	}
}

// resolve determines the state of slices after a release without an answer.
func (w *world) resolve() {
	w.Helper()
	there := map[string]api.State{}
	for _, s := range w.listing() {
		there[s.ID] = s.State
	}
	for _, s := range w.slices {
		if s.state != unknown {
			continue
		}
		if s.releaseUnknown && there[s.id] != "" {
			w.fail("%s was released, which the disk was not told then, but is listed as %s", s.id, there[s.id])
		}
		s.releaseUnknown = false
		switch s.state = released; there[s.id] {
		case "":
		case api.Damaged:
			s.state = closed
		default:
			s.state = active
		}
		w.say("%s turns out to be %s", s.id, s.state)
	}
}

func (w *world) differs() error {
	w.Helper()
	listing := w.listing()
	byID := map[string]api.Slice{}
	for _, s := range listing {
		byID[s.ID] = s
	}
	dirs := len(w.leased.brokers()) + len(w.turners)
	for _, s := range w.slices {
		got, there := byID[s.id]
		delete(byID, s.id)
		if there || s.state == released && !s.session {
			dirs++ // a released container keeps its directory while it has processes
		}
		switch {
		case s.state == released && there:
			return fmt.Errorf("slice %s was released, but is listed as %s", s.id, got.State)
		case s.state == released:
		case !there:
			return fmt.Errorf("slice %s is lost", s.id)
		case s.state == damaged:
		case s.state == closed && got.State != api.Damaged:
			return fmt.Errorf("slice %s is %s, but its page was closed", s.id, got.State)
		case s.state == closed:
		default:
			if err := errors.Join(s.differs(w, got), s.lease.differs(got, w.asked.begin, w.asked.end, w.ahead)); err != nil {
				return err
			}
			s.others = nil
		}
	}
	for id, s := range byID {
		return fmt.Errorf("slice %s is still listed, as %s", id, s.State)
	}
	entries, err := os.ReadDir(w.slicesDir())
	if err != nil || len(entries) != dirs {
		return fmt.Errorf("there are %d directories for %d slices (%w)", len(entries), dirs, errors.Join(err))
	}
	if err := errors.Join(w.poolsDiffer(), w.limitsDiffer()); err != nil {
		return err
	}
	return w.socketsDiffer(dirs)
}

func (s *slice) differs(w *world, got api.Slice) error {
	if got.State != api.Active {
		return fmt.Errorf("slice %s is %s: %s", s.id, got.State, got.Reason)
	}
	for _, d := range got.Devices {
		if d.Index < 0 || d.Index >= devices {
			continue // without NVML there are no figures
		}
		if slices.Contains(s.others, d.Limit) {
			s.others = append(s.others, s.limit)
			s.limit = d.Limit
		}
		if d.Limit != s.limit && !s.elastic {
			return fmt.Errorf("slice %s has a limit of %d bytes on device %d, the model %d", s.id, d.Limit, d.Index, s.limit)
		}
		if want := s.used(d.Index); d.Used+d.Overhead != want {
			return fmt.Errorf("slice %s has charged %d and %d bytes on device %d, the model %d", s.id, d.Used, d.Overhead, d.Index, want)
		}
	}
	attached, maxAttached := 0, 0
	for _, p := range s.workers {
		if p.attached {
			attached++
		}
		if p.attached || p.gaveUp { // it may have attached late and been refused for lack of quota
			maxAttached++
		}
	}
	if got.ProcessCount < attached || got.ProcessCount > maxAttached {
		return fmt.Errorf("slice %s has %d processes attached, the model %d", s.id, got.ProcessCount, attached)
	}
	return nil
}

// socketsDiffer returns an error unless the enforcer listens on its own sockets and one per slice.
func (w *world) socketsDiffer(count int) error {
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return err
	}
	accepting := map[string]bool{} // by inode
	for line := range strings.Lines(string(text)) {
		const flags, inode = 3, 6
		if words := strings.Fields(line); len(words) > inode && words[flags] == "00010000" {
			accepting["socket:["+words[inode]+"]"] = true
		}
	}
	cmd, _ := w.daemon.now()
	dir := fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	listening := 0
	for _, e := range entries {
		if link, _ := os.Readlink(filepath.Join(dir, e.Name())); accepting[link] {
			listening++
		}
	}
	if listening != count+1 {
		return fmt.Errorf("the enforcer listens on %d sockets for %d slices", listening, count)
	}
	return nil
}

func (w *world) nothingLeft() {
	w.Helper()
	// Each poststop also cleans a few roots that missed their own.
	none := &slice{id: w.name()}
	for range 50 {
		if err := w.hook("poststop", none); err != nil {
			w.fail("poststop: %v", err)
		}
	}
	for _, dir := range []string{w.slicesDir(), filepath.Join(w.dir, "run", "hook")} {
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			w.fail("%v", err)
		}
		for _, e := range entries {
			if e.Name() != "lock" {
				w.fail("%s is left in %s", e.Name(), dir)
			}
		}
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	w.must(err)
	if n := strings.Count(string(text), " "+w.dir+"/"); n != 2 {
		w.fail("%d mounts below %s, 2 of them the test's own:\n%s", n, w.dir, text)
	}
	if all := w.listed(); len(all[0])+len(all[1]) > 0 {
		w.fail("the driver still holds memory: %v", all)
	}
}

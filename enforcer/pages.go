// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// pages says which processes have the ledgers of slices and pools mapped. By them a restarted enforcer comes back to its pages. Who
// has one need not be one of its slice any more, by cgroup or descent: a session's process may be nobody's descendant by now. So
// all processes of the host are looked at, once. It is used with the enforcer's change held.
//
// The kernel lets whoever reads the mappings of a process wait for as long as that changes them, which a hostile one can draw out;
// and on a host under load an honest one may hold them and wait for a processor. So they are looked at beside each other, and who
// does not let himself be looked at in the time that is left for all is silent: he may have any page.
type pages struct {
	log      *slog.Logger
	wanted   ledger.Wanted
	found    map[ledger.File][]int // by pid; nil if nobody has looked yet
	silent   map[int]bool
	patience time.Duration // for the next that may be silent
	looks    int

	files func(pid int, wanted ledger.Wanted) ([]ledger.File, error)
	open  func(pid int, id ledger.Identity) (*ledger.Ledger, error)
}

// Tests have others.
var (
	filesOf     = ledger.Files
	fromProcess = ledger.FromProcess
)

const (
	// mostPatience is halved each time that it was in vain: for all together it is not more than twice that. Who attaches waits for
	// five seconds for an enforcer that is started again.
	mostPatience  = 2 * time.Second
	leastPatience = 20 * time.Millisecond
	// patiencePerProcess is more than an honest one takes on an idle host.
	patiencePerProcess = time.Millisecond
	// mostLookers are the threads that silent processes may hold.
	mostLookers = 1024
	// mostLooks are how often all processes are looked at, at most: who had a page may have ended since, and left it to a child.
	mostLooks = 8
)

func newPages(log *slog.Logger) *pages {
	return &pages{
		log: log, wanted: make(ledger.Wanted), silent: make(map[int]bool), patience: mostPatience,
		files: filesOf, open: fromProcess,
	}
}

// want is called for all before anything is asked for. No inode is 0, but what a process has mapped that is no file looks like one.
func (p *pages) want(dev, inode uint64) {
	if inode != 0 {
		p.wanted.Add(ledger.File{Dev: dev, Inode: inode})
	}
}

// whoHas is who had a ledger mapped when processes were last looked at.
func (p *pages) whoHas(id ledger.Identity) []int {
	if p.found == nil {
		p.look()
	}
	return p.found[id.File()]
}

// mayHave says whether a process had the ledger mapped, or may have.
func (p *pages) mayHave(id ledger.Identity, pid int) bool {
	return slices.Contains(p.whoHas(id), pid) || p.silent[pid]
}

// fetch finds a ledger in the processes; nil if none is known to have it.
func (p *pages) fetch(id ledger.Identity) *ledger.Ledger {
	for range 3 {
		pids := p.whoHas(id)
		for _, pid := range pids {
			l, err := p.from(pid, id)
			if err == nil {
				return l
			}
			if !errors.Is(err, os.ErrNotExist) {
				p.log.Warn("look for the ledger of a slice", "pid", pid, "err", err)
			}
		}
		if len(pids) == 0 || p.looks == mostLooks {
			return nil
		}
		p.look()
	}
	return nil
}

// lost says why no other ledger may be put in the place of one that was not found: a process that was let in to it may have it, and
// what that has charged would not count.
func (p *pages) lost(letIn func(pid int) bool) error {
	for pid := range p.silent {
		if letIn(pid) {
			return fmt.Errorf("process %d does not let itself be looked at, and may have the ledger", pid)
		}
	}
	return nil
}

// from fetches a ledger from a process that had it.
func (p *pages) from(pid int, id ledger.Identity) (*ledger.Ledger, error) {
	var late atomic.Bool
	l, err := askProcess(p, pid, func() (*ledger.Ledger, error) {
		l, err := p.open(pid, id)
		if err == nil && late.Load() {
			return nil, l.Close()
		}
		return l, err
	})
	late.Store(l == nil)
	return l, err
}

// mayStillHave says whether a process that had a ledger has it now, or may have.
func (p *pages) mayStillHave(id ledger.Identity, pid int) bool {
	has, _ := askProcess(p, pid, func() (bool, error) { return ledger.Mapped(pid, id) })
	return has || p.silent[pid]
}

// askProcess asks what a process can draw out: then it is silent, and the answer os.ErrNotExist.
func askProcess[T any](p *pages, pid int, question func() (T, error)) (answer T, err error) {
	if p.silent[pid] {
		return answer, os.ErrNotExist
	}
	if answer, err = ask(make(chan struct{}, 1), p.patience, question); errors.Is(err, errHangs) {
		p.pass([]int{pid})
		err = os.ErrNotExist
	}
	return answer, err
}

// pass goes on without processes.
func (p *pages) pass(pids []int) {
	p.patience = max(p.patience/2, leastPatience)
	for _, pid := range pids {
		p.silent[pid] = true
	}
	p.log.Error("processes do not let themselves be looked at: a ledger that none but them has is not found",
		"count", len(pids), "pids", pids[:min(len(pids), 32)])
}

func (p *pages) look() {
	p.found = make(map[ledger.File][]int)
	p.looks++
	if len(p.wanted) == 0 {
		return
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		p.log.Error("look for the ledgers of slices in all processes", "err", err)
	}
	waiting := make(map[int]bool)
	next := make(chan int, len(entries))
	for _, entry := range entries {
		// This process has those that it has opened.
		if pid, err := strconv.Atoi(entry.Name()); err == nil && pid != os.Getpid() && !p.silent[pid] {
			waiting[pid] = true
			next <- pid
		}
	}
	close(next)
	type answer struct {
		pid   int
		files []ledger.File
		err   error
	}
	answers := make(chan answer, len(waiting))
	lookers := 0
	begin := func(count int) {
		lookers += count
		for range count {
			go func() {
				for pid := range next {
					files, err := p.files(pid, p.wanted)
					answers <- answer{pid, files, err}
				}
			}()
		}
	}
	begin(1)
	tick := time.NewTicker(leastPatience)
	defer tick.Stop()
	deadline := time.After(p.patience + time.Duration(len(waiting))*patiencePerProcess)
	for len(waiting) > 0 {
		select {
		case a := <-answers:
			delete(waiting, a.pid)
			if a.err != nil && !errors.Is(a.err, os.ErrNotExist) { // it has ended, or has no memory of its own
				p.log.Warn("a process cannot be looked at: if it is the last that has a slice's ledger, that is not found", "pid", a.pid, "err", a.err)
				p.silent[a.pid] = true
			}
			for _, file := range a.files {
				p.found[file] = append(p.found[file], a.pid)
			}
		case <-tick.C: // those who look may all be waiting
			if len(next) > 0 {
				begin(max(0, min(lookers, mostLookers-len(p.silent)-lookers)))
			}
		case <-deadline:
			for range next { // nobody begins with another
			}
			p.pass(slices.Sorted(maps.Keys(waiting)))
			return
		}
	}
}

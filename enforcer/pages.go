// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
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
// and on a host under load an honest one may hold them and wait for a processor. So who does not let himself be looked at
// for some time is silent, and may have any page. Each cgroup's processes are looked at beside the others': it can keep itself
// from being looked at, and nobody else.
type pages struct {
	log      *slog.Logger
	wanted   ledger.Wanted
	found    map[ledger.File][]int // by pid; nil if nobody has looked yet
	silent   map[int]bool
	patience time.Duration // for who may be silent
	looks    int
	lookers  atomic.Int32 // threads that look, or hang

	groups func() ([][]int, error)
	files  func(pid int, wanted ledger.Wanted) ([]ledger.File, error)
	open   func(pid int, id ledger.Identity) (*ledger.Ledger, error)
}

// filesOf is for tests.
var filesOf = ledger.Files

const (
	// mostPatience is halved each time that it was in vain. Who attaches waits five seconds for an enforcer that is started again.
	mostPatience  = 2 * time.Second
	leastPatience = 20 * time.Millisecond
	// patiencePerProcess is more than an honest one takes; for all of a cgroup it is mostPatience at most.
	patiencePerProcess = time.Millisecond
	// mostGroups are looked at at a time, each by some lookers at most. Who hangs holds a thread; each group has one, as long as there
	// are not twice as many.
	mostGroups, lookersOfGroup, mostLookers = 64, 16, 1024
	// mostAsked are those who are asked for a ledger at a time, of those who have it.
	mostAsked = 8
	// mostLooks are how often all processes are looked at, at most: who had a page may have ended since, and left it to a child.
	mostLooks = 8
)

func newPages(log *slog.Logger) *pages {
	return &pages{
		log: log, wanted: make(ledger.Wanted), silent: make(map[int]bool), patience: mostPatience,
		groups: byCgroup, files: filesOf, open: ledger.FromProcess,
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

// silentAmong are the silent ones of some processes.
func (p *pages) silentAmong(of func() ([]int, error)) ([]int, error) {
	if len(p.silent) == 0 {
		return nil, nil
	}
	all, err := of()
	return slices.DeleteFunc(all, func(pid int) bool { return !p.silent[pid] }), err
}

// fetch finds a ledger in the processes; nil if it does not get it from any.
func (p *pages) fetch(id ledger.Identity) *ledger.Ledger {
	asked := func() []int {
		return slices.DeleteFunc(slices.Clone(p.whoHas(id)), func(pid int) bool { return p.silent[pid] })
	}
	for tries := 0; len(asked()) > 0; tries++ {
		if tries == 3 || tries > 0 && p.looks == mostLooks {
			p.pass(asked()) // it goes from place to place there
			break
		}
		if tries > 0 {
			p.look()
		}
		all := asked()
		if l := p.from(all[:min(len(all), mostAsked)], id); l != nil {
			return l
		}
	}
	return nil
}

// from fetches a ledger from one of those who had it.
func (p *pages) from(pids []int, id ledger.Identity) *ledger.Ledger {
	type answer struct {
		pid    int
		ledger *ledger.Ledger
		err    error
	}
	answers, enough := make(chan answer), make(chan struct{})
	defer close(enough)
	waiting := make(map[int]bool)
	for _, pid := range pids {
		waiting[pid] = true
		go func() {
			l, err := p.open(pid, id)
			select {
			case answers <- answer{pid, l, err}:
			case <-enough:
				if err == nil {
					_ = l.Close()
				}
			}
		}()
	}
	deadline := time.After(p.patience)
	for len(waiting) > 0 {
		select {
		case a := <-answers:
			delete(waiting, a.pid)
			if a.err == nil {
				return a.ledger
			}
			if !errors.Is(a.err, os.ErrNotExist) {
				p.log.Warn("look for the ledger of a slice", "pid", a.pid, "err", a.err)
			}
		case <-deadline:
			p.pass(slices.Sorted(maps.Keys(waiting)))
			return nil
		}
	}
	return nil
}

// mayStillHave says whether a process that had a ledger has it now, or may have.
func (p *pages) mayStillHave(id ledger.Identity, pid int) bool {
	if p.silent[pid] {
		return true
	}
	has, err := ask(make(chan struct{}, 1), p.patience, func() (bool, error) { return ledger.Mapped(pid, id) })
	if errors.Is(err, errHangs) {
		p.pass([]int{pid})
		return true
	}
	return has
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

// byCgroup are all processes but this one, which has those that it has opened, by their cgroups, small ones first.
func byCgroup() ([][]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	groups := make(map[string][]int)
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && pid != os.Getpid() {
			cgroup, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cgroup")) // it may have ended
			groups[string(cgroup)] = append(groups[string(cgroup)], pid)
		}
	}
	return slices.SortedFunc(maps.Values(groups), func(a, b []int) int { return cmp.Compare(len(a), len(b)) }), nil
}

func (p *pages) look() {
	p.found = make(map[ledger.File][]int)
	p.looks++
	if len(p.wanted) == 0 {
		return
	}
	groups, err := p.groups()
	if err != nil {
		p.log.Error("look for the ledgers of slices in all processes", "err", err)
	}
	until := time.Now().Add(p.patience)
	results := make(chan lookedAt)
	var silent []int
	for running := 0; running > 0 || len(groups) > 0; running-- {
		for ; running < mostGroups && len(groups) > 0; running++ {
			group := slices.DeleteFunc(groups[0], func(pid int) bool { return p.silent[pid] })
			groups = groups[1:]
			go func() { results <- p.lookAt(group, until) }()
		}
		r := <-results
		for file, pids := range r.found {
			p.found[file] = append(p.found[file], pids...)
		}
		for pid, err := range r.barred {
			p.log.Warn("a process cannot be looked at: if it is the last that has a slice's ledger, that is not found", "pid", pid, "err", err)
			p.silent[pid] = true
		}
		silent = append(silent, r.silent...)
	}
	if len(silent) > 0 {
		p.pass(silent)
	}
}

// lookedAt is what became of a group's processes.
type lookedAt struct {
	found  map[ledger.File][]int
	barred map[int]error
	silent []int
}

// lookAt looks at a group's processes. It is done in a goroutine of its own.
func (p *pages) lookAt(pids []int, until time.Time) lookedAt {
	type answer struct {
		pid   int
		files []ledger.File
		err   error
	}
	waiting := make(map[int]bool, len(pids))
	next, answers := make(chan int, len(pids)), make(chan answer, len(pids))
	for _, pid := range pids {
		waiting[pid] = true
		next <- pid
	}
	close(next)
	lookers := 0
	begin := func() {
		if held := p.lookers.Add(1); held > 2*mostLookers || lookers > 0 && held > mostLookers {
			p.lookers.Add(-1)
			return
		}
		lookers++
		go func() {
			defer p.lookers.Add(-1)
			for pid := range next {
				files, err := p.files(pid, p.wanted)
				answers <- answer{pid, files, err}
			}
		}()
	}
	begin()
	tick := time.NewTicker(leastPatience)
	defer tick.Stop()
	deadline := time.After(max(time.Until(until), leastPatience) + min(time.Duration(len(pids))*patiencePerProcess, mostPatience))
	result := lookedAt{found: make(map[ledger.File][]int), barred: make(map[int]error)}
	for len(waiting) > 0 {
		select {
		case a := <-answers:
			delete(waiting, a.pid)
			if a.err != nil && !errors.Is(a.err, os.ErrNotExist) { // it has ended, or has no memory of its own
				result.barred[a.pid] = a.err
			}
			for _, file := range a.files {
				result.found[file] = append(result.found[file], a.pid)
			}
		case <-tick.C: // those who look may all be waiting
			for more := max(1, lookers); more > 0 && lookers < lookersOfGroup && len(next) > 0; more-- {
				begin()
			}
		case <-deadline:
			for range next { // nobody begins with another
			}
			result.silent = slices.Sorted(maps.Keys(waiting))
			return result
		}
	}
	return result
}

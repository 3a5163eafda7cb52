// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// pages finds the ledgers of slices and pools in the processes that have them mapped. By them a restarted enforcer comes back to its
// pages. Who has one need not be one of its slice any more, by cgroup or descent: a session's process may be nobody's descendant
// by now. So all processes of the host are looked at. It is used with the enforcer's change held.
//
// The kernel lets whoever reads the mappings of a process wait for as long as that changes them, which a hostile one can draw out;
// and on a host under load an honest one may hold them and wait for a processor. So who does not let himself be looked at
// for some time is silent, and may have any page. The processes of a user in a cgroup are looked at beside those of all
// others: they can keep themselves from being looked at, and nobody else, until more hang than there may be threads.
type pages struct {
	log      *slog.Logger
	wanted   ledger.Wanted
	looks    int
	patience time.Duration             // for who may be silent
	answers  map[int][]ledger.Found    // by pid
	holders  map[ledger.Identity][]int // the same the other way round
	silent   map[int]bool              // who did not answer, the last time
	above    map[int][]int             // their ancestors, and themselves
	failed   error                     // why it is not known who there is

	places  chan struct{} // of those who look and do not wait
	threads atomic.Int32  // of all who look, or hang

	mu   guard.Mutex[guard.Leaf]
	got  map[ledger.Identity]*ledger.Ledger // nil is one that was fetched
	over bool

	// Tests have others.
	groups func() ([][]int, error)
	find   func(pid int, wanted ledger.Wanted, open func(ledger.Identity) bool) ([]ledger.Found, error)
}

const (
	// mostPatience is halved after each look that it was in vain for. Who attaches waits five seconds for an enforcer that is started
	// again.
	mostPatience = 2 * time.Second
	// patiencePerProcess is more than an honest one takes; for all of a group it is half of the other at most.
	patiencePerProcess = time.Millisecond
	// yieldAfter is when whoever looks gives his place to another.
	yieldAfter = 20 * time.Millisecond
	// mostPlaces is for the processors; who hangs holds none, but a thread. Beyond mostThreads a group has one looker, beyond twice that
	// none.
	mostPlaces, lookersOfGroup, mostThreads = 16, 16, 1024
	// mostLooks are how often all processes are looked at, at most: who had a page may have ended since, and left it to a child.
	mostLooks = 3
)

var errSilent = errors.New("the process does not let itself be looked at")

// findIn is for tests.
var findIn = ledger.Find

func newPages(log *slog.Logger) *pages {
	return &pages{
		log: log, wanted: make(ledger.Wanted), answers: make(map[int][]ledger.Found), silent: make(map[int]bool), above: make(map[int][]int),
		patience: mostPatience, places: make(chan struct{}, mostPlaces), got: make(map[ledger.Identity]*ledger.Ledger),
		groups: byUser, find: findIn,
	}
}

// close lets go of what nobody has fetched.
func (p *pages) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	for _, l := range p.got {
		if l != nil {
			_ = l.Close()
		}
	}
}

// want is called for all before anything is asked for. No inode is 0, but what a process has mapped that is no file looks like one.
func (p *pages) want(id ledger.Identity) {
	if id.Inode != 0 {
		p.wanted.Add(id)
	}
}

// whoHas is who had a ledger mapped when processes were looked at.
func (p *pages) whoHas(id ledger.Identity) []int {
	p.look()
	return p.holders[id]
}

// mayHave says whether a process had the ledger mapped, or may have.
func (p *pages) mayHave(id ledger.Identity, pid int) bool {
	return slices.Contains(p.whoHas(id), pid) || p.silent[pid]
}

// has says whether a ledger was found, and fetch gives it to one who asks; nil if it was not found.
func (p *pages) has(id ledger.Identity) bool {
	p.look()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.got[id] != nil
}

func (p *pages) fetch(id ledger.Identity) *ledger.Ledger {
	p.look()
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.got[id]
	p.got[id] = nil
	return l
}

// mayBeWith are the processes that may have a ledger which was not found: those that have it and did not give it, and of the silent ones
// those that were let in.
func (p *pages) mayBeWith(id ledger.Identity, letIn func() (func(pid int) bool, error)) ([]int, error) {
	pids := slices.DeleteFunc(slices.Clone(p.holders[id]), ended)
	if p.failed != nil || len(p.silent) == 0 {
		return pids, p.failed
	}
	is, err := letIn()
	for pid := range p.silent {
		if err == nil && is(pid) {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

func ended(pid int) bool {
	h, err := process.Open(pid)
	if err != nil {
		return errors.Is(err, process.ErrDead)
	}
	defer h.Close()
	return !h.Alive()
}

// ancestors of a silent process, and itself.
func (p *pages) ancestors(pid int) []int {
	if _, known := p.above[pid]; !known {
		process.Ancestors(pid, func(above int) bool {
			p.above[pid] = append(p.above[pid], above)
			return true
		})
	}
	return p.above[pid]
}

// byUser are all processes but this one, which has those that it has opened, by their cgroups and users, few first.
func byUser() ([][]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	type group struct {
		cgroup string
		uid    uint32
	}
	groups := make(map[group][]int)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		of := group{}
		if info, err := entry.Info(); err == nil { // or it has ended
			of.uid = info.Sys().(*syscall.Stat_t).Uid
		}
		if cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err == nil {
			of.cgroup = string(cgroup)
		}
		groups[of] = append(groups[of], pid)
	}
	return slices.SortedFunc(maps.Values(groups), func(a, b []int) int { return cmp.Compare(len(a), len(b)) }), nil
}

// look looks at all processes, again if somebody had a page that he has not any more.
func (p *pages) look() {
	if p.looks > 0 {
		return
	}
	for p.looks = 1; len(p.wanted) > 0 && p.lookOnce() && p.looks < mostLooks; p.looks++ {
	}
}

// lookOnce says whether it has to be done again.
func (p *pages) lookOnce() (again bool) {
	groups, err := p.groups()
	if err != nil {
		p.log.Error("look for the ledgers of slices in all processes", "err", err)
		p.failed = fmt.Errorf("look for the ledger in all processes: %w", err)
		return false
	}
	results := make(chan []answer, len(groups))
	for _, group := range groups {
		group = slices.DeleteFunc(group, func(pid int) bool { return p.silent[pid] })
		p.places <- struct{}{}
		go func() { results <- p.lookAt(group) }()
	}
	answers := make(map[int][]ledger.Found)
	var silent []int
	for range groups {
		for _, a := range <-results {
			switch {
			case a.err == nil:
				answers[a.pid] = a.found
			case errors.Is(a.err, os.ErrNotExist): // it has ended
			case errors.Is(a.err, errSilent):
				silent = append(silent, a.pid)
			default:
				p.log.Warn("a process cannot be looked at: if it is the last that has a slice's ledger, that is not found", "pid", a.pid, "err", a.err)
				p.silent[a.pid] = true
			}
		}
	}
	if len(silent) > 0 {
		p.patience /= 2
		slices.Sort(silent)
		p.log.Error("processes do not let themselves be looked at: a ledger that none but them has is not found",
			"count", len(silent), "pids", silent[:min(len(silent), 32)])
		for _, pid := range silent {
			p.silent[pid] = true
		}
	}
	for pid := range p.silent { // what it answered before
		if before, answered := p.answers[pid]; answered {
			answers[pid] = before
		}
	}
	p.answers, p.holders = answers, make(map[ledger.Identity][]int)
	p.mu.Lock()
	defer p.mu.Unlock()
	for pid, all := range answers {
		for _, f := range all {
			p.holders[f.Identity] = append(p.holders[f.Identity], pid)
			if f.Err != nil && p.got[f.Identity] == nil {
				again = true
				if !errors.Is(f.Err, os.ErrNotExist) {
					p.log.Warn("open the ledger of a slice", "pid", pid, "err", f.Err)
				}
			}
		}
	}
	return again
}

// answer is what became of a process that was looked at: errSilent if it is silent.
type answer struct {
	pid   int
	found []ledger.Found
	err   error
}

// lookAt looks at processes that answer for each other. It has a place among those who look, for its first looker.
func (p *pages) lookAt(pids []int) (all []answer) {
	waiting := make(map[int]bool, len(pids))
	next, answers := make(chan int, len(pids)), make(chan answer, len(pids))
	for _, pid := range pids {
		waiting[pid] = true
		next <- pid
	}
	close(next)
	take := func(a answer) {
		delete(waiting, a.pid)
		all = append(all, a)
	}
	if p.threads.Load() < 2*mostThreads {
		go p.looker(next, answers, true)
	} else {
		<-p.places
	}
	tick := time.NewTicker(yieldAfter)
	defer tick.Stop()
	// Time counts only while this is done at all: a host that does not let the enforcer go on, either, makes nobody silent.
	patience := p.patience + min(time.Duration(len(pids))*patiencePerProcess, p.patience/2)
	for lookers := 1; len(waiting) > 0; {
		select {
		case a := <-answers:
			take(a)
			continue
		case <-tick.C:
			patience -= yieldAfter
		}
		if patience <= 0 {
			break
		}
		// Those who look may all be waiting.
		for more := lookers; more > 0 && lookers < lookersOfGroup && len(next) > 0 && p.threads.Load() < mostThreads; more-- {
			lookers++
			go p.looker(next, answers, false)
		}
	}
	for range next { // nobody begins with another
	}
	for len(answers) > 0 {
		take(<-answers)
	}
	for pid := range waiting {
		all = append(all, answer{pid: pid, err: errSilent})
	}
	return all
}

// looker looks at one process after the other. Who is kept waiting gives his place to another.
func (p *pages) looker(next <-chan int, answers chan<- answer, placed bool) {
	p.threads.Add(1)
	defer p.threads.Add(-1)
	for pid := range next {
		if !placed {
			p.places <- struct{}{}
		}
		timer := time.AfterFunc(yieldAfter, func() { <-p.places })
		found, err := p.find(pid, p.wanted, p.missing)
		placed = timer.Stop()
		p.keep(found)
		answers <- answer{pid, found, err}
	}
	if placed {
		<-p.places
	}
}

// missing says whether a ledger was not found yet.
func (p *pages) missing(id ledger.Identity) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, fetched := p.got[id]
	return l == nil && !fetched && !p.over
}

// keep keeps what was found first, whenever that is.
func (p *pages) keep(found []ledger.Found) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, f := range found {
		if f.Ledger == nil {
			continue
		}
		if _, known := p.got[f.Identity]; known || p.over {
			_ = f.Ledger.Close()
		} else {
			p.got[f.Identity] = f.Ledger
		}
		found[i].Ledger = nil
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package recovery finds the ledgers of slices after a restart, in the processes that have them mapped. So the enforcer stores nothing per
// attach, and hands no descriptor to its successor.
//
// A search reads the processes in the slices' cgroups first. If a ledger is still missing, it reads each process of the host once: a
// process may keep a ledger after it has left its slice's cgroup and process tree.
//
// A reader of a process's mappings waits while the process changes them. A hostile process can prolong this, and on a loaded host an honest
// one may be preempted with its mappings locked. A process that does not answer in time is therefore unreadable, and may have any ledger.
// Processes are grouped by cgroup and user, and the groups are read concurrently. A group can delay only itself until hung readers reach
// the thread limit.
//
// The package must never decide what follows: the enforcer decides whether a slice continues.
package recovery

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
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// Scan is one search for ledgers. It is not safe for concurrent use.
type Scan struct {
	log        *slog.Logger
	wanted     ledger.Wanted
	own        []func() ([]int, error) // lists of processes to read first
	everywhere bool                    // any process may have a wanted ledger
	complete   bool                    // all processes were read
	timeout    time.Duration
	answers    map[int][]ledger.Found    // ledgers by pid
	holders    map[ledger.Identity][]int // pids by ledger
	unreadable map[int]bool              // processes that timed out
	above      map[int][]int             // ancestors by pid, including the process itself
	failed     error                     // why the processes cannot be listed

	places  chan struct{} // slots of active readers that are not blocked
	threads atomic.Int32  // all readers, including blocked ones

	mu       guard.Mutex[guard.Leaf]            // guards got and over
	got      map[ledger.Identity]*ledger.Ledger // nil after Take
	finished bool

	// Tests replace these.
	all   func() ([]int, error)
	group func(pids []int) [][]int // groups the processes that are read together
	find  Find
}

// Find is the signature of ledger.Find. Tests replace it.
type Find func(pid int, wanted ledger.Wanted, open func(ledger.Identity) bool) ([]ledger.Found, error)

const (
	// maxTimeout is the initial timeout of a round. A round with unreadable processes halves it. An attaching process waits five seconds
	// for a restarted enforcer.
	maxTimeout = 2 * time.Second
	// timeoutPerProcess exceeds the time that an honest process takes. Over a group it adds at most half of the timeout.
	timeoutPerProcess = time.Millisecond
	// yieldAfter is when a blocked reader gives up its slot.
	yieldAfter = 20 * time.Millisecond
	// maxPlaces bounds the active readers. A blocked reader holds a thread but no slot. Above maxThreads a group gets a single reader,
	// above twice that none.
	maxPlaces, readersOfGroup, maxThreads = 16, 16, 1024
	// maxRounds is the maximum number of rounds. A process with a ledger may have exited since, and left it to a child.
	maxRounds = 3
)

var errUnreadable = errors.New("reading the process's mappings timed out")

// New returns a search. Want adds ledgers, Run searches, and the other methods return the results.
func New(log *slog.Logger, find Find) *Scan {
	return &Scan{
		log: log, wanted: make(ledger.Wanted), answers: make(map[int][]ledger.Found), unreadable: make(map[int]bool), above: make(map[int][]int),
		timeout: maxTimeout, places: make(chan struct{}, maxPlaces), got: make(map[ledger.Identity]*ledger.Ledger),
		all: allPIDs, group: byUser, find: find,
	}
}

// Close closes the ledgers that Take has not returned.
func (s *Scan) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = true
	for _, l := range s.got {
		if l != nil {
			_ = l.Close()
		}
	}
}

// Want adds a ledger. own lists the processes that most likely have it; without own, any process of the host may. Inode 0 is ignored: no
// file has it, and mappings without a file show it.
func (s *Scan) Want(id ledger.Identity, own ...func() ([]int, error)) {
	if id.Inode == 0 {
		return
	}
	s.wanted.Add(id)
	s.own = append(s.own, own...)
	s.everywhere = s.everywhere || len(own) == 0
}

// HeldBy returns the processes that had a ledger mapped when they were read. The list is complete for a ledger that Want added without own.
func (s *Scan) HeldBy(id ledger.Identity) []int {
	return s.holders[id]
}

// MayHold reports whether a process had the ledger mapped, or was unreadable.
func (s *Scan) MayHold(id ledger.Identity, pid int) bool {
	if _, asked := s.answers[pid]; !asked && !s.unreadable[pid] && !s.complete {
		guard.MayWait("the mappings of a process")
		s.places <- struct{}{}
		s.recordAnswers(s.read([]int{pid}))
	}
	return slices.Contains(s.holders[id], pid) || s.unreadable[pid]
}

// Found reports whether a ledger was found and not taken. Take returns it once, and nil after that or if it was not found.
func (s *Scan) Found(id ledger.Identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got[id] != nil
}

func (s *Scan) Take(id ledger.Identity) *ledger.Ledger {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.got[id]
	s.got[id] = nil
	return l
}

// MayBeWith returns the live processes that may have a missing ledger. It returns those that map it while its file cannot be opened, and
// the unreadable ones that admitted accepts.
func (s *Scan) MayBeWith(id ledger.Identity, admitted func() (func(pid int) bool, error)) ([]int, error) {
	pids := slices.DeleteFunc(slices.Clone(s.holders[id]), ended)
	if s.failed != nil || len(s.unreadable) == 0 {
		return pids, s.failed
	}
	ok, err := admitted()
	for pid := range s.unreadable {
		if err == nil && ok(pid) {
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

// Ancestors returns an unreadable process and its ancestors.
func (s *Scan) Ancestors(pid int) []int {
	if _, known := s.above[pid]; !known {
		process.Ancestors(pid, func(above int) bool {
			s.above[pid] = append(s.above[pid], above)
			return true
		})
	}
	return s.above[pid]
}

// allPIDs returns all processes but the enforcer's own, which maps the ledgers that it has opened.
func allPIDs() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// byUser groups processes by cgroup and user, small groups first.
func byUser(pids []int) [][]int {
	type group struct {
		cgroup string
		uid    uint32
	}
	groups := make(map[group][]int)
	for _, pid := range pids {
		of := group{}
		var st unix.Stat_t
		if unix.Stat(fmt.Sprintf("/proc/%d", pid), &st) == nil {
			of.uid = st.Uid
		}
		if cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err == nil {
			of.cgroup = string(cgroup)
		}
		groups[of] = append(groups[of], pid)
	}
	return slices.SortedFunc(maps.Values(groups), func(a, b []int) int { return cmp.Compare(len(a), len(b)) })
}

// Run reads the likely processes, and then all of the host if ledgers are missing.
func (s *Scan) Run() {
	guard.MayWait("the mappings of processes")
	if len(s.wanted) == 0 || !s.everywhere && s.rounds(s.likelyPIDs) && s.foundAll() {
		return
	}
	s.complete = s.rounds(s.all)
}

// likelyPIDs returns the processes that most likely have the wanted ledgers.
func (s *Scan) likelyPIDs() ([]int, error) {
	var all []int
	for _, own := range s.own {
		pids, err := own()
		if err != nil {
			return nil, err
		}
		all = append(all, pids...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func (s *Scan) foundAll() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.got) == len(s.wanted)
}

// rounds reads the processes, up to maxRounds times while a found ledger cannot be opened. It reports whether the processes could be
// listed.
func (s *Scan) rounds(processes func() ([]int, error)) bool {
	for n := 1; ; n++ {
		pids, err := processes()
		s.failed = err
		if err != nil {
			s.log.Error("cannot list processes: ledgers of slices are not found", "err", err)
			s.failed = fmt.Errorf("cannot list the processes that may have the ledger: %w", err)
			return false
		}
		if !s.round(s.group(pids)) || n == maxRounds {
			return true
		}
	}
}

// round reads all groups once, and reports whether another round is needed.
func (s *Scan) round(groups [][]int) (again bool) {
	results := make(chan []answer, len(groups))
	for _, group := range groups {
		group = slices.DeleteFunc(group, func(pid int) bool { return s.unreadable[pid] })
		s.places <- struct{}{}
		go func() { results <- s.read(group) }()
	}
	before := s.answers
	s.answers, s.holders = make(map[int][]ledger.Found), make(map[ledger.Identity][]int)
	var all []answer
	for range groups {
		all = append(all, <-results...)
	}
	for pid := range s.unreadable { // keep its earlier answer
		if found, answered := before[pid]; answered {
			all = append(all, answer{pid: pid, found: found})
		}
	}
	return s.recordAnswers(all)
}

// recordAnswers records answers, and reports whether a ledger could not be opened.
func (s *Scan) recordAnswers(all []answer) (again bool) {
	var unreadable []int
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range all {
		switch {
		case a.err == nil:
			s.answers[a.pid] = a.found
		case errors.Is(a.err, os.ErrNotExist): // it has exited
			s.answers[a.pid] = nil
		case errors.Is(a.err, errUnreadable):
			unreadable = append(unreadable, a.pid)
		default:
			s.log.Warn("cannot read a process's mappings: ledgers mapped only there are not found", "pid", a.pid, "err", a.err)
			s.unreadable[a.pid] = true
		}
		for _, f := range a.found {
			s.holders[f.Identity] = append(s.holders[f.Identity], a.pid)
			if f.Err != nil && s.got[f.Identity] == nil {
				again = true
				if !errors.Is(f.Err, os.ErrNotExist) {
					s.log.Warn("cannot open a slice's ledger in a process", "pid", a.pid, "err", f.Err)
				}
			}
		}
	}
	if len(unreadable) > 0 {
		s.timeout /= 2
		slices.Sort(unreadable)
		s.log.Error("reading process mappings timed out: ledgers mapped only there are not found",
			"count", len(unreadable), "pids", unreadable[:min(len(unreadable), 32)])
		for _, pid := range unreadable {
			s.unreadable[pid] = true
		}
	}
	return again
}

// answer is the result of reading one process, with errUnreadable after a timeout.
type answer struct {
	pid   int
	found []ledger.Found
	err   error
}

// read reads a group of processes. The caller has taken a slot for its first reader.
func (s *Scan) read(pids []int) (all []answer) {
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
	if s.threads.Load() < 2*maxThreads {
		go s.reader(next, answers, true)
	} else {
		<-s.places
	}
	tick := time.NewTicker(yieldAfter)
	defer tick.Stop()
	// Count down by ticks, not by the clock: while the host does not schedule the enforcer itself, no process times out.
	left := s.timeout + min(time.Duration(len(pids))*timeoutPerProcess, s.timeout/2)
	for readers := 1; len(waiting) > 0; {
		select {
		case a := <-answers:
			take(a)
			continue
		case <-tick.C:
			left -= yieldAfter
		}
		if left <= 0 {
			break
		}
		// All readers may be blocked.
		for more := readers; more > 0 && readers < readersOfGroup && len(next) > 0 && s.threads.Load() < maxThreads; more-- {
			readers++
			go s.reader(next, answers, false)
		}
	}
	for range next { // drop the processes that no reader has begun
	}
	for len(answers) > 0 {
		take(<-answers)
	}
	for pid := range waiting {
		all = append(all, answer{pid: pid, err: errUnreadable})
	}
	return all
}

// reader reads one process after another. A blocked reader gives up its slot.
func (s *Scan) reader(next <-chan int, answers chan<- answer, placed bool) {
	s.threads.Add(1)
	defer s.threads.Add(-1)
	for pid := range next {
		if !placed {
			s.places <- struct{}{}
		}
		timer := time.AfterFunc(yieldAfter, func() { <-s.places })
		found, err := s.find(pid, s.wanted, s.missing)
		placed = timer.Stop()
		s.keep(found)
		answers <- answer{pid, found, err}
	}
	if placed {
		<-s.places
	}
}

// missing reports whether a ledger is still to be found.
func (s *Scan) missing(id ledger.Identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.got[id]
	return !known && !s.finished
}

// keep stores the first copy of each ledger, and closes the others.
func (s *Scan) keep(found []ledger.Found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, f := range found {
		if f.Ledger == nil {
			continue
		}
		if _, known := s.got[f.Identity]; known || s.finished {
			_ = f.Ledger.Close()
		} else {
			s.got[f.Identity] = f.Ledger
		}
		found[i].Ledger = nil
	}
}

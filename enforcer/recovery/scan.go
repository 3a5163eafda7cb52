// SPDX-License-Identifier: Apache-2.0

// Package recovery finds ledgers again after a restart, in the processes that have them mapped: nothing is stored per attach, and no
// descriptor is handed on.
//
// The processes of the slices' cgroups are asked first, and if that does not find all ledgers each process of the host, once: who has
// one need not be of its slice any more, by cgroup or descent.
//
// The kernel lets whoever reads the mappings of a process wait for as long as that changes them, which a hostile one can draw out;
// and on a host under load an honest one may hold them and wait for a processor. So one that does not answer in time is unreadable, and may
// have any ledger. The processes of a user in a cgroup are asked beside those of all others: they can keep themselves from being
// read, and nobody else, until more hang than there may be threads.
//
// It must never decide what follows from that: whether a slice goes on is for the enforcer.
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

// Scan is one search for ledgers. It is for one goroutine.
type Scan struct {
	log        *slog.Logger
	wanted     ledger.Wanted
	own        []func() ([]int, error) // whom to ask first
	everywhere bool                    // a ledger may be with any process
	complete   bool                    // all processes were asked
	timeout    time.Duration
	answers    map[int][]ledger.Found    // by pid
	holders    map[ledger.Identity][]int // the same the other way round
	unreadable map[int]bool              // who did not answer, the last time
	above      map[int][]int             // their ancestors, and themselves
	failed     error                     // why it is not known who there is

	places  chan struct{} // of those who read and do not wait
	threads atomic.Int32  // of all who read, or hang

	mu   guard.Mutex[guard.Leaf]            // guards the ledgers that were found
	got  map[ledger.Identity]*ledger.Ledger // nil is one that was taken
	over bool

	// Tests have others.
	all   func() ([]int, error)
	group func(pids []int) [][]int // of processes that answer for each other
	find  Find
}

// Find is ledger.Find, or what a test has in its place.
type Find func(pid int, wanted ledger.Wanted, open func(ledger.Identity) bool) ([]ledger.Found, error)

const (
	// maxTimeout is halved after each round in which somebody was unreadable. Who attaches waits five seconds for an enforcer that is
	// started again.
	maxTimeout = 2 * time.Second
	// timeoutPerProcess is more than an honest one takes; for all of a group it is half of the other at most.
	timeoutPerProcess = time.Millisecond
	// yieldAfter is when a reader gives its place to another.
	yieldAfter = 20 * time.Millisecond
	// maxPlaces is for the processors; a reader that hangs holds none, but a thread. Beyond maxThreads a group has one reader, beyond
	// twice that none.
	maxPlaces, readersOfGroup, maxThreads = 16, 16, 1024
	// maxRounds are how often processes are asked, at most: who had a ledger may have ended since, and left it to a child.
	maxRounds = 3
)

var errUnreadable = errors.New("reading the process's mappings timed out")

// New makes a search: Want says for what, Run does it, and the others what was found.
func New(log *slog.Logger, find Find) *Scan {
	return &Scan{
		log: log, wanted: make(ledger.Wanted), answers: make(map[int][]ledger.Found), unreadable: make(map[int]bool), above: make(map[int][]int),
		timeout: maxTimeout, places: make(chan struct{}, maxPlaces), got: make(map[ledger.Identity]*ledger.Ledger),
		all: everybody, group: byUser, find: find,
	}
}

// Close lets go of what nobody has taken.
func (s *Scan) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for _, l := range s.got {
		if l != nil {
			_ = l.Close()
		}
	}
}

// Want adds a ledger. own are the processes that most likely have it; nil is any process of the
// host. No inode is 0, but what a process has mapped that is no file looks like one.
func (s *Scan) Want(id ledger.Identity, own ...func() ([]int, error)) {
	if id.Inode == 0 {
		return
	}
	s.wanted.Add(id)
	s.own = append(s.own, own...)
	s.everywhere = s.everywhere || len(own) == 0
}

// HeldBy is who had a ledger mapped when processes were asked: all of them, of one that is wanted from any process.
func (s *Scan) HeldBy(id ledger.Identity) []int {
	return s.holders[id]
}

// MayHold says whether a process had the ledger mapped, or may have.
func (s *Scan) MayHold(id ledger.Identity, pid int) bool {
	if _, asked := s.answers[pid]; !asked && !s.unreadable[pid] && !s.complete {
		guard.MayWait("the mappings of a process")
		s.places <- struct{}{}
		s.note(s.read([]int{pid}))
	}
	return slices.Contains(s.holders[id], pid) || s.unreadable[pid]
}

// Found says whether a ledger was found, and Take gives it to one caller; nil if it was not found.
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

// MayBeWith are the processes that may have a ledger which was not found: those that have it and did not give it, and of the unreadable ones
// those that were admitted to it.
func (s *Scan) MayBeWith(id ledger.Identity, admitted func() (func(pid int) bool, error)) ([]int, error) {
	pids := slices.DeleteFunc(slices.Clone(s.holders[id]), ended)
	if s.failed != nil || len(s.unreadable) == 0 {
		return pids, s.failed
	}
	is, err := admitted()
	for pid := range s.unreadable {
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

// Ancestors of an unreadable process, and itself.
func (s *Scan) Ancestors(pid int) []int {
	if _, known := s.above[pid]; !known {
		process.Ancestors(pid, func(above int) bool {
			s.above[pid] = append(s.above[pid], above)
			return true
		})
	}
	return s.above[pid]
}

// everybody is all processes but this one, which has those ledgers that it has opened.
func everybody() ([]int, error) {
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

// byUser groups processes by their cgroups and users, few first.
func byUser(pids []int) [][]int {
	type group struct {
		cgroup string
		uid    uint32
	}
	groups := make(map[group][]int)
	for _, pid := range pids {
		of := group{}
		var st unix.Stat_t
		if unix.Stat(fmt.Sprintf("/proc/%d", pid), &st) == nil { // else it has ended
			of.uid = st.Uid
		}
		if cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err == nil {
			of.cgroup = string(cgroup)
		}
		groups[of] = append(groups[of], pid)
	}
	return slices.SortedFunc(maps.Values(groups), func(a, b []int) int { return cmp.Compare(len(a), len(b)) })
}

// Run asks the processes that most likely have what is wanted, and then, if that was not all, each of the host.
func (s *Scan) Run() {
	guard.MayWait("the mappings of processes")
	if len(s.wanted) == 0 || !s.everywhere && s.rounds(s.likely) && s.foundAll() {
		return
	}
	s.complete = s.rounds(s.all)
}

// likely are the processes that most likely have what is wanted.
func (s *Scan) likely() ([]int, error) {
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

// rounds asks processes, again if somebody had a ledger that it has not any more. It says whether it is known who there is.
func (s *Scan) rounds(processes func() ([]int, error)) bool {
	for n := 1; ; n++ {
		pids, err := processes()
		s.failed = err
		if err != nil {
			s.log.Error("look for the slices' ledgers in processes", "err", err)
			s.failed = fmt.Errorf("look for the ledger in all processes: %w", err)
			return false
		}
		if !s.round(s.group(pids)) || n == maxRounds {
			return true
		}
	}
}

// round says whether it has to be done again.
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
	for pid := range s.unreadable { // what it answered before
		if found, answered := before[pid]; answered {
			all = append(all, answer{pid: pid, found: found})
		}
	}
	return s.note(all)
}

// note takes answers down, and says whether one had a ledger that could not be opened.
func (s *Scan) note(all []answer) (again bool) {
	var unreadable []int
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range all {
		switch {
		case a.err == nil:
			s.answers[a.pid] = a.found
		case errors.Is(a.err, os.ErrNotExist): // it has ended
			s.answers[a.pid] = nil
		case errors.Is(a.err, errUnreadable):
			unreadable = append(unreadable, a.pid)
		default:
			s.log.Warn("process mappings cannot be read: a slice's ledger that is mapped only there is not found", "pid", a.pid, "err", a.err)
			s.unreadable[a.pid] = true
		}
		for _, f := range a.found {
			s.holders[f.Identity] = append(s.holders[f.Identity], a.pid)
			if f.Err != nil && s.got[f.Identity] == nil {
				again = true
				if !errors.Is(f.Err, os.ErrNotExist) {
					s.log.Warn("open the ledger of a slice", "pid", a.pid, "err", f.Err)
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

// answer is what became of asking a process: errUnreadable if it did not answer in time.
type answer struct {
	pid   int
	found []ledger.Found
	err   error
}

// read asks processes that answer for each other. It has a place, for its first reader.
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
	// Time counts only while this is done at all: a host that does not let the enforcer go on, either, makes nobody unreadable.
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
		// The readers may all be waiting.
		for more := readers; more > 0 && readers < readersOfGroup && len(next) > 0 && s.threads.Load() < maxThreads; more-- {
			readers++
			go s.reader(next, answers, false)
		}
	}
	for range next { // nobody begins with another
	}
	for len(answers) > 0 {
		take(<-answers)
	}
	for pid := range waiting {
		all = append(all, answer{pid: pid, err: errUnreadable})
	}
	return all
}

// reader asks one process after the other. One that is kept waiting gives its place to another.
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

// missing says whether a ledger was not found yet.
func (s *Scan) missing(id ledger.Identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.got[id]
	return !known && !s.over
}

// keep keeps what was found first, whenever that is.
func (s *Scan) keep(found []ledger.Found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, f := range found {
		if f.Ledger == nil {
			continue
		}
		if _, known := s.got[f.Identity]; known || s.over {
			_ = f.Ledger.Close()
		} else {
			s.got[f.Identity] = f.Ledger
		}
		found[i].Ledger = nil
	}
}

// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// theLedger is the ledger that the tests search for.
var theLedger = ledger.Identity{Dev: 1, Inode: 7}

// newTestScan returns a scan of a host with these groups of processes. Reads of some hang until the test ends, and some have the ledger.
func newTestScan(t *testing.T, groups [][]int, hang, have func(pid int) bool) (s *Scan, asked func(pid int) int) {
	t.Helper()
	s = New(slog.New(slog.DiscardHandler), nil)
	t.Cleanup(s.Close)
	s.Want(theLedger)
	s.all = func() ([]int, error) { return slices.Concat(groups...), nil }
	s.group = func(pids []int) (all [][]int) {
		asked := make(map[int]bool)
		for _, pid := range pids {
			asked[pid] = true
		}
		for _, group := range groups {
			all = append(all, slices.DeleteFunc(slices.Clone(group), func(pid int) bool { return !asked[pid] }))
		}
		return all
	}
	var mu sync.Mutex
	times := make(map[int]int)
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	s.find = func(pid int, _ ledger.Wanted, _ func(ledger.Identity) bool) ([]ledger.Found, error) {
		mu.Lock()
		times[pid]++
		mu.Unlock()
		if hang(pid) {
			<-ended
		}
		if have(pid) {
			return []ledger.Found{{Identity: theLedger}}, nil
		}
		return nil, os.ErrNotExist
	}
	return s, func(pid int) int {
		mu.Lock()
		defer mu.Unlock()
		return times[pid]
	}
}

func span(from, to int) (all []int) {
	for pid := from; pid <= to; pid++ {
		all = append(all, pid)
	}
	return all
}

func isOneOf(pids ...int) func(int) bool {
	return func(pid int) bool { return slices.Contains(pids, pid) }
}

func admitted(pids ...int) func() (func(int) bool, error) {
	return func() (func(int) bool, error) { return isOneOf(pids...), nil }
}

// An unreadable process does not hide a ledger that another process has.
func TestScanSkipsAHungProcess(t *testing.T) {
	s, _ := newTestScan(t, [][]int{{1, 2, 3, 4}}, isOneOf(1), isOneOf(3))
	find := s.find
	s.find = func(pid int, wanted ledger.Wanted, open func(ledger.Identity) bool) ([]ledger.Found, error) {
		if pid == 2 {
			return nil, os.ErrPermission
		}
		return find(pid, wanted, open)
	}
	s.Run()
	must.True(t, slices.Equal(s.HeldBy(theLedger), []int{3}), "it is held by", s.HeldBy(theLedger))
	for pid, want := range map[int]bool{1: true, 2: true, 3: true, 4: false} {
		expect.Equal(t, s.MayHold(theLedger, pid), want, "process", pid, "may have it", !want)
	}
	got, err := s.MayBeWith(ledger.Identity{}, admitted(1, 2, 4))
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []int{1, 2}) {
		t.Errorf("%v, %v", got, err)
	}
}

// On a loaded host a process may be preempted while it changes its mappings.
func TestTheScanWaitsForASlowProcess(t *testing.T) {
	s, _ := newTestScan(t, [][]int{{1, 2}}, isOneOf(), isOneOf(1, 2))
	find := s.find
	s.find = func(pid int, wanted ledger.Wanted, open func(ledger.Identity) bool) ([]ledger.Found, error) {
		if pid == 1 {
			time.Sleep(maxTimeout / 4)
		}
		return find(pid, wanted, open)
	}
	s.Run()
	if got := slices.Sorted(slices.Values(s.HeldBy(theLedger))); !slices.Equal(got, []int{1, 2}) || len(s.unreadable) > 0 {
		t.Fatalf("found in %v, unreadable %v", got, s.unreadable)
	}
}

// Any number of hung processes, of any user or cgroup, leaves the others readable, and holds few threads.
func TestManyHungProcessesDoNotBlockTheScan(t *testing.T) {
	honest := span(1, 100)
	groups := [][]int{span(1001, 6000), honest}
	for first := 10_000; first < 14_000; first += 20 {
		groups = append(groups, span(first, first+19))
	}
	groups = append(groups, []int{101})
	s, asked := newTestScan(t, groups, func(pid int) bool { return pid > 101 }, func(pid int) bool { return pid <= 101 })
	begin := time.Now()
	s.Run()
	if got := slices.Sorted(slices.Values(s.HeldBy(theLedger))); !slices.Equal(got, append(honest, 101)) {
		t.Fatalf("%v have it", got)
	}
	if len(s.unreadable) != 9000 || s.unreadable[101] || s.threads.Load() > 2*maxThreads {
		t.Errorf("%d are unreadable, %d hold a thread", len(s.unreadable), s.threads.Load())
	}
	hung := 0
	for _, pid := range groups[0] {
		hung += asked(pid)
	}
	expect.True(t, hung <= readersOfGroup, hung, "threads are held by one group")
	t.Logf("9000 of 201 groups hang: %v", time.Since(begin))
}

// A ledger comes from any process that gives it, even late, and is closed if it is not taken.
func TestALedgerIsFoundInAnyProcessThatMapsIt(t *testing.T) {
	const hangs, moves, gives, late = 1, 2, 3, 4
	pages := make(map[int]*ledger.Ledger)
	for _, pid := range []int{gives, late} {
		var err error
		if pages[pid], err = ledger.Create([16]byte{byte(pid)}); err != nil {
			t.Fatal(err)
		}
	}
	wait := make(chan struct{})
	host := func(pids ...int) *counted {
		s, asked := newTestScan(t, [][]int{pids}, isOneOf(hangs), isOneOf(pids...))
		find := s.find
		s.find = func(pid int, wanted ledger.Wanted, open func(ledger.Identity) bool) ([]ledger.Found, error) {
			found, err := find(pid, wanted, open)
			if l := pages[pid]; l != nil && open(theLedger) {
				found[0].Ledger = l
			} else if pid == moves {
				found[0].Err = os.ErrNotExist
			}
			if pid == late {
				<-wait
			}
			return found, err
		}
		return &counted{s, asked}
	}
	s := host(hangs, moves, gives)
	s.Run()
	must.True(t, s.Found(theLedger) && s.Take(theLedger) == pages[gives] && s.Take(theLedger) == nil && !s.Found(theLedger), "the ledger was not found, or twice")
	s = host(moves, late)
	s.Run()
	if s.Take(theLedger) != nil || s.asked(moves) != maxRounds {
		t.Fatalf("the ledger came from another process: %d reads", s.asked(moves))
	}
	if got, err := s.MayBeWith(theLedger, admitted(late, 5)); err != nil || !slices.Contains(got, late) || slices.Contains(got, 5) {
		t.Errorf("processes that may have the ledger: %v, %v", got, err)
	}
	s.Close()
	close(wait)
	await.That(t, "its threads have ended", func() bool { return s.threads.Load() == 0 })
	expect.True(t, !must.Get(ledger.Mapped(os.Getpid(), pages[late].Identity()))(t), "a ledger that came too late stays open")
	_ = pages[gives].Close()
}

type counted struct {
	*Scan
	asked func(pid int) int
}

// A host may have many processes outside of all slices.
func TestTheSlicesOwnProcessesAreAskedFirst(t *testing.T) {
	own := func() ([]int, error) { return []int{1, 2}, nil }
	for name, c := range map[string]struct {
		has  int
		own  []func() ([]int, error)
		asks []int
	}{
		"one of them has it":       {2, []func() ([]int, error){own}, []int{1, 2}},
		"another has it":           {3, []func() ([]int, error){own}, []int{1, 2, 3, 4}},
		"anybody may have another": {2, nil, []int{1, 2, 3, 4}},
		"they cannot be listed": {3, []func() ([]int, error){own, func() ([]int, error) {
			return nil, os.ErrPermission
		}}, []int{1, 2, 3, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			l := must.Get(ledger.Create([16]byte{1}))(t)
			s, asked := newTestScan(t, [][]int{{1, 2}, {3}, {4}}, isOneOf(), isOneOf())
			s.wanted, s.own, s.everywhere = make(ledger.Wanted), nil, false
			s.Want(theLedger, c.own...)
			find := s.find
			s.find = func(pid int, wanted ledger.Wanted, open func(ledger.Identity) bool) ([]ledger.Found, error) {
				_, err := find(pid, wanted, open)
				if pid == c.has && open(theLedger) {
					return []ledger.Found{{Identity: theLedger, Ledger: l}}, nil
				}
				return nil, err
			}
			s.Run()
			must.Equal(t, s.Take(theLedger), l, "it was not found")
			for pid := 1; pid <= 4; pid++ {
				expect.Equal(t, asked(pid) > 0, slices.Contains(c.asks, pid), "process", pid, "is asked")
			}
			expect.True(t, !s.MayHold(theLedger, 4) && s.MayHold(theLedger, c.has), "holders are known without a list of processes")
			expect.Equal(t, asked(4), 1, "process 4 was asked")
		})
	}
}

// A process that has left its slice's cgroup is read alone, and may time out.
func TestAProcessElsewhereThatDoesNotAnswerMayHaveALedger(t *testing.T) {
	s, _ := newTestScan(t, [][]int{{1}, {2}}, isOneOf(2), isOneOf(1))
	s.wanted, s.everywhere = make(ledger.Wanted), false
	s.Want(theLedger, func() ([]int, error) { return []int{1}, nil })
	s.got[theLedger] = nil // the ledger was found
	s.Run()
	expect.True(t, s.MayHold(theLedger, 2) && !s.complete, "a process that timed out counts as readable")
}

// A live process that maps a ledger may charge it, even if the file cannot be opened.
func TestProcessWithAnUnopenableLedgerMayHaveIt(t *testing.T) {
	const ended = 1 << 30
	s, _ := newTestScan(t, [][]int{{os.Getppid(), ended}}, isOneOf(), isOneOf())
	s.find = func(int, ledger.Wanted, func(ledger.Identity) bool) ([]ledger.Found, error) {
		return []ledger.Found{{Identity: theLedger, Err: os.ErrNotExist}}, nil
	}
	s.Run()
	must.True(t, s.Take(theLedger) == nil, "who gave it?")
	expect.EqualSlices(t, must.Get(s.MayBeWith(theLedger, admitted()))(t), []int{os.Getppid()}, "it may be with")
}

// Without a list of processes, any process may have any ledger.
func TestWithoutAProcessListAnyProcessMayHaveALedger(t *testing.T) {
	s, _ := newTestScan(t, nil, isOneOf(), isOneOf())
	s.all = func() ([]int, error) { return nil, os.ErrPermission }
	s.Run()
	must.True(t, s.Take(theLedger) == nil, "what was found?")
	expect.ErrorIs(t, must.Err(s.MayBeWith(theLedger, admitted())), os.ErrPermission)
}

func TestProcessesAreAskedByTheirUsersAndCgroups(t *testing.T) {
	pids := must.Get(allPIDs())(t)
	groups := byUser(pids)
	var all []int
	for i, group := range groups {
		if i > 0 && len(group) < len(groups[i-1]) {
			t.Errorf("one of %d after one of %d", len(group), len(groups[i-1]))
		}
		all = append(all, group...)
	}
	if !slices.Contains(all, os.Getppid()) || slices.Contains(all, os.Getpid()) {
		t.Errorf("%v", all)
	}
}

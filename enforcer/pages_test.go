// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// wantedPage is the page that tests look for.
var wantedPage = ledger.Identity{Dev: 1, Inode: 7}

// newTestPages is a host with such processes, of which some hang for as long as the test goes on, and some have the page.
func newTestPages(t *testing.T, groups [][]int, hang, have func(pid int) bool) (p *pages, asked func(pid int) int) {
	t.Helper()
	p = newPages(slog.New(slog.DiscardHandler))
	t.Cleanup(p.close)
	p.want(wantedPage)
	p.groups = func() (all [][]int, err error) {
		for _, group := range groups {
			all = append(all, slices.Clone(group))
		}
		return all, nil
	}
	var mu sync.Mutex
	times := make(map[int]int)
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	p.find = func(pid int, _ ledger.Wanted, _ func(ledger.Identity) bool) ([]ledger.Found, error) {
		mu.Lock()
		times[pid]++
		mu.Unlock()
		if hang(pid) {
			<-over
		}
		if have(pid) {
			return []ledger.Found{{Identity: wantedPage}}, nil
		}
		return nil, os.ErrNotExist
	}
	return p, func(pid int) int {
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

func is(pids ...int) func(int) bool { return func(pid int) bool { return slices.Contains(pids, pid) } }

func letIn(pids ...int) func() (func(int) bool, error) {
	return func() (func(int) bool, error) { return is(pids...), nil }
}

// A process that does not let itself be looked at keeps nobody's page from being found.
func TestAProcessThatHangsIsPassedByWhenPagesAreLookedFor(t *testing.T) {
	p, _ := newTestPages(t, [][]int{{1, 2, 3, 4}}, is(1), is(3))
	find := p.find
	p.find = func(pid int, wanted ledger.Wanted, open func(ledger.Identity) bool) ([]ledger.Found, error) {
		if pid == 2 {
			return nil, os.ErrPermission
		}
		return find(pid, wanted, open)
	}
	if got := p.whoHas(wantedPage); !slices.Equal(got, []int{3}) {
		t.Fatalf("%v has it, want 3", got)
	}
	for pid, want := range map[int]bool{1: true, 2: true, 3: true, 4: false} {
		if p.mayHave(wantedPage, pid) != want {
			t.Errorf("process %d may have it: %t", pid, !want)
		}
	}
	got, err := p.mayBeWith(ledger.Identity{}, letIn(1, 2, 4))
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []int{1, 2}) {
		t.Errorf("%v, %v", got, err)
	}
}

// On a host under load somebody may have to wait for a processor, in the middle of a change of its mappings.
func TestWhoIsSlowIsWaitedFor(t *testing.T) {
	p, _ := newTestPages(t, [][]int{{1, 2}}, is(), is(1, 2))
	find := p.find
	p.find = func(pid int, wanted ledger.Wanted, open func(ledger.Identity) bool) ([]ledger.Found, error) {
		if pid == 1 {
			time.Sleep(mostPatience / 4)
		}
		return find(pid, wanted, open)
	}
	if got := slices.Sorted(slices.Values(p.whoHas(wantedPage))); !slices.Equal(got, []int{1, 2}) || len(p.silent) > 0 {
		t.Fatalf("%v have it, and %v are silent", got, p.silent)
	}
}

// However many hang of a user or in a cgroup, and of however many, the others are looked at, and few threads are held.
func TestManyThatHangKeepNobodyElseFromBeingLookedAt(t *testing.T) {
	honest := span(1, 100)
	groups := [][]int{span(1001, 6000), honest}
	for first := 10_000; first < 14_000; first += 20 {
		groups = append(groups, span(first, first+19))
	}
	groups = append(groups, []int{101})
	p, asked := newTestPages(t, groups, func(pid int) bool { return pid > 101 }, func(pid int) bool { return pid <= 101 })
	begin := time.Now()
	if got := slices.Sorted(slices.Values(p.whoHas(wantedPage))); !slices.Equal(got, append(honest, 101)) {
		t.Fatalf("%v have it", got)
	}
	if len(p.silent) != 9000 || p.silent[101] || p.threads.Load() > 2*mostThreads {
		t.Errorf("%d are silent, %d hold a thread", len(p.silent), p.threads.Load())
	}
	hung := 0
	for _, pid := range groups[0] {
		hung += asked(pid)
	}
	if hung > lookersOfGroup {
		t.Errorf("%d of a group hold a thread", hung)
	}
	t.Logf("9000 of 201 groups hang: %v", time.Since(begin))
}

// A page is had from whoever gives it, however late, and is closed if nobody fetches it.
func TestAPageIsFoundInWhoeverGivesIt(t *testing.T) {
	const hangs, moves, gives, late = 1, 2, 3, 4
	pages := make(map[int]*ledger.Ledger)
	for _, pid := range []int{gives, late} {
		var err error
		if pages[pid], err = ledger.Create([16]byte{byte(pid)}); err != nil {
			t.Fatal(err)
		}
	}
	wait := make(chan struct{})
	host := func(pids ...int) *pagesOf {
		p, asked := newTestPages(t, [][]int{pids}, is(hangs), is(pids...))
		find := p.find
		p.find = func(pid int, wanted ledger.Wanted, open func(ledger.Identity) bool) ([]ledger.Found, error) {
			found, err := find(pid, wanted, open)
			if l := pages[pid]; l != nil && open(wantedPage) {
				found[0].Ledger = l
			} else if pid == moves {
				found[0].Err = os.ErrNotExist
			}
			if pid == late {
				<-wait
			}
			return found, err
		}
		return &pagesOf{p, asked}
	}
	p := host(hangs, moves, gives)
	if !p.has(wantedPage) || p.fetch(wantedPage) != pages[gives] || p.fetch(wantedPage) != nil || p.has(wantedPage) {
		t.Fatal("it was not found, or twice")
	}
	p = host(moves, late)
	if p.fetch(wantedPage) != nil || p.asked(moves) != mostLooks {
		t.Fatalf("who gave it? Looked %d times", p.asked(moves))
	}
	if got, err := p.mayBeWith(wantedPage, letIn(late, 5)); err != nil || !slices.Contains(got, late) || slices.Contains(got, 5) {
		t.Errorf("it may be with %v, %v", got, err)
	}
	p.close()
	close(wait)
	for deadline := time.Now().Add(10 * time.Second); p.threads.Load() > 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	if mapped, err := ledger.Mapped(os.Getpid(), pages[late].Identity()); err != nil || mapped {
		t.Errorf("what came too late stays open: %v", err)
	}
	_ = pages[gives].Close()
}

type pagesOf struct {
	*pages
	asked func(pid int) int
}

// Who has a page that could not be opened may charge it, as long as it lives.
func TestWhoDoesNotGiveAPageHasIt(t *testing.T) {
	const ended = 1 << 30
	p, _ := newTestPages(t, [][]int{{os.Getppid(), ended}}, is(), is())
	p.find = func(int, ledger.Wanted, func(ledger.Identity) bool) ([]ledger.Found, error) {
		return []ledger.Found{{Identity: wantedPage, Err: os.ErrNotExist}}, nil
	}
	if p.fetch(wantedPage) != nil {
		t.Fatal("who gave it?")
	}
	if got, err := p.mayBeWith(wantedPage, letIn()); err != nil || !slices.Equal(got, []int{os.Getppid()}) {
		t.Errorf("it may be with %v, %v", got, err)
	}
}

// If it is not known who there is, anybody may have any page.
func TestWithoutALookAtAllProcessesNoLedgerIsReplaced(t *testing.T) {
	p, _ := newTestPages(t, nil, is(), is())
	p.groups = func() ([][]int, error) { return nil, os.ErrPermission }
	if p.fetch(wantedPage) != nil {
		t.Fatal("what was found?")
	}
	if _, err := p.mayBeWith(wantedPage, letIn()); !errors.Is(err, os.ErrPermission) {
		t.Fatal(err)
	}
}

func TestProcessesAreLookedAtByTheirUsersAndCgroups(t *testing.T) {
	groups, err := byUser()
	if err != nil {
		t.Fatal(err)
	}
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

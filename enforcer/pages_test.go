// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"log/slog"
	"maps"
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
	p.want(wantedPage.Dev, wantedPage.Inode)
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
	p.files = func(pid int, _ ledger.Wanted) ([]ledger.File, error) {
		mu.Lock()
		times[pid]++
		mu.Unlock()
		if hang(pid) {
			<-over
		}
		if have(pid) {
			return []ledger.File{wantedPage.File()}, nil
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

// A process that does not let itself be looked at keeps nobody's page from being found, and is asked once.
func TestAProcessThatHangsIsPassedByWhenPagesAreLookedFor(t *testing.T) {
	p, asked := newTestPages(t, [][]int{{1, 2, 3, 4}}, is(1), is(3))
	files := p.files
	p.files = func(pid int, wanted ledger.Wanted) ([]ledger.File, error) {
		if pid == 2 {
			return nil, os.ErrPermission
		}
		return files(pid, wanted)
	}
	for range 2 {
		if got := p.whoHas(wantedPage); !slices.Equal(got, []int{3}) {
			t.Fatalf("%v has it, want 3", got)
		}
		p.look()
	}
	for pid, want := range map[int]bool{1: true, 2: true, 3: true, 4: false} {
		if p.mayHave(wantedPage, pid) != want {
			t.Errorf("process %d may have it: %t", pid, !want)
		}
	}
	if asked(1) != 1 || asked(3) != 3 {
		t.Errorf("asked %d and %d times", asked(1), asked(3))
	}
	got, err := p.silentAmong(func() ([]int, error) { return []int{1, 2, 3, 4}, nil })
	if err != nil || !slices.Equal(got, []int{1, 2}) {
		t.Errorf("%v, %v", got, err)
	}
}

// On a host under load somebody may have to wait for a processor, in the middle of a change of its mappings.
func TestWhoIsSlowIsWaitedFor(t *testing.T) {
	p, _ := newTestPages(t, [][]int{{1, 2}}, is(), is(1, 2))
	files := p.files
	p.files = func(pid int, wanted ledger.Wanted) ([]ledger.File, error) {
		if pid == 1 {
			time.Sleep(mostPatience / 4)
		}
		return files(pid, wanted)
	}
	if got := slices.Sorted(slices.Values(p.whoHas(wantedPage))); !slices.Equal(got, []int{1, 2}) || len(p.silent) > 0 {
		t.Fatalf("%v have it, and %v are silent", got, p.silent)
	}
}

// However many hang in a cgroup, and in however many cgroups, those of the others are looked at, and few threads are held.
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
	if len(p.silent) != 9000 || p.silent[101] || p.lookers.Load() > 2*mostLookers {
		t.Errorf("%d are silent, %d hold a thread", len(p.silent), p.lookers.Load())
	}
	hung := 0
	for _, pid := range groups[0] {
		hung += asked(pid)
	}
	if hung > lookersOfGroup {
		t.Errorf("%d of a cgroup hold a thread", hung)
	}
	p.look()
	t.Logf("9000 of 201 cgroups hang: %v", time.Since(begin))
}

// A process that had a page, and hangs when it is fetched, is passed by, too; and one that moves it from place to place.
func TestAPageIsFetchedFromWhoLetsIt(t *testing.T) {
	const hangs, moves, gives = 1, 2, 3
	made, err := ledger.Create([16]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	late, err := ledger.Create([16]byte{2})
	if err != nil {
		t.Fatal(err)
	}
	hang := make(chan struct{})
	open := func(pid int, _ ledger.Identity) (*ledger.Ledger, error) {
		switch pid {
		case hangs:
			<-hang
			return late, nil
		case moves:
			return nil, os.ErrNotExist
		}
		return made, nil
	}
	p, _ := newTestPages(t, [][]int{{hangs, moves, gives}}, is(), is(hangs, moves, gives))
	p.open = open
	if got := p.fetch(wantedPage); got != made || len(p.silent) > 0 {
		t.Fatalf("it was not fetched from who gives it; silent: %v", p.silent)
	}
	p, _ = newTestPages(t, [][]int{{hangs, moves}}, is(), is(hangs, moves))
	p.open = open
	if got := p.fetch(wantedPage); got != nil {
		t.Fatal("who gave it?")
	}
	if got := slices.Sorted(maps.Keys(p.silent)); !slices.Equal(got, []int{hangs, moves}) {
		t.Errorf("silent: %v", got)
	}
	close(hang)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if mapped, err := ledger.Mapped(os.Getpid(), late.Identity()); err != nil || time.Now().After(deadline) {
			t.Fatalf("what came too late stays open: %v", err)
		} else if !mapped {
			break
		}
	}
}

func TestProcessesAreLookedAtByTheirCgroups(t *testing.T) {
	groups, err := byCgroup()
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for i, group := range groups {
		if i > 0 && len(group) < len(groups[i-1]) {
			t.Errorf("a cgroup of %d after one of %d", len(group), len(groups[i-1]))
		}
		all = append(all, group...)
	}
	if !slices.Contains(all, os.Getppid()) || slices.Contains(all, os.Getpid()) {
		t.Errorf("%v", all)
	}
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

func newTestPages(t *testing.T, files func(pid int) ([]ledger.File, error)) (p *pages, id ledger.Identity, asked func(pid int) int) {
	t.Helper()
	id = ledger.Identity{Dev: 1, Inode: 7}
	p = newPages(slog.New(slog.DiscardHandler))
	p.want(id.Dev, id.Inode)
	var mu sync.Mutex
	times := make(map[int]int)
	p.files = func(pid int, _ ledger.Wanted) ([]ledger.File, error) {
		mu.Lock()
		times[pid]++
		mu.Unlock()
		return files(pid)
	}
	return p, id, func(pid int) int {
		mu.Lock()
		defer mu.Unlock()
		return times[pid]
	}
}

// A process that does not let itself be looked at keeps nobody's page from being found, and is asked once.
func TestAProcessThatHangsIsPassedByWhenPagesAreLookedFor(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	mine := []ledger.File{{Dev: 1, Inode: 7}}
	p, id, asked := newTestPages(t, func(pid int) ([]ledger.File, error) {
		switch pid {
		case 1:
			<-hang
		case os.Getppid():
			return mine, nil
		case os.Getpid(): // which is not asked
			return mine, nil
		case 2:
			return nil, os.ErrPermission
		}
		return nil, os.ErrNotExist
	})
	for range 2 {
		if got := p.whoHas(id); !slices.Equal(got, []int{os.Getppid()}) {
			t.Fatalf("%v has it, want %d", got, os.Getppid())
		}
		p.look()
	}
	if !p.mayHave(id, os.Getppid()) || !p.mayHave(id, 1) || p.mayHave(id, os.Getpid()) {
		t.Errorf("%v", p.silent)
	}
	if _, err := os.Stat("/proc/2"); err == nil && !p.mayHave(id, 2) {
		t.Error("who cannot be looked at may have it")
	}
	if asked(1) != 1 || asked(os.Getppid()) != 3 {
		t.Errorf("asked %d and %d times", asked(1), asked(os.Getppid()))
	}
	for pid, want := range map[int]bool{1: true, os.Getppid(): false} {
		if err := p.lost(func(of int) bool { return of == pid }); (err != nil) != want {
			t.Errorf("of %d: %v", pid, err)
		}
	}
}

// On a host under load somebody may have to wait for a processor, in the middle of a change of its mappings.
func TestWhoIsSlowIsWaitedFor(t *testing.T) {
	p, id, _ := newTestPages(t, func(pid int) ([]ledger.File, error) {
		if pid != os.Getppid() {
			return nil, os.ErrNotExist
		}
		time.Sleep(mostPatience / 4)
		return []ledger.File{{Dev: 1, Inode: 7}}, nil
	})
	if got := p.whoHas(id); !slices.Equal(got, []int{os.Getppid()}) || len(p.silent) > 0 {
		t.Fatalf("%v has it, and %v are silent", got, p.silent)
	}
}

// However many hang, in whatever order, the others are looked at.
func TestManyThatHangKeepNobodyFromBeingLookedAt(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	var count atomic.Int32
	p, id, _ := newTestPages(t, func(pid int) ([]ledger.File, error) {
		if pid == os.Getppid() {
			return []ledger.File{{Dev: 1, Inode: 7}}, nil
		}
		count.Add(1)
		<-hang
		return nil, os.ErrNotExist
	})
	begin := time.Now()
	if got := p.whoHas(id); !slices.Equal(got, []int{os.Getppid()}) || len(p.silent) != int(count.Load()) {
		t.Fatalf("%v has it, %d are silent, and %d hang", got, len(p.silent), count.Load())
	}
	p.look()
	t.Logf("%d hang: %v", count.Load(), time.Since(begin))
}

// A process that had a page, and hangs when it is fetched, is passed by, too.
func TestAPageIsFetchedFromWhoLetsIt(t *testing.T) {
	made, err := ledger.Create([16]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	hang := make(chan struct{})
	p, id, _ := newTestPages(t, func(pid int) ([]ledger.File, error) {
		if pid == 1 || pid == os.Getppid() {
			return []ledger.File{{Dev: 1, Inode: 7}}, nil
		}
		return nil, os.ErrNotExist
	})
	p.open = func(pid int, _ ledger.Identity) (*ledger.Ledger, error) {
		if pid == 1 {
			<-hang
			return nil, os.ErrNotExist
		}
		return made, nil
	}
	defer close(hang)
	if got := p.fetch(id); got != made {
		t.Fatal("it was not fetched")
	}
	if !p.silent[1] || p.silent[os.Getppid()] {
		t.Errorf("silent: %v", p.silent)
	}
}

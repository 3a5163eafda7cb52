// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"log/slog"
	"os"
	"slices"
	"testing"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// A process that does not let itself be looked at keeps nobody's page from being found, and is asked once.
func TestAProcessThatHangsIsPassedByWhenPagesAreLookedFor(t *testing.T) {
	id := ledger.Identity{Dev: 1, Inode: 7}
	p := newPages(slog.New(slog.DiscardHandler))
	p.want(id.Dev, id.Inode)
	hang := make(chan struct{})
	defer close(hang)
	asked := make(chan int, 1<<16)
	p.files = func(pid int, wanted ledger.Wanted) ([]ledger.File, error) {
		asked <- pid
		switch pid {
		case 1:
			<-hang
		case os.Getppid():
			return []ledger.File{id.File()}, nil
		case os.Getpid(): // which is not asked
			return []ledger.File{id.File()}, nil
		case 2:
			return nil, os.ErrPermission
		}
		return nil, os.ErrNotExist
	}
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
	times := 0
	for len(asked) > 0 {
		if <-asked == 1 {
			times++
		}
	}
	if times != 1 {
		t.Errorf("it was asked %d times", times)
	}
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"os"
	"testing"

	"github.com/gpuslice/gpuslice/enforcer/driver"
)

func TestAPidThatSomebodyHasIsOfNoneOfTheDead(t *testing.T) {
	const nobodys = 1<<22 + 1 // more than there are pids
	s := &slice{}
	all := dead{os.Getpid(): s, nobodys: s}
	if all.owner(os.Getpid()) != nil {
		t.Error("what a living process holds is taken for a dead one's")
	}
	if all.owner(nobodys) != s {
		t.Error("a dead process's is nobody's")
	}
	if all.owner(nobodys+1) != nil {
		t.Error("a stranger's is one's of the slice")
	}
}

// What the driver lists for one that has just died it may be about to give back.
func TestWhatIsListedOfTheDeadIsBelievedTheSecondTime(t *testing.T) {
	const pid = 1<<22 + 1
	listed, gone := map[int]uint64{pid: 1 << 30}, map[int]uint64{}
	for _, c := range []struct {
		what string
		was  ghost
		list map[int]uint64
		want *ghost // nil: it is forgotten
	}{
		{"listed before its death", ghost{}, listed, &ghost{}},
		{"not listed before its death", ghost{}, gone, &ghost{}},
		{"listed", ghost{asked: true}, listed, &ghost{asked: true, seen: true}},
		{"listed again", ghost{asked: true, seen: true}, listed, nil},
		{"not listed", ghost{asked: true}, gone, nil},
		{"not listed any more", ghost{asked: true, seen: true}, gone, nil},
		{"not known", ghost{asked: true}, map[int]uint64{pid: driver.Unknown}, nil},
	} {
		s, was := &slice{}, c.was
		d := &device{ghosts: map[int]*ghost{pid: &was}}
		if doubted := s.mayBeGivenBack(d, pid); doubted == c.was.seen {
			t.Errorf("%s: what it has may be given back: %v", c.what, doubted)
		}
		again := d.bury(c.list)
		left := d.ghosts[pid]
		switch {
		case (left == nil) != (c.want == nil), left != nil && *left != *c.want:
			t.Errorf("%s: it is %+v, want %+v", c.what, left, c.want)
		case again != (c.want != nil && c.want.seen):
			t.Errorf("%s: another look: %v", c.what, again)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"os"
	"testing"
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

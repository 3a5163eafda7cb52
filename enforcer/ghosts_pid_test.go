// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"os"
	"os/exec"
	"testing"

	"github.com/gpuslice/gpuslice/enforcer/process"
)

func TestAPidThatIsAnothersNowIsOfNoneOfTheDead(t *testing.T) {
	own, err := process.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("true")
	if err := child.Run(); err != nil { // and it is waited for
		t.Fatal(err)
	}
	s := &slice{}
	all := dead{os.Getpid(): {s, own - 1}, child.Process.Pid: {s, own}}
	if all.owner(os.Getpid()) != nil {
		t.Error("what a living process holds is taken for a dead one's")
	}
	if all.owner(child.Process.Pid) != s {
		t.Error("a dead process's is nobody's")
	}
	if all.owner(1<<22+1) != nil {
		t.Error("a stranger's is a dead process's")
	}
}

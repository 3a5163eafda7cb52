// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"os"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/truth"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestReusedPIDIsNotTheExitedProcess(t *testing.T) {
	const nobodys = 1<<22 + 1 // larger than any pid
	s := &slice{}
	now := time.Now()
	start := must.Get(process.StartTime(os.Getpid()))(t)
	exited := func(pid int, start uint64) exit { return exit{s, truth.Process{PID: pid, Start: start}, now} }
	m := &sampler{e: &Enforcer{}, after: newLanes(), before: newLanes(), known: make(map[int]*sampled)}
	m.after.exits[os.Getpid()] = exited(os.Getpid(), start-1)
	m.after.exits[nobodys] = exited(nobodys, 1)
	if of, _, _ := m.owner(os.Getpid(), now); of != nil {
		t.Error("what a living process holds is taken for an exited one's")
	}
	if of, p, at := m.owner(nobodys, now); of != s || p.Start != 1 || at != now {
		t.Error("an exited process's is nobody's")
	}
	if of, _, _ := m.owner(nobodys+1, now); of != nil {
		t.Error("what nobody knew is an exited process's of the slice")
	}
	clear(m.after.exits)
	m.known[nobodys] = &sampled{process: truth.Process{PID: nobodys, Start: 1}, slice: s}
	if of, _, at := m.owner(nobodys, now); of != s || at != now {
		t.Error("one that was sampled before it exited is nobody's")
	}
}

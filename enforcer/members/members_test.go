// SPDX-License-Identifier: Apache-2.0

package members

import (
	"os"
	"os/exec"
	"testing"

	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func child(t *testing.T) (p *process.Handle, exit func()) {
	t.Helper()
	c := exec.Command("sleep", "60")
	must.Start(t, c)
	return must.Get(process.Open(c.Process.Pid))(t), func() { _ = c.Process.Kill(); _ = c.Wait() }
}

func session(t *testing.T) *Group {
	t.Helper()
	g := &Group{Index: &Index{Deaths: must.Get(process.NewWatcher())(t)}, Session: true}
	t.Cleanup(func() { expect.NoError(t, g.Index.Deaths.Close()) })
	return g
}

func TestOnlySoManyProcessesJoinASession(t *testing.T) {
	g := session(t)
	p, _ := child(t)
	for range maxJoined {
		must.Do(t, g.Join(p, 1))
	}
	before := g.Joined()
	expect.ErrorContains(t, g.Join(must.Get(process.Again(p.PID, p.Start))(t), 1), "256 processes have joined", "one too many")
	g.Leave(p)
	expect.True(t, len(g.Joined()) == 0 && len(before) == maxJoined, "it has not left, or an earlier list was changed")
}

// A process that has exited may have another's pid by now.
func TestRemainingReturnsLiveProcesses(t *testing.T) {
	g := session(t)
	p, exits := child(t)
	g.Remains(p, nil)
	g.Remains(process.Again(p.PID, p.Start))
	if len(g.Remaining()) != 1 || !g.Lingers() {
		t.Fatalf("%+v", g.Remaining())
	}
	exits()
	expect.True(t, !g.Lingers(), "an exited process remains")
	p.PID = os.Getpid()
	g.Remains(process.Open(os.Getpid()))
	expect.Equal(t, len(g.Remaining()), 2, "a process is taken for the exited one that had its pid")
	q, exits := child(t)
	exits()
	g.Remains(q, nil)
	expect.Equal(t, len(g.Remaining()), 2, "an exited process is added")
	g.CloseRemaining()
	expect.Equal(t, len(g.Remaining()), 0, "they are not forgotten")
}

// A released slice may leave the index after another has its cgroup and its pid namespace.
func TestTheEndOfAFormerSliceLeavesTheNextOneInItsPlace(t *testing.T) {
	var x Index
	at := cgroup.Path{Mount: "/sys/fs/cgroup", Rel: "/c"}
	former, next := &Group{Cgroup: at, PIDNS: 1, Leads: true}, &Group{Cgroup: at, PIDNS: 1, Leads: true}
	x.Add(former)
	x.Add(next)
	x.Remove(former)
	if x.At(at) != next || x.byNamespace([]uint64{1}) != next {
		t.Errorf("the next slice is struck out: %+v", x.byCgroup)
	}
	x.Remove(next)
	expect.Equal(t, len(x.byCgroup)+len(x.byPIDNS), 0, "the last slice stays", x.byCgroup)
}

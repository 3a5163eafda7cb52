// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/api"
)

// restartOnFullDisk starts an enforcer for which the disk is full, so that it cannot write down the new ledgers of a slice and a
// pool, until there is room.
func (h *host) restartOnFullDisk(id, pool string) (room func()) {
	h.t.Helper()
	h.stop()
	e, err := enforcer.New(h.options)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := e.NotTaken(id, pool); err != nil {
		h.t.Fatal(err)
	}
	room = e.HoldTurns(id, pool)
	h.run(e)
	if s := h.see(id); s.State != api.Damaged || !strings.Contains(s.Reason, "no space left on device") {
		h.t.Fatalf("%+v", s)
	}
	return room
}

func (h *host) goesOn(id string) {
	h.t.Helper()
	eventually(h.t, "slice "+id+" goes on", func() bool { return h.see(id).State == api.Active })
}

func TestASliceThatTheDiskDidNotTakeGoesOnWhenItDoes(t *testing.T) {
	truth := &fakeTruth{}
	h := newHost(t, truth)
	p, _ := h.session("s", on(gpu0, 4*gib))
	room := h.restartOnFullDisk("s", "")
	p.expect("status 3", "attach")
	h.looks()
	p.expect("status 3", "attach")
	h.given(gpu0, 4*gib, 76*gib) // it is promised
	room()
	h.goesOn("s")
	p.uses().must("charge 0 %d", 3*gib)
	p.expect("refused", "charge 0 %d", 2*gib)
	h.restart() // the ledger is the one on disk
	if used := h.see("s").Devices[0].Used + h.see("s").Devices[0].Overhead; used != 3*gib {
		t.Fatalf("%d bytes are charged", used)
	}
	p.expect("refused", "charge 0 %d", 2*gib)
}

func TestAPoolThatTheDiskDidNotTakeGoesOnWhenItDoes(t *testing.T) {
	h := newHost(t, &fakeTruth{}) // so that the pool has its devices from the start, and is not put again for one
	h.pool("llm", on(gpu0, 6*gib))
	p := h.member("a", "llm", on(gpu0, 4*gib))
	room := h.restartOnFullDisk("a", "llm")
	if p := h.seePool("llm"); p.State != api.Damaged || !strings.Contains(p.Reason, "no space left on device") {
		t.Fatalf("%+v", p)
	}
	p.expect("status 3", "attach")
	room()
	h.goesOn("a")
	if p := h.seePool("llm"); p.State != api.Active {
		t.Fatalf("%+v", p)
	}
	p.uses().must("charge 0 %d", 4*gib)
	b := h.member("b", "llm").uses()
	b.expect("refused", "charge 0 %d", 3*gib)
	h.restart()
	h.member("c", "llm").uses().expect("refused", "charge 0 %d", 3*gib)
	p.must("release 0 %d", 4*gib)
	b.must("charge 0 %d", 4*gib)
	h.member("d", "llm").uses().expect("refused", "charge 0 %d", 3*gib) // at once, by the one ledger that all have
}

func TestASliceThatTheDiskDidNotTakeExpires(t *testing.T) {
	h, c := newTimedHost(t)
	p := h.lease("s", newCgroup(t), time.Hour)
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil { // it does not end when it is asked to
		t.Fatal(err)
	}
	room := h.restartOnFullDisk("s", "")
	c.pass(time.Hour)
	room()
	h.expired("s")
	eventually(t, "from then on the grace counts", func() bool { return h.Asked("s") })
	c.pass(grace)
	p.ended()
	h.gone("s")
}

func TestASliceThatTheDiskDidNotTakeIsReleased(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	h.session("s", on(gpu0, 4*gib))
	h.options.Interval = 2 * time.Second // until it is tried again
	h.restartOnFullDisk("s", "")()
	if _, err := h.Release(context.Background(), "s", 0, true); err != nil {
		t.Fatal(err)
	}
	h.given(gpu0, 0, 80*gib)
	time.Sleep(h.options.Interval + time.Second)
	h.restart()
	if _, err := h.Slice(context.Background(), "s"); !errors.Is(err, api.ErrNotFound) {
		t.Fatal(err)
	}
}

// What hides in a slice is dealt with when it goes on, whatever was done before.
func TestWhoHidesInASliceThatTheDiskDidNotTakeIsFound(t *testing.T) {
	truth := &fakeTruth{}
	h := newPolicyHost(t, truth, api.Refuse, api.ScopeProcess)
	p, sibling := h.pair(on(gpu0, 4*gib))
	room := h.restartOnFullDisk("s", "")
	truth.set(gpu0, p.pid(), gib)
	eventually(t, "it is named", func() bool { return len(h.told(api.EventBypass)) > 0 })
	room()
	eventually(t, "nothing more is given", func() bool { return h.see("s").State == api.Frozen })
	sibling.uses().expect("refused", "charge 0 1")
	truth.set(gpu0, p.pid(), 0)
	h.goesOn("s")
	sibling.must("charge 0 1")
}

func TestASliceWithoutASocketGetsOneWhenItCan(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	p, reply := h.session("s", on(gpu0, 4*gib))
	p.uses().must("charge 0 %d", 3*gib)
	h.stop()
	obstacle := filepath.Join(reply.Dir, "bind", ".attach.sock")
	if err := os.Mkdir(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	h.start()
	if s := h.see("s"); s.State != api.Active || s.Devices[0].Used+s.Devices[0].Overhead != 3*gib {
		t.Fatalf("%+v", s)
	}
	p.must("charge 0 %d", gib)
	p.expect("status 100", "attach")
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it can be asked", func() bool { return strings.HasPrefix(p.ask("attach"), "ok ") })
	p.uses().must("charge 0 %d", 4*gib) // what a process had before it attached anew is given back
	p.expect("refused", "charge 0 1")
}

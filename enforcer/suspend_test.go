// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// A checkpointed process that is brought back by somebody who does not ask (a static program, the host's operator) holds what
// others were given meanwhile.
func TestWhatComesBackUnaskedIsBeyondItsLane(t *testing.T) {
	truth := &fakeTruth{}
	h := newHost(t, truth)
	h.pool("llm", on(gpu0, 8*gib))
	p := h.member("s", "llm", on(gpu0, 4*gib)).uses()
	p.must("charge 0 %d", 2*gib)
	p.must("suspend %d", p.pid())
	if used := h.see("s").Devices[0].Used; used != 0 {
		t.Fatalf("%d bytes of a checkpointed process are shown as used", used)
	}
	truth.comparisons(t, 4)
	truth.set(gpu0, p.pid(), 2*gib)
	eventually(t, "it is charged", func() bool { return overhead(h) == 2*gib })
	eventually(t, "and to the pool", func() bool { return h.pooled("llm") == 2*gib })
	truth.set(gpu0, p.pid(), 0)
	eventually(t, "it is given back when it is away again", func() bool { return overhead(h) == 0 && h.pooled("llm") == 0 })
	p.must("resume %d", p.pid())
	truth.set(gpu0, p.pid(), 2*gib)
	truth.comparisons(t, 4)
	if o := overhead(h); o != 0 {
		t.Fatalf("%d bytes are charged beyond the lane of a process that asked", o)
	}
	p.must("charge 0 %d", 2*gib)
	p.expect("refused", "charge 0 1")
}

// What a restart counts again others may have taken before.
func TestACheckpointedProcessComesBackAfterARestartWhenItFits(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	a, b := h.pair(on(gpu0, 4*gib))
	a.uses()
	b.uses()
	a.must("charge 0 %d", 2*gib)
	a.must("suspend %d", a.pid())
	b.must("charge 0 %d", 3*gib)
	h.restart()
	if s := h.see("s"); s.State != api.Active {
		t.Fatalf("%+v", s)
	}
	b.expect("status 8", "resume %d", a.pid())
	h.restart()
	b.expect("status 8", "resume %d", a.pid())
	b.must("release 0 %d", gib)
	b.must("resume %d", a.pid())
	b.expect("refused", "charge 0 1")
}

func TestACheckpointedProcessOfAPoolComesBackAfterARestartWhenItFits(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	h.pool("llm", on(gpu0, 4*gib))
	a, b := h.member("a", "llm", on(gpu0, 4*gib)).uses(), h.member("b", "llm", on(gpu0, 4*gib)).uses()
	a.must("charge 0 %d", 2*gib)
	a.must("suspend %d", a.pid())
	b.must("charge 0 %d", 3*gib)
	h.restart()
	a.expect("status 8", "resume %d", a.pid())
	h.restart()
	a.expect("status 8", "resume %d", a.pid())
	b.must("release 0 %d", gib)
	a.must("resume %d", a.pid())
	b.expect("refused", "charge 0 1")
}

// One that was never away is in nobody's way, whatever is charged.
func TestAProcessThatIsNotAwayNeedNotFit(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	p, _ := h.session("s", on(gpu0, 4*gib))
	p.uses().must("charge 0 %d", 4*gib)
	if _, err := h.set("s", on(gpu0, gib)); err != nil {
		t.Fatal(err)
	}
	h.restart()
	p.must("resume %d", p.pid())
}

// A process has a device added, and charges there, while the driver is asked whether it holds anything on those that there were.
func TestADeviceOfWhichTheDriverWasNotAskedIsNotLent(t *testing.T) {
	truth := &fakeTruth{}
	h := newHost(t, truth)
	cgroup := newCgroup(t)
	link := filepath.Join(h.options.RunDir, "to-s")
	a := start(t, link, cgroup)
	reply, err := h.Register(context.Background(), api.RegisterRequest{ID: "s", Container: "s", PID: a.pid(), Visible: []string{gpu0}, Quotas: []api.Quota{on(api.AllDevices, 4*gib)}})
	if err != nil {
		t.Fatal(err)
	}
	lead(t, link, reply)
	b := start(t, link, cgroup)
	a.uses()
	b.uses()
	if n := len(h.see("s").Devices); n != 1 {
		t.Fatalf("%d devices are foreseen", n)
	}
	hang := make(chan struct{})
	truth.mu.Lock()
	truth.hang, truth.lists = hang, nil
	truth.mu.Unlock()
	b.tell("suspend %d", a.pid())
	time.Sleep(100 * time.Millisecond) // it waits for the driver
	a.must("device %s %d", hex1, 80*gib)
	a.must("charge 1 %d", 3*gib)
	truth.mu.Lock()
	truth.hang = nil
	truth.mu.Unlock()
	close(hang)
	if line, err := b.out.ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	b.must("device %s %d", hex1, 80*gib)
	b.expect("refused", "charge 1 %d", 3*gib)
}

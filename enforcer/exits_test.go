// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/must"
)

// charged returns what slice s has on its first device: in lanes, and as overhead.
func charged(h *host) (used, overhead uint64) {
	d := h.see("s").Devices[0]
	return d.Used, d.Overhead
}

// Memory that the driver lists for an exited process, attached or not, is charged until the driver stops listing it, and is no violation.
func TestMemoryLeftByAnExitedProcessIsChargedAndNoViolation(t *testing.T) {
	for _, action := range []api.Action{api.Log, api.Refuse, api.Kill} {
		t.Run(string(action), func(t *testing.T) {
			h, truth := newPolicyHost(t, action, api.ScopeSlice)
			parent, sibling := h.pair(on(gpu0, 4*gib), on(gpu1, 4*gib))
			parent.must("attach")
			sibling.must("attach")
			parent.must("charge 0 %d", 3*gib)
			truth.set(gpu0, parent.pid(), 3*gib)
			parent.kill()
			eventually(t, "it counts as overhead", func() bool { used, overhead := charged(h); return used == 0 && overhead == 3*gib })
			sibling.expect("refused", "charge 0 %d", gib+1)
			sibling.must("charge 0 %d", gib)
			truth.set(gpu0, sibling.pid(), gib)
			sibling.must("charge 1 %d", 4*gib) // a device on which it held nothing
			truth.comparisons(t, 40)
			if used, overhead := charged(h); used != gib || overhead != 3*gib {
				t.Fatalf("%d and %d bytes are charged", used, overhead)
			}
			s := h.see("s")
			if s.State != api.Active || sibling.dead() || len(h.told(api.EventBypass)) != 0 || len(h.told(api.EventKilled)) != 0 {
				t.Fatalf("%+v, %+v", s, h.told(api.EventBypass))
			}
			must.Len(t, s.Processes, 2)
			for _, p := range s.Processes {
				if dead := p.PID == parent.pid(); dead == p.Attached || dead && p.Devices[0].Overhead != 3*gib {
					t.Fatalf("%+v", p)
				}
			}
			truth.set(gpu0, parent.pid(), gib)
			eventually(t, "it is less if the driver says so", func() bool { _, overhead := charged(h); return overhead == gib })
			truth.set(gpu0, parent.pid(), 0)
			eventually(t, "and over when it lists it no more", func() bool { _, overhead := charged(h); return overhead == 0 })
			sibling.must("charge 0 %d", 3*gib)
		})
	}
}

// The same for memory that bypassed the ledger.
func TestMemoryLeftByAnUnattachedProcessCounts(t *testing.T) {
	h, truth := newTruthHost(t)
	parent, sibling := h.pair(on(gpu0, 4*gib))
	sibling.must("attach")
	truth.set(gpu0, parent.pid(), 3*gib)
	eventually(t, "the memory is charged", func() bool { return overhead(h) == 3*gib })
	eventually(t, "and named", func() bool { return len(h.told(api.EventBypass)) == 1 })
	parent.kill()
	eventually(t, "the excess of no live process is no longer reported", func() bool { return len(h.told(api.EventCleared)) == 1 })
	truth.comparisons(t, 20)
	sibling.expect("refused", "charge 0 %d", 2*gib)
	truth.set(gpu0, parent.pid(), 0)
	eventually(t, "the memory is free", func() bool { return overhead(h) == 0 })
	sibling.must("charge 0 %d", 4*gib)
}

// Processes exit one after another: what they leave together stays within the slice's quota and the pool's.
func TestNoNumberOfExitedProcessesHoldsMoreThanTheQuota(t *testing.T) {
	h, truth := newTruthHost(t)
	h.pool("llm", on(gpu0, 3*gib))
	_, more, _ := h.container(api.RegisterRequest{ID: "s", Pools: api.PoolNames{"llm"}, Quotas: []api.Quota{on(gpu0, 2*gib)}})
	other := h.member("other", "llm").uses()
	var left []*proc
	for round := range 5 {
		p := more()
		p.must("attach")
		if round >= 2 {
			p.expect("refused", "charge 0 1")
		} else {
			p.must("charge 0 %d", gib)
			truth.set(gpu0, p.pid(), gib)
			left = append(left, p)
		}
		p.kill()
		held := min(uint64(round)+1, 2) * gib
		eventually(t, "the remaining memory counts", func() bool { used, overhead := charged(h); return used == 0 && overhead == held })
		eventually(t, "in the pool, too", func() bool { return h.pooled("llm") == held })
	}
	other.must("charge 0 %d", gib)
	other.expect("refused", "charge 0 1")
	for _, p := range left {
		truth.set(gpu0, p.pid(), 0)
	}
	eventually(t, "all of it is given back", func() bool { return h.pooled("llm") == gib })
	other.must("charge 0 %d", 2*gib)
}

func TestMemoryOfAReplacedImageIsReleased(t *testing.T) {
	h, truth := newTruthHost(t)
	h.pool("llm", on(api.AllDevices, 6*gib))
	a, b := h.member("a", "llm", on(api.AllDevices, 4*gib)).uses(), h.member("b", "llm").uses()
	a.must("charge 0 %d", 4*gib)
	truth.set(gpu0, a.pid(), 4*gib)
	b.must("charge 0 %d", 2*gib) // the driver has not allocated it yet
	truth.comparisons(t, 4)
	if used := h.see("a").Devices[0].Used; used != 4*gib || h.pooled("llm") != 6*gib {
		t.Fatalf("the slice has %d, the pool %d", used, h.pooled("llm"))
	}
	a.tell("exec") // the new image does not attach
	a.ask("hello")
	truth.comparisons(t, 4)
	if used := h.see("a").Devices[0].Used; used != 4*gib {
		t.Fatalf("the slice has %d, but the driver still holds 4 GiB for the process", used)
	}
	truth.set(gpu0, a.pid(), 0)
	eventually(t, "the memory is released", func() bool { return h.see("a").Devices[0].Used == 0 && h.pooled("llm") == 2*gib })
	if s := h.see("a"); s.ProcessCount != 0 || s.Devices[0].Recovered != 4*gib {
		t.Fatalf("%+v", s)
	}
	b.must("charge 0 %d", 4*gib)
	b.must("release 0 %d", 6*gib)
	a.uses()
	a.must("charge 0 %d", 4*gib)
}

// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"testing"

	"github.com/gpuslice/gpuslice/api"
)

func TestWhatAnImageHeldThatIsGoneIsGivenBack(t *testing.T) {
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
		t.Fatalf("the slice has %d, and the driver still holds 4 GiB for the process", used)
	}
	truth.set(gpu0, a.pid(), 0)
	eventually(t, "it is given back", func() bool { return h.see("a").Devices[0].Used == 0 && h.pooled("llm") == 2*gib })
	if s := h.see("a"); s.ProcessCount != 0 || s.Devices[0].Recovered != 4*gib {
		t.Fatalf("%+v", s)
	}
	b.must("charge 0 %d", 4*gib)
	b.must("release 0 %d", 6*gib)
	a.uses()
	a.must("charge 0 %d", 4*gib)
}

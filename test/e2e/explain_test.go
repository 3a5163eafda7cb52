// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestARefusalIsExplainedAfterItsProcessAndItsContainerAreGone(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(vram(), "/bin/sleep", "600")
	c.hog(2 * gib)
	c.mustRefuse(2*gib, "it does not fit beside the first and two contexts")
	explained := func() string {
		out := must.Output(h.cli("explain", c.id))(t)
		return out
	}
	running := explained() // names the live process: the refused one may exit before the enforcer learns of it
	for _, want := range []string{"was refused cuMemAlloc of 2GiB", "quota there was 4GiB, of which 3.01GiB was in use: 2GiB requested by programs", "(cuda_hog) 2.51GiB", "gpuslice set " + c.id + " --vram 5184M"} {
		expect.Contains(t, running, want)
	}
	must.Get(c.output(c.runtime("delete", "--force", c.id)))(t)
	h.Eventually("the slice is gone", h.IsGone(c.id))
	if gone := explained(); !strings.Contains(gone, "gpuslice.vram=5184M") {
		t.Errorf("after its end:\n%s", gone)
	}
	out := h.mustRun("recommend", c.id)
	if fields := strings.Fields(out); !strings.HasSuffix(strings.Join(fields, " "), "4GiB 3.01GiB 1 5184M") {
		t.Errorf("\n%s", out)
	}
}

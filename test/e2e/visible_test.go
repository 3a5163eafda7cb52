// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// newHostOf starts a host with several simulated cards, which NVML enumerates in the reverse order of CUDA and the device nodes.
func newHostOf(t *testing.T, cards int) *host {
	t.Helper()
	t.Parallel()
	runc := runcPath(t)
	return &host{testhost.New(t, testhost.Options{
		Runtimes: []string{runc}, Env: []string{"FAKECUDA_DEVICES=" + strconv.Itoa(cards), "FAKECUDA_NVML_ORDER=reverse"},
	}), runc}
}

// sees adds the device nodes of cards to a container before its start.
func (c *container) sees(minors ...int) *container {
	c.T.Helper()
	var nodes []map[string]any
	for _, minor := range minors {
		nodes = append(nodes, map[string]any{"path": fmt.Sprintf("/dev/nvidia%d", minor), "type": "c", "major": 195, "minor": minor, "fileMode": 0o666})
	}
	c.configure(func(config map[string]any) { config["linux"].(map[string]any)["devices"] = nodes })
	return c
}

// countsOn returns the NVML indices of the devices that a slice's quota applies to.
func (h *host) countsOn(id string) (indices []int) {
	h.T.Helper()
	slice := must.Get(h.Client.Slice(h.T.Context(), id))(h.T)
	for _, d := range slice.Devices {
		indices = append(indices, d.Index)
	}
	return indices
}

func TestAQuotaCountsOnTheGPUsThatTheContainerSees(t *testing.T) {
	h := newHostOf(t, 3)
	all := h.runContainer(vram(), "/bin/sleep", "600")
	two := h.newContainer(vram(), "/bin/sleep", "600").sees(1, 2)
	two.run()
	expect.EqualSlices(t, h.countsOn(all.id), []int{0, 1, 2}, "of a container of which nothing is known it counts on")
	if got := h.countsOn(two.id); !slices.Equal(got, []int{0, 1}) { // minor numbers 2 and 1
		t.Errorf("of a container with /dev/nvidia1 and 2 it counts on %v", got)
	}
	devices := must.Get(h.Client.Devices(t.Context()))(h.T)
	for _, d := range devices {
		want := uint64(8 * gib)
		if d.Index == 2 {
			want = 4 * gib
		}
		expect.Equal(t, d.Quotas, want, "device", d.Index, "has quotas of")
	}
	h.Stop(os.Kill)
	h.Start()
	expect.EqualSlices(t, h.countsOn(two.id), []int{0, 1}, "after a restart it counts on")
}

func TestAGPUThatWasNotKnownToBeSeenIsLimitedToo(t *testing.T) {
	h := newHostOf(t, 3)
	c := h.newContainer(vram(), "/bin/sleep", "600").sees(1)
	c.run()
	if got := h.countsOn(c.id); !slices.Equal(got, []int{1}) {
		t.Fatalf("it counts on %v", got)
	}
	// The program uses CUDA's first card without a device node, which the simulated driver does not need.
	c.mustRefuse(5*gib, "5 GiB of 4")
	c.mustHold(2*gib, quota)
	c.mustRefuse(2*gib, "2 GiB and a context beside 2 GiB and a context, of 4")
	expect.EqualSlices(t, h.countsOn(c.id), []int{1, 2}, "once it was used it counts on")
}

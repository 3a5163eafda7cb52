// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/testhost"
)

// newHostOf starts a host with several simulated cards, which NVML enumerates in the reverse order of CUDA and the device nodes.
func newHostOf(t *testing.T, cards int) *host {
	t.Helper()
	t.Parallel()
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("needs runc: make deps")
	}
	return &host{testhost.New(t, testhost.Options{
		Runtimes: []string{runc}, Env: []string{"FAKECUDA_DEVICES=" + strconv.Itoa(cards), "FAKECUDA_NVML_ORDER=reverse"},
	}), runc}
}

// sees adds the device nodes of cards to a container before its start.
func (c *container) sees(minors ...int) *container {
	c.T.Helper()
	path := filepath.Join(c.bundle, "config.json")
	text, err := os.ReadFile(path)
	c.Must(err)
	var config map[string]any
	c.Must(json.Unmarshal(text, &config))
	var nodes []map[string]any
	for _, minor := range minors {
		nodes = append(nodes, map[string]any{"path": fmt.Sprintf("/dev/nvidia%d", minor), "type": "c", "major": 195, "minor": minor, "fileMode": 0o666})
	}
	config["linux"].(map[string]any)["devices"] = nodes
	text, err = json.Marshal(config)
	c.Must(err)
	c.Must(os.WriteFile(path, text, 0o644))
	return c
}

// countsOn returns the NVML indices of the devices that a slice's quota applies to.
func (h *host) countsOn(id string) (indices []int) {
	h.T.Helper()
	slice, err := h.Client.Slice(h.T.Context(), id)
	h.Must(err)
	for _, d := range slice.Devices {
		indices = append(indices, d.Index)
	}
	return indices
}

func TestAQuotaCountsOnTheGPUsThatTheContainerSees(t *testing.T) {
	h := newHostOf(t, 3)
	all := h.newContainer(vram(), "/bin/sleep", "600")
	all.run()
	two := h.newContainer(vram(), "/bin/sleep", "600").sees(1, 2)
	two.run()
	if got := h.countsOn(all.id); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("of a container of which nothing is known it counts on %v", got)
	}
	if got := h.countsOn(two.id); !slices.Equal(got, []int{0, 1}) { // minor numbers 2 and 1
		t.Errorf("of a container with /dev/nvidia1 and 2 it counts on %v", got)
	}
	devices, err := h.Client.Devices(t.Context())
	h.Must(err)
	for _, d := range devices {
		want := uint64(8 * gib)
		if d.Index == 2 {
			want = 4 * gib
		}
		if d.Quotas != want {
			t.Errorf("device %d has quotas of %d bytes, want %d", d.Index, d.Quotas, want)
		}
	}
	h.Stop(os.Kill)
	h.Start()
	if got := h.countsOn(two.id); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("after a restart it counts on %v", got)
	}
}

func TestAQuotaOnAGPUThatTheContainerDoesNotSeeIsRefused(t *testing.T) {
	h := newHostOf(t, 3)
	c := h.newContainer(map[string]string{"gpuslice.vram": "4G", "gpuslice.vram.2": "1G"}, "/bin/true").sees(1, 2)
	out, err := c.output(c.runtime("run", "--bundle", c.bundle, c.id))
	if err == nil || !strings.Contains(out, "there is a quota on device 2 (GPU-") || !strings.Contains(out, "does not see: it sees 0 (GPU-") {
		t.Errorf("%v: %s", err, out)
	}
	if slices := h.Slices(); len(slices) != 0 {
		t.Errorf("slices are left: %+v", slices)
	}
}

func TestAGPUThatWasNotKnownToBeSeenIsLimitedToo(t *testing.T) {
	h := newHostOf(t, 3)
	c := h.newContainer(vram(), "/bin/sleep", "600").sees(1)
	c.run()
	if got := h.countsOn(c.id); !slices.Equal(got, []int{1}) {
		t.Fatalf("it counts on %v", got)
	}
	// The program uses CUDA's first card without a device node, which the simulated driver does not need.
	if g := c.hog(5 * gib); !g.refused() {
		t.Errorf("said %q: 5 GiB of 4", g.said)
	}
	if g := c.hog(2 * gib); !g.holds(2*gib, quota) {
		t.Errorf("said %q", g.said)
	}
	if g := c.hog(2 * gib); !g.refused() {
		t.Errorf("said %q: 2 GiB and a context beside 2 GiB and a context, of 4", g.said)
	}
	if got := h.countsOn(c.id); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("once it was used it counts on %v", got)
	}
}

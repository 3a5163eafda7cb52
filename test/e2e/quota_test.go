// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

const quota = 4 * gib

func vram() map[string]string { return map[string]string{"gpuslice.vram": "4G"} }

func TestQuotaIsSharedByAllProcessesOfAContainer(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		c := h.runContainer(vram(), "/bin/sleep", "600")

		first := c.hog(gib)
		must.True(t, first.holds(gib, quota), "the first process: want 1 GiB of a card of the quota's size, it said", first.said)
		each := gib + h.Use(c.id).Overhead // cost of another process
		count := uint64(1)
		for ; count < 8; count++ {
			if g := c.hog(gib); g.refused() {
				break
			} else if !g.holds(gib, quota) {
				t.Fatalf("process %d said %q", count+1, g.said)
			}
		}
		expect.Equal(t, count, quota/each, "processes that have room")
		use := h.Use(c.id)
		if use.Used != count*gib || use.Used+use.Overhead > quota || use.Limit != quota {
			t.Errorf("%d processes hold 1 GiB each, but ps shows %+v", count, use)
		}
		expect.True(t, use.Refusals != 0, "the refusal was not counted")
	})
}

func TestConcurrentProcessesNeverExceedTheQuota(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		c := h.runContainer(vram(), "/bin/sleep", "600")

		const racers = 12
		script := `for i in $(seq ` + strconv.Itoa(racers) + `); do /demo/cuda_hog ` + strconv.Itoa(512*mib) + ` & done; wait`
		out := must.Get(os.Create(filepath.Join(h.Dir, "race")))(h.T)
		defer out.Close()
		cmd := c.runtime("exec", "--detach", c.id, "/bin/sh", "-c", script)
		cmd.Stdout, cmd.Stderr = out, out
		h.Must(cmd.Run())

		var text []byte
		h.Eventually("all have said what they got", func() bool {
			if slice, err := h.Client.Slice(t.Context(), c.id); err == nil {
				for _, d := range slice.Devices {
					if d.Used+d.Overhead > quota || d.Peak > quota {
						t.Fatalf("over the quota: %+v", d)
					}
				}
			}
			text, _ = os.ReadFile(out.Name())
			return strings.Count(string(text), "\n") == racers
		})
		holders := strings.Count(string(text), "holds ")
		if refused := strings.Count(string(text), ": CUDA_ERROR_OUT_OF_MEMORY"); refused == 0 || holders == 0 || refused+holders != racers {
			t.Errorf("%d hold and %d were refused, of %d that have no room together:\n%s", holders, refused, racers, text)
		}
		h.Eventually("the use equals the winners' memory", h.Holds(c.id, uint64(holders)*512*mib))
	})
}

func TestExecJoinsTheSliceOfItsContainer(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		c := h.runContainer(vram(), "/demo/cuda_hog", strconv.Itoa(2*gib))
		h.Eventually("the container's first process holds 2 GiB", h.Holds(c.id, 2*gib))
		c.mustRefuse(2*gib, "an exec'd process: 2 GiB do not fit beside what the first process holds")
		c.mustHold(gib/2, quota, "an exec'd process: half a GiB fits")
	})
}

func TestVariablesCannotLeaveAContainersSlice(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		c := h.runContainer(vram(), "/bin/sleep", "600")
		for _, env := range [][]string{
			{"env", "-i", "LD_LIBRARY_PATH=/fakecuda", "FAKECUDA_STATE=/fake/state"},
			{"env", "LD_PRELOAD="},
			{"env", "GPUSLICE_DIR=/tmp"},
		} {
			out, err := c.exec(append(env, "/demo/cuda_hog", strconv.Itoa(5*gib))...)
			expect.Refused(out, err)(t, "CUDA_ERROR_OUT_OF_MEMORY", env, "5 GiB of 4 were not refused")
		}
	})
}

func TestRecordModeCountsAndRefusesNothing(t *testing.T) {
	h := newHost(t)
	for _, annotations := range []map[string]string{{"gpuslice.mode": "record"}, {"gpuslice.mode": "record", "gpuslice.vram": "4G"}} {
		c := h.runContainer(annotations, "/bin/sleep", "600")
		if g := c.hog(6 * gib); g.refused() || !strings.HasPrefix(g.said, "holds ") {
			t.Errorf("%v: said %q: record mode refuses nothing", annotations, g.said)
		}
		if use := h.Use(c.id); use.Used != 6*gib || use.Limit != 0 {
			t.Errorf("%v: %+v: 6 GiB should be counted, against no limit", annotations, use)
		}
	}
	expect.Equal(t, must.Get(h.cli("run", "--quiet", "--mode", "record", "--", "/bin/echo", "it ran"))(t), "it ran\n")
}

func TestMisspeltAnnotationRefusesTheContainerAndLeavesNothing(t *testing.T) {
	h := newHost(t)
	for _, annotations := range []map[string]string{
		{"gpuslice.vrm": "4G"},
		{"gpuslice.vram": "4Q"},
		{"gpuslice.vram": "-1"},
		nil, // no quota
	} {
		c := h.newContainer(annotations, "/bin/true")
		out, err := c.output(c.runtime("run", "--bundle", c.bundle, c.id))
		expect.Error(t, err, annotations, "the container ran")
		for key := range annotations {
			if !strings.Contains(out, key) || !strings.Contains(out, "accepted") {
				t.Errorf("%v: the annotation, or what is accepted, is not in %q", annotations, out)
			}
		}
		must.Len(t, h.Slices(), 0, annotations, "slices are left")
		for _, name := range []string{api.ContainerDir, "/etc/ld.so.preload"} {
			expect.Error(t, must.Err(os.Lstat(c.bundle+"/rootfs"+name)), annotations, name, "is left in the image")
		}
	}
}

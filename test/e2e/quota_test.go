// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
)

const quota = 4 * gib

func vram() map[string]string { return map[string]string{"gpuslice.vram": "4G"} }

func TestQuotaIsSharedByAllProcessesOfAContainer(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		c := h.newContainer(vram(), "/bin/sleep", "600")
		c.run()

		first := c.hog(gib)
		if !first.holds(gib, quota) {
			t.Fatalf("the first process said %q: it should hold 1 GiB of a card of the quota's size", first.said)
		}
		each := gib + h.Use(c.id).Overhead // cost of another process
		count := uint64(1)
		for ; count < 8; count++ {
			if g := c.hog(gib); g.refused() {
				break
			} else if !g.holds(gib, quota) {
				t.Fatalf("process %d said %q", count+1, g.said)
			}
		}
		if want := quota / each; count != want {
			t.Errorf("%d processes of %d bytes had room in %d, want %d", count, each, uint64(quota), want)
		}
		use := h.Use(c.id)
		if use.Used != count*gib || use.Used+use.Overhead > quota || use.Limit != quota {
			t.Errorf("%d processes hold 1 GiB each, and ps shows %+v", count, use)
		}
		if use.Refusals == 0 {
			t.Error("the refusal was not counted")
		}
	})
}

func TestQuotaIsNeverPassedByProcessesThatRace(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		c := h.newContainer(vram(), "/bin/sleep", "600")
		c.run()

		const racers = 12
		script := `for i in $(seq ` + strconv.Itoa(racers) + `); do /demo/cuda_hog ` + strconv.Itoa(512*mib) + ` & done; wait`
		out, err := os.Create(filepath.Join(h.Dir, "race"))
		h.Must(err)
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
			text, err = os.ReadFile(out.Name())
			return err == nil && strings.Count(string(text), "\n") == racers
		})
		holders := strings.Count(string(text), "holds ")
		if refused := strings.Count(string(text), ": CUDA_ERROR_OUT_OF_MEMORY"); refused == 0 || holders == 0 || refused+holders != racers {
			t.Errorf("%d hold and %d were refused, of %d that have no room together:\n%s", holders, refused, racers, text)
		}
		h.Eventually("what is used is what the winners hold", h.Holds(c.id, uint64(holders)*512*mib))
	})
}

func TestExecJoinsTheSliceOfItsContainer(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		c := h.newContainer(vram(), "/demo/cuda_hog", strconv.Itoa(2*gib))
		c.run()
		h.Eventually("the container's first process holds 2 GiB", h.Holds(c.id, 2*gib))
		if g := c.hog(2 * gib); !g.refused() {
			t.Errorf("an exec'd process said %q: 2 GiB do not fit beside what the first process holds", g.said)
		}
		if g := c.hog(gib / 2); !g.holds(gib/2, quota) {
			t.Errorf("an exec'd process said %q: half a GiB fits", g.said)
		}
	})
}

func TestNoVariableLeadsOutOfAContainersSlice(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		c := h.newContainer(vram(), "/bin/sleep", "600")
		c.run()
		for _, env := range [][]string{
			{"env", "-i", "LD_LIBRARY_PATH=/fakecuda", "FAKECUDA_STATE=/fake/state"},
			{"env", "LD_PRELOAD="},
			{"env", "GPUSLICE_DIR=/tmp"},
		} {
			out, err := c.exec(append(env, "/demo/cuda_hog", strconv.Itoa(5*gib))...)
			if err == nil || !strings.Contains(out, "CUDA_ERROR_OUT_OF_MEMORY") {
				t.Errorf("%q: 5 GiB of 4 were not refused: %v, %s", env, err, out)
			}
		}
	})
}

func TestRecordModeCountsAndRefusesNothing(t *testing.T) {
	h := newHost(t)
	for _, annotations := range []map[string]string{{"gpuslice.mode": "record"}, {"gpuslice.mode": "record", "gpuslice.vram": "4G"}} {
		c := h.newContainer(annotations, "/bin/sleep", "600")
		c.run()
		if g := c.hog(6 * gib); g.refused() || !strings.HasPrefix(g.said, "holds ") {
			t.Errorf("%v: said %q: record mode refuses nothing", annotations, g.said)
		}
		if use := h.Use(c.id); use.Used != 6*gib || use.Limit != 0 {
			t.Errorf("%v: %+v: 6 GiB should be counted, against no limit", annotations, use)
		}
	}
	if out, err := h.cli("run", "--quiet", "--mode", "record", "--", "/bin/echo", "it ran"); err != nil || out != "it ran\n" {
		t.Errorf("%v: %s", err, out)
	}
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
		if err == nil {
			t.Errorf("%v: the container ran", annotations)
		}
		for key := range annotations {
			if !strings.Contains(out, key) || !strings.Contains(out, "accepted") {
				t.Errorf("%v: the annotation, or what is accepted, is not in %q", annotations, out)
			}
		}
		if slices := h.Slices(); len(slices) != 0 {
			t.Errorf("%v: slices are left: %+v", annotations, slices)
		}
		for _, name := range []string{api.ContainerDir, "/etc/ld.so.preload"} {
			if _, err := os.Lstat(c.bundle + "/rootfs" + name); err == nil {
				t.Errorf("%v: %s is left in the image", annotations, name)
			}
		}
	}
}

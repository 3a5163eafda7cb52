// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// mustRun returns the standard output of gpuslice.
func (h *host) mustRun(args ...string) string {
	h.T.Helper()
	out, err := must.Printed(h.command(args...))
	if err != nil {
		h.T.Fatalf("gpuslice %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// poolUse returns the use of an active pool's first device.
func (h *host) poolUse(name string) api.PoolUse {
	h.T.Helper()
	var p api.Pool
	h.Must(json.Unmarshal([]byte(h.mustRun("pool", "show", name)), &p))
	must.Equal(h.T, p.State, api.Active, p.Reason)
	return p.Devices[0]
}

func inPool(vram string) map[string]string {
	annotations := map[string]string{"gpuslice.pool": "llm"}
	if vram != "" {
		annotations["gpuslice.vram"] = vram
	}
	return annotations
}

func TestTwoContainersDrawOnOnePool(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		const limit = 6 * gib
		h.mustRun("pool", "create", "llm", "--vram", "6G")
		limited, unlimited := h.newContainer(inPool("4G"), "/bin/sleep", "600"), h.newContainer(inPool(""), "/bin/sleep", "600")
		limited.run()
		unlimited.run()

		limited.mustHold(gib, 4*gib, "it should see its own quota")
		first := unlimited.hog(3 * gib)
		must.True(t, first.holds(3*gib, limit), "want 3 GiB of the pool's quota, it said", first.said)
		use := h.poolUse("llm")
		if use.Used != 4*gib || use.Overhead == 0 || use.Limit != limit {
			t.Fatalf("the pool has %+v: want 4 GiB used, overhead, and a limit of 6 GiB", use)
		}
		// This fits its own quota, but not the pool's.
		left := limit - use.Used - use.Overhead
		limited.mustRefuse(left, "with its context there is no room for that in the pool")
		// An exit in one container frees memory for the other.
		unlimited.kill(first)
		h.Eventually("the killed process's memory is free", func() bool { return h.poolUse("llm").Used == gib })
		limited.mustHold(gib, 4*gib, "there is room")
		h.Eventually("the slice and the pool have the same use", func() bool {
			all := h.Use(limited.id)
			use := h.poolUse("llm")
			return all.Used == use.Used && all.Overhead == use.Overhead
		})

		unlimited.mustRefuse(5*gib, "there is no room")
		h.Eventually("the refusal is an event", func() bool {
			out := h.mustRun("events")
			return strings.Contains(out, "limit of pool llm 6GiB")
		})
		out, err := unlimited.exec("env", "GPUSLICE_DEBUG=1", "/demo/cuda_hog", strconv.Itoa(5*gib))
		expect.Refused(out, err)(t, "limit of pool llm 6442450944 bytes (6.0 GiB), used by this process")
		expect.Refused(h.cli("pool", "delete", "llm"))(t, "has 2 members", "a pool with members")
		out = h.mustRun("pool", "list")
		if !strings.Contains(out, "llm") || !strings.Contains(out, "6GiB") {
			t.Error(out)
		}
	})
}

func TestASessionAndAContainerAreInOnePool(t *testing.T) {
	h := newHost(t)
	h.mustRun("pool", "create", "llm", "--vram", "5G")
	c := h.runContainer(inPool(""), "/bin/sleep", "600")
	c.mustHold(2*gib, 5*gib)
	out, err := h.cli("run", "--pool", "llm", "--quiet", "--", filepath.Join(h.Bin, "demo", "cuda_hog"), strconv.Itoa(3*gib))
	expect.Refused(out, err)(t, "CUDA_ERROR_OUT_OF_MEMORY", "3 GiB and a context do not fit beside 2 of 5")
	holds := h.command("run", "--pool", "llm", "--vram", "2G", "--quiet", "--", filepath.Join(h.Bin, "demo", "cuda_hog"), strconv.Itoa(gib))
	var said testhost.Output
	holds.Stdout, holds.Stderr = &said, &said
	h.Must(holds.Start())
	h.Eventually("it holds 1 of its 2 GiB", func() bool { return strings.Contains(said.String(), "holds 1073741824 of 2147483648") })
	h.Must(holds.Process.Signal(unix.SIGTERM))
	_ = holds.Wait()
	for _, args := range [][]string{ // each is refused in one line
		{"run", "--pool", "nobody", "--", "/bin/true"},
		{"run", "--pool", "llm", "--embedded", "--", "/bin/true"},
		{"run", "--pool", "llm", "--mode", "record", "--", "/bin/true"},
		{"run", "--pool", "llm", "--device", "0", "--", "/bin/true"},
		{"run", "--pool", "", "--vram", "1G", "--", "/bin/true"},
		{"run", "--tenant", "", "--vram", "1G", "--", "/bin/true"},
	} {
		if out, err := h.cli(args...); err == nil || strings.Count(out, "\n") != 1 || !strings.Contains(out, "gpuslice: ") {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
}

func TestAMemberGetsAQuotaOfItsOwnWhileItRuns(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		h.mustRun("pool", "create", "llm", "--vram", "8G")
		c := h.runContainer(inPool(""), "/bin/sleep", "600")
		c.mustHold(gib, 8*gib)
		h.mustRun("set", c.id, "--vram", "4G")
		c.mustRefuse(3*gib, "with its contexts there is no room in 4 GiB")
		c.mustHold(gib, 4*gib)
		if use := h.Use(c.id); use.Limit != 4*gib || use.Used != 2*gib {
			t.Errorf("the slice has %+v: want 2 of 4 GiB used", use)
		}
	})
}

// race.c checks each result against its own books. Here only the pool limits it: the pool's peak and refusals are checked, too.
func TestConcurrentAllocationsNeverExceedPoolLimit(t *testing.T) {
	t.Parallel()
	const limit = 1536 * mib
	card := []string{"FAKECUDA_DEVICES=2", "FAKECUDA_CONTEXT=8M"}
	h := &host{testhost.New(t, testhost.Options{Env: card}), ""}
	h.compileLinked("race", "../interceptor/programs/race.c")
	h.mustRun("pool", "create", "llm", "--vram", strconv.Itoa(limit)+"b")
	race := exec.Command(filepath.Join(h.Bin, "gpuslice"), "--socket", h.Socket(),
		"run", "--pool", "llm", "--quiet", "--", filepath.Join(h.Dir, "fake", "race"), "4", "24", "4", strconv.Itoa(limit), "1") // seconds, processes, kills, limit, refusals
	race.Env = append(h.Env(), card...)
	t.Logf("%s", must.Output(race.CombinedOutput())(t))
	h.Eventually("the pool is empty", func() bool {
		use := h.poolUse("llm")
		return use.Used == 0 && use.Overhead == 0
	})
	if use := h.poolUse("llm"); use.Peak > limit || use.Refusals == 0 {
		t.Errorf("the pool has %+v: want a peak of at most %d, and refusals", use, limit)
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// cardsOf returns a host with three cards, their UUIDs by NVML index, and a program that prints CUDA's devices.
func cardsOf(t *testing.T) (h *host, uuids []string, program string) {
	t.Helper()
	h = newHostOf(t, 3)
	devices := must.Get(h.Client.Devices(t.Context()))(h.T)
	for i, d := range devices {
		must.Equal(t, d.Index, i, "index")
		uuids = append(uuids, d.UUID)
	}
	h.compileLinked("devices", "programs/devices.c")
	return h, uuids, filepath.Join(h.Dir, "fake", "devices")
}

// run returns a `gpuslice run` on the host of cardsOf.
func (h *host) run(more []string, args ...string) *exec.Cmd {
	cmd := h.command(append([]string{"run", "--quiet"}, args...)...)
	cmd.Env = append(append(cmd.Env, "FAKECUDA_DEVICES=3", "FAKECUDA_NVML_ORDER=reverse"), more...)
	return cmd
}

func TestASessionSeesTheDevicesItIsForInTheOrderGiven(t *testing.T) {
	h, uuids, program := cardsOf(t)
	for _, c := range []struct {
		devices []string
		own     string // CUDA_VISIBLE_DEVICES; "-" for unset
		want    []int
	}{
		{nil, "-", []int{2, 1, 0}}, // CUDA enumerates them in reverse
		{nil, uuids[1], []int{1}},
		{[]string{"1"}, "-", []int{1}},
		{[]string{"0"}, "-", []int{0}},
		{[]string{uuids[2]}, "-", []int{2}},
		{[]string{"0", "2"}, "-", []int{0, 2}},
		{[]string{"2", "0"}, "-", []int{2, 0}},
		{[]string{"2", "0"}, strings.Join(uuids, ","), []int{0, 2}},
		{[]string{"1"}, uuids[2] + "," + uuids[1], []int{1}},
		{[]string{"1"}, "0,1,2", []int{1}},
		{[]string{"2", "1"}, "1,2", []int{1, 2}},
	} {
		for _, more := range [][]string{nil, {"--embedded"}, {"--mode", "record"}} {
			args := append([]string{"--vram", "4G"}, more...)
			for _, device := range c.devices {
				args = append(args, "--device", device)
			}
			env := []string{"NVIDIA_VISIBLE_DEVICES=all"}
			if c.own != "-" {
				env = append(env, "CUDA_VISIBLE_DEVICES="+c.own)
			}
			out, code := output(h.run(env, append(args, "--", "sh", "-c", program+`; echo "$NVIDIA_VISIBLE_DEVICES"`)...))
			want := "all\n"
			for _, index := range slices.Backward(c.want) {
				want = uuids[index] + "\n" + want
			}
			if code != 0 || out != want {
				t.Errorf("%v with %s: exit code %d, it sees\n%s, want\n%s", args, c.own, code, out, want)
			}
		}
	}
	out, code := output(h.run([]string{"CUDA_VISIBLE_DEVICES=" + uuids[0]}, "--vram", "4G", "--device", "0", "--device", "1", "--", program))
	expect.Equal(t, code, 125, "a session on a device that CUDA_VISIBLE_DEVICES leaves out")
	expect.Contains(t, out, fmt.Sprintf("gpuslice: CUDA_VISIBLE_DEVICES=%s leaves out %s, a device of this session: ", uuids[0], uuids[1]))
	must.Len(t, h.Slices(), 0, "slices are left")
}

func TestACommandThatJoinsSeesTheDevicesOfTheSession(t *testing.T) {
	h, uuids, program := cardsOf(t)
	token := filepath.Join(h.Dir, "token")
	first := h.run(nil, "--name", "s", "--vram", "4G", "--device", "2", "--device", "0", "--", "sh", "-c", `cp "$`+api.TokenEnv+`" `+token+`.new && mv `+token+`.new `+token+`; read line`)
	in := must.Get(first.StdinPipe())(h.T)
	h.Must(first.Start())
	defer func() {
		in.Close()
		_ = first.Wait()
	}()
	h.Eventually("the session runs", func() bool {
		_, err := os.Stat(token)
		return err == nil
	})
	for own, want := range map[string]string{
		"-":                       uuids[2] + "\n" + uuids[0] + "\n",
		uuids[1] + "," + uuids[0]: uuids[0] + "\n",
		uuids[0] + "," + uuids[2]: uuids[0] + "\n" + uuids[2] + "\n",
	} {
		var env []string
		if own != "-" {
			env = append(env, "CUDA_VISIBLE_DEVICES="+own)
		}
		if out, code := output(h.run(env, "--join", token, "--", program)); code != 0 || out != want {
			t.Errorf("with %s: exit code %d, it sees\n%s, want\n%s", own, code, out, want)
		}
	}
	out, code := output(h.run([]string{"CUDA_VISIBLE_DEVICES=" + uuids[1]}, "--join", token, "--", program))
	if code != 125 || !strings.Contains(out, " leaves out "+uuids[2]+", "+uuids[0]) {
		t.Errorf("with a device that the session is not for: exit code %d, %s", code, out)
	}
}

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
	for _, d := range must.Get(h.Client.Devices(t.Context()))(h.T) {
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

func TestGPUFirstSeenLaterIsLimited(t *testing.T) {
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

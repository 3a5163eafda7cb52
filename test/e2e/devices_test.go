// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/must"
)

// cardsOf returns a host with three cards, their UUIDs by NVML index, and a program that prints CUDA's devices.
func cardsOf(t *testing.T) (h *host, uuids []string, program string) {
	t.Helper()
	h = newHostOf(t, 3)
	devices := must.Get(h.Client.Devices(t.Context()))(h.T)
	for i, d := range devices {
		if d.Index != i {
			t.Fatalf("device %d has the index %d", i, d.Index)
		}
		uuids = append(uuids, d.UUID)
	}
	h.compile("devices")
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
}

func TestADeviceThatCUDAVisibleDevicesLeavesOutIsRefused(t *testing.T) {
	h, uuids, program := cardsOf(t)
	for own, devices := range map[string][]string{
		"0":                               {"1"},
		"":                                {"1"},
		"-1":                              {"1"},
		"7,1":                             {"1"}, // CUDA stops at an invalid entry
		uuids[0]:                          {"0", "1"},
		uuids[1][:len("GPU-12345678")]:    {"1"}, // an ambiguous prefix
		uuids[0] + ",nothing," + uuids[1]: {"1"},
	} {
		args := []string{"--vram", "4G"}
		for _, device := range devices {
			args = append(args, "--device", device)
		}
		out, code := output(h.run([]string{"CUDA_VISIBLE_DEVICES=" + own}, append(args, "--", program)...))
		want := fmt.Sprintf("gpuslice: CUDA_VISIBLE_DEVICES=%s leaves out %s, a device of this session: ", own, uuids[1])
		if code != 125 || !strings.HasPrefix(out, want) || strings.Count(out, "\n") != 1 {
			t.Errorf("%s: exit code %d, %q, want %q…", own, code, out, want)
		}
	}
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

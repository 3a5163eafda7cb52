// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

const oldest = "fakecuda-11.2"

func TestTheOldestSupportedDriver(t *testing.T) {
	const raceLimit = 1536 // MiB
	cases := []struct {
		name, vram string
		nvml       string
		args       []string
	}{
		{"oldest", "4G", "", nil},
		{"oldest", "4G", "fail", nil},
		{"accounting", "4G", "", nil},
		{"accounting", "4G", "fail", nil},
		{"threads", "2G", "", []string{"8", "2000"}},
		{"fork", "2G", "", nil},
		{"race", fmt.Sprintf("%dM", raceLimit), "", []string{"2", "12", "2", fmt.Sprint(raceLimit * mib)}},
	}
	for _, c := range cases {
		t.Run(c.name+" nvml="+c.nvml, func(t *testing.T) {
			context := "64M"
			if c.name == "race" {
				context = "8M"
			}
			env := environment(t, "FAKECUDA_CONTEXT="+context, "FAKECUDA_NVML="+c.nvml,
				"LD_LIBRARY_PATH="+filepath.Join(bin(t), oldest)+":"+filepath.Join(bin(t), "fakecuda"))
			command := append([]string{compileFor(t, oldest, c.name)}, c.args...)
			must.Output(inSlice(t, env, c.vram, command...))(t)
		})
	}
}

func TestTheOldestSupportedDriverLacksWhatCameLater(t *testing.T) {
	old, today := exported(t, oldest+"/libcuda.so.1"), exported(t, "fakecuda/libcuda.so.1")
	for _, name := range old {
		expect.True(t, slices.Contains(today, name), "today's driver has no", name)
	}
	for _, name := range today {
		later := strings.HasPrefix(name, "cuGetProcAddress") || strings.HasPrefix(name, "cuLibrary") ||
			strings.HasPrefix(name, "cuGreenCtx") || strings.HasPrefix(name, "cuGraphAddMem") && name != "cuGraphAddMemsetNode"
		if later && slices.Contains(old, name) {
			t.Errorf("the oldest driver has %s", name)
		}
	}
	expect.True(t, slices.Contains(old, "cuMemAllocAsync_ptsz"), "the oldest driver has no pools")
}

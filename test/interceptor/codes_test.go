// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// quotaFirst matches calls with two errors, of which the driver reports one, and the interceptor the quota's. Each pattern must
// match a difference.
var quotaFirst = []string{
	`current large (cuMemAlloc|cuMemAllocPitch)`, // not in a context of today's API
	`current large cuMemAllocManaged`,            // without flags
	`current large cuCtxSetLimit`,                // more than the card has for stacks
	`current large cuImportExternalMemory`,
}

// answers runs the program, and returns the driver's code for each call.
func answers(t *testing.T, cmd *exec.Cmd) map[string]string {
	t.Helper()
	out := must.Get(cmd.Output())(t)
	codes := map[string]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 4)
		must.Len(t, f, 4, line, "four fields are expected")
		codes[strings.Join(f[:3], " ")] = f[3]
	}
	return codes
}

func TestWhatTheDriverRefusesTheDriverRefuses(t *testing.T) {
	program := compile(t, "codes")
	command := func(args ...string) *exec.Cmd {
		c := exec.Command(args[0], args[1:]...)
		// The C library gives out freed memory at once, as glibc 2.41 and later do by default.
		c.Env = environment(t, "FAKECUDA_CONTEXT=64M", "GLIBC_TUNABLES=glibc.malloc.tcache_count=0")
		return c
	}
	native := answers(t, command(program))
	must.True(t, len(native) >= 3000, "too few calls:", len(native))
	used := map[string]bool{}
	for call, code := range answers(t, command(filepath.Join(bin(t), "gpuslice"), "run", "--embedded", "--quiet", "--vram", "4G", "--", program)) {
		if code == native[call] {
			continue
		}
		excused := false
		for _, pattern := range quotaFirst {
			if code == "2" && native[call] != "0" && regexp.MustCompile("^"+pattern+"$").MatchString(call) {
				excused, used[pattern] = true, true
			}
		}
		expect.True(t, excused, call, code, "where it is without the interceptor", native[call])
	}
	for _, pattern := range quotaFirst {
		expect.True(t, used[pattern], pattern, "nothing differs any more")
	}
}

// A process in no slice has no context, so each call that needs one is refused for that reason; and none is granted memory.
func TestAProcessInNoSliceHearsTheDriversReason(t *testing.T) {
	program := compile(t, "codes")
	native := exec.Command(program)
	native.Env = environment(t)
	alone := exec.Command(program)
	alone.Env = environment(t, "LD_PRELOAD="+filepath.Join(bin(t), "libgpuslice.so"))
	codes := answers(t, alone)
	later := regexp.MustCompile(` cu(MemCreate|\w*Ctx\w*(Create|Retain)\w*)$`)
	for call, code := range answers(t, native) {
		got, made := codes[call]
		situation, _, _ := strings.Cut(call, " ")
		switch {
		case situation != "uninitialised" && situation != "no-context":
			expect.True(t, !made, call, "there is a context")
		case got != code && (got != "2" || !later.MatchString(call)):
			t.Errorf("%s: %s, and without the interceptor %s", call, got, code)
		}
	}
}

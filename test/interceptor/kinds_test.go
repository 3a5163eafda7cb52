// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/must"
)

func TestEveryKindOfMemoryAtOnceIsExactUnderKills(t *testing.T) {
	seconds, processes := 5, "6"
	if os.Getenv("GPUSLICE_LONG") != "" {
		seconds, processes = 10, "16"
	}
	nothing := []string{" 0 graphs", " 0 pools", " 0 stacks", " 0 primary", " 0 refusals", " 0 kills", " 0 exact"}
	for _, context := range []string{"64M", "8M"} {
		t.Run("context="+context, func(t *testing.T) {
			env := environment(t, "FAKECUDA_CONTEXT="+context)
			storm := compile(t, "storm", "../../interceptor/ledger.c")
			// A slow machine needs more time, and reaches less at a time: its processes start and end more often than they hold
			// much.
			for n, quota := seconds, 4; ; n, quota = 3*n, max(quota/2, 1) {
				out, err := inSlice(t, env, strconv.Itoa(quota)+"G", storm, strconv.Itoa(n), processes, "2")
				var exit *exec.ExitError
				const tooShort = 3 // storm.c
				short := errors.As(err, &exit) && exit.ExitCode() == tooShort
				if err != nil && !short {
					t.Fatalf("%v\n%s", err, out)
				}
				t.Log(out)
				if !short && !slices.ContainsFunc(nothing, func(s string) bool { return strings.Contains(out, s) }) {
					break
				}
				must.True(t, n <= 15*seconds, "this shows nothing")
			}
		})
	}
}

func TestALaunchOnSeveralDevicesIsChargedOnEachBeforeIt(t *testing.T) {
	must.Output(inSlice(t, environment(t, "FAKECUDA_DEVICES=2"), "4G", compile(t, "devices")))(t)
}

func TestACheckpointedProcessStaysCharged(t *testing.T) {
	must.Output(inSlice(t, environment(t), "4G", compile(t, "checkpoint")))(t)
}

// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"os"
	"strings"
	"testing"
)

func TestEveryKindOfMemoryAtOnceIsExactUnderKills(t *testing.T) {
	seconds, processes := "5", "6"
	if os.Getenv("GPUSLICE_LONG") != "" {
		seconds, processes = "10", "16"
	}
	for _, context := range []string{"64M", "8M"} {
		t.Run("context="+context, func(t *testing.T) {
			env := environment(t, "FAKECUDA_CONTEXT="+context)
			out, err := inSlice(t, env, "4G", compile(t, "storm", "../../interceptor/ledger.c"), seconds, processes, "2")
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, nothing := range []string{" 0 graphs", " 0 refusals", " 0 kills", " 0 exact"} {
				if strings.Contains(out, nothing) {
					t.Fatalf("%s, so this shows nothing:\n%s", nothing, out)
				}
			}
			t.Log(out)
		})
	}
}

func TestWhatACheckpointedProcessHeldIsForOthersUntilItComesBack(t *testing.T) {
	out, err := inSlice(t, environment(t), "4G", compile(t, "checkpoint"))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

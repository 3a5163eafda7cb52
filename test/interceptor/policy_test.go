// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"os"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
)

// withoutRaces excludes from a storm threads that create and destroy contexts continuously. Meanwhile the memory of code that
// another thread loads cannot be determined and is charged late (docs/evidence/security.md).
const withoutRaces = "2047"

// The strictest policy is evaluated a hundred times a second while honest processes use memory in all ways. A violation would
// kill all processes of the slice.
func TestAStormOfHonestProcessesIsNeverAccused(t *testing.T) {
	seconds, processes := "5", "6"
	if os.Getenv("GPUSLICE_LONG") != "" {
		seconds, processes = "10", "16"
	}
	for _, context := range []string{"64M", "8M"} {
		t.Run("context="+context, func(t *testing.T) {
			env := environment(t, "FAKECUDA_CONTEXT="+context)
			d := startDaemon(t, env, `truth_interval = "10ms"`, `settle_time = "1s"`, `[policy]`, `bypass_grace = "10ms"`, `bypass = "kill"`, `scope = "slice"`, `allowance = "128M"`)
			// Events outlive their slice, as long as the enforcer runs.
			cmd, lines := d.start(t, env, "4G", compile(t, "storm", "../../interceptor/ledger.c"), seconds, processes, "2", "7", withoutRaces)
			last := lastOf(t, lines)
			if err := cmd.Wait(); err != nil || strings.Contains(last, " 0 kills") {
				t.Errorf("%v, %q", err, last)
			}
			events := 0
			err := client.New(d.socket()).Events(t.Context(), "", 0, false, func(e api.Event) error {
				events++
				if e.Kind == api.EventBypass || e.Kind == api.EventKilled {
					t.Errorf("%+v", e)
				}
				return nil
			})
			if err != nil || events == 0 {
				t.Errorf("%d events, %v", events, err)
			}
		})
	}
}

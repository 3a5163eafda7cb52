// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"

	"github.com/gpuslice/gpuslice/enforcer/advice"
)

// health reports the enforcer's own failed checks. An older enforcer has none; the check of the version reports that.
func (h Host) health(ctx context.Context, add adder) {
	health, err := h.Enforcer.Health(ctx)
	if err != nil {
		return
	}
	for _, c := range health.Checks {
		if c.OK {
			continue
		}
		level, message := Fail, c.Message
		if c.For == "" {
			level = Warn
		}
		if c.Device != "" {
			message = c.Device + ": " + message
		}
		add("health", level, message, "see "+advice.Log("gpusliced")+"; and docs/operate/daemon.md")
	}
}

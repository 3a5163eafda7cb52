// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// Health is the answer to GET /v1/health.
type Health struct {
	Live   bool    `json:"live"`   // false: the enforcer hangs and needs a restart
	Ready  bool    `json:"ready"`  // false: registering a slice would probably fail now
	Checks []Check `json:"checks"` // the results behind Live and Ready
}

// Values of Check.For.
const (
	ForLive  = "live" // required for Live, and so for Ready
	ForReady = "ready"
)

// Check is the result of one check.
type Check struct {
	Name   string `json:"name"`
	Device string `json:"device,omitempty"` // UUID, if the check is about one device
	OK     bool   `json:"ok"`
	For    string `json:"for,omitempty"` // ForLive, ForReady, or "": not required
	// Age is the time without progress.
	Age      time.Duration `json:"age"`
	Failures uint64        `json:"failures,omitempty"` // since the enforcer's start
	Message  string        `json:"message,omitempty"`  // what is wrong, in one sentence
}

// Conclude sets Live and Ready from the checks.
func (h *Health) Conclude() {
	h.Live, h.Ready = true, true
	for _, c := range h.Checks {
		if c.OK {
			continue
		}
		if c.For == ForLive {
			h.Live = false
		}
		if c.For != "" {
			h.Ready = false
		}
	}
}

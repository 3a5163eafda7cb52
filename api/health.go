// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// Health is GET /v1/health: whether the enforcer makes progress, and whether it gives slices.
type Health struct {
	Live   bool    `json:"live"`   // false: it hangs, and a restart is the way out
	Ready  bool    `json:"ready"`  // false: a container that asks for a slice now will hardly get one
	Checks []Check `json:"checks"` // what this was concluded from
}

// What a Check is needed for.
const (
	ForLive  = "live" // and so for being ready
	ForReady = "ready"
)

// Check is one thing that was checked.
type Check struct {
	Name   string `json:"name"`
	Device string `json:"device,omitempty"` // UUID, if it is about one
	OK     bool   `json:"ok"`
	For    string `json:"for,omitempty"` // ForLive, ForReady, or "": the enforcer does its work without it
	// Age is for how long there was no progress.
	Age      time.Duration `json:"age"`
	Failures uint64        `json:"failures,omitempty"` // since the enforcer began
	Message  string        `json:"message,omitempty"`  // what is wrong, in a sentence
}

// Conclude fills in what follows from the checks.
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

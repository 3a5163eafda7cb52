// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// UserLimits is what a user's sessions and leases may have together, and what is left.
type UserLimits struct {
	UID         uint32        `json:"uid"`
	MaxVRAM     string        `json:"max_vram,omitempty"`     // of each device, as configured; "" is no limit
	MaxSessions int           `json:"max_sessions,omitempty"` // at one time; 0 is no limit
	Sessions    int           `json:"sessions"`               // now; one that is over counts until its processes have ended
	MaxTTL      time.Duration `json:"max_ttl,omitempty"`      // of each; 0 is no limit
	Devices     []DeviceLimit `json:"devices"`                // empty without driver truth
}

// DeviceLimit is what a user may have of one device. Sizes in bytes.
type DeviceLimit struct {
	Device string `json:"device"` // UUID
	Index  int    `json:"index"`  // NVML's
	Name   string `json:"name"`
	Limit  uint64 `json:"limit"` // that the user's sessions may be granted together, or one session if that is less
	Given  uint64 `json:"given"` // granted to the user's sessions
	// Left is the largest quota that a session which is not elastic would be granted without an eviction.
	Left uint64 `json:"left"`
}

// SPDX-License-Identifier: Apache-2.0

package api

// Enforcement says who refuses what passes a limit on a device.
type Enforcement string

const (
	// Native is the interceptor first, and the driver for processes that have gone around it: it limits the slice's cgroup.
	Native Enforcement = "native"
	// Intercept is the interceptor alone, with driver truth behind it.
	Intercept Enforcement = "intercept"
	// Auto is, in a configuration, Native on each device where it was seen to work, and Intercept on the others.
	Auto Enforcement = "auto"
)

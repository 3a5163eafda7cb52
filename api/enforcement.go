// SPDX-License-Identifier: Apache-2.0

package api

// Enforcement is the mechanism that enforces limits on a device.
type Enforcement string

const (
	// Native is the interceptor and the driver's limit on the slice's cgroup, which also holds for processes that bypass the
	// interceptor.
	Native Enforcement = "native"
	// Intercept is the interceptor alone, checked against driver truth.
	Intercept Enforcement = "intercept"
	// Auto, in a configuration, is Native on devices where it was seen to work, and Intercept on the others.
	Auto Enforcement = "auto"
)

// SPDX-License-Identifier: Apache-2.0

// Package needs skips tests that the machine cannot run.
package needs

import (
	"os"
	"testing"
)

// Root skips the test unless it runs as root. All tests that need privileges use it, so that their skips share one reason.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

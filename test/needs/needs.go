// SPDX-License-Identifier: Apache-2.0

// Package needs skips tests that ask for more than the machine offers.
package needs

import (
	"os"
	"testing"
)

// Root skips the test unless it runs as root. All tests that need privileges ask here, with one reason.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

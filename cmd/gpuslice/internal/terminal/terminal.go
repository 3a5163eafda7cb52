// SPDX-License-Identifier: Apache-2.0

// Package terminal keeps the library of `top` from querying the terminal's background during its initialization, in every
// command. That would cost a round trip over ssh, the keys typed at that time, and five seconds without an answer. The library
// does not query a dumb terminal, so this package sets TERM.
//
// Go initializes packages in the order of their paths, if imports allow it (Go's specification, "Program initialization"). This
// package has no imports to wait for, and the library imports packages with later paths.
package terminal

import "os"

var name, named = os.LookupEnv("TERM")

func init() { _ = os.Setenv("TERM", "dumb") }

// Restore restores TERM. The package that imports the library has to call it during its initialization.
func Restore() {
	if !named {
		_ = os.Unsetenv("TERM")
		return
	}
	_ = os.Setenv("TERM", name)
}

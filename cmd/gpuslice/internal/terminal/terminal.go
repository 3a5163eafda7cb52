// SPDX-License-Identifier: Apache-2.0

// Package terminal keeps the terminal from being asked anything before main begins. The library that `top` draws with asks it for its
// background as soon as it is initialised, in every command: one round trip over ssh, the next keys that somebody typed lost, and five
// seconds where nobody answers. It asks no terminal that is called dumb. Packages are initialised in the order of their paths, as far as
// what they import allows that (Go's specification, "Program initialization"): this one imports nothing that has to wait, and that library
// imports packages whose paths come after this one's.
package terminal

import "os"

var name, named = os.LookupEnv("TERM")

func init() { _ = os.Setenv("TERM", "dumb") }

// Restore gives the terminal its name back. What imports the library has to call it when it is initialised.
func Restore() {
	if !named {
		_ = os.Unsetenv("TERM")
		return
	}
	_ = os.Setenv("TERM", name)
}

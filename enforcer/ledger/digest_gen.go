// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// Writes digest.h: see there why it exists.
package main

import (
	"crypto/sha256"
	"fmt"
	"log"
	"os"
)

func main() {
	sum := sha256.New()
	for _, name := range []string{"ledger.h", "ledger.c", "atomic128.h", "attach.h"} {
		b, err := os.ReadFile("../../interceptor/" + name)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(b), b)
	}
	text := fmt.Sprintf(`/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from interceptor/ledger.h, ledger.c, atomic128.h and attach.h by "go generate ./enforcer/ledger".
 * The go command rebuilds a package when a file of its directory changes, and does not see those: this
 * file changes with them. A test holds it against them.
 */
#define NATIVE_DIGEST "%x"
`, sum.Sum(nil))
	if err := os.WriteFile("digest.h", []byte(text), 0o644); err != nil {
		log.Fatal(err)
	}
}

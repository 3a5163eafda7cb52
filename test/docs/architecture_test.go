// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const maxArchitectureWords = 2500

// The page gives an overview, so it must stay short.
func TestTheArchitectureIsReadInOneSitting(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	if words := len(strings.Fields(string(text))); words > maxArchitectureWords {
		t.Errorf("docs/architecture.md has %d words, and %d are its bound: docs/evidence/accounting.md and docs/evidence/restart.md are for the detail", words, maxArchitectureWords)
	}
}

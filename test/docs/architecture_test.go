// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/must"
)

// These pages give an overview, so they must stay short.
func TestOverviewsAreReadInOneSitting(t *testing.T) {
	for page, limit := range map[string]struct {
		words  int
		detail string
	}{
		"docs/architecture.md":     {2500, "docs/evidence/accounting.md and docs/evidence/restart.md"},
		"docs/operate/security.md": {1000, "docs/evidence/security.md"},
	} {
		text := must.Get(os.ReadFile(filepath.Join(root, page)))(t)
		if words := len(strings.Fields(string(text))); words > limit.words {
			t.Errorf("%s has %d words, more than %d: move details to %s", page, words, limit.words, limit.detail)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// The table of faults must have exactly the code's kill points.
func TestTheTableOfFaultsHasAllKillPoints(t *testing.T) {
	var named []string
	points := must.Get(testhost.KillPoints(root, "enforcer", "hostmem", "lease", "cmd"))(t)
	// test/e2e covers the kill points of moves.
	points = slices.DeleteFunc(points, func(point string) bool {
		part, _, _ := strings.Cut(point, ".")
		return slices.Contains([]string{"suspend", "move", "evict", "host", "holder"}, part)
	})
	const document = "docs/evidence/faults.md"
	text := must.Get(os.ReadFile(filepath.Join(root, document)))(t)
	for _, m := range regexp.MustCompile("(?m)^\\| [a-z ]+ killed at `([^`]+)` \\|").FindAllSubmatch(text, -1) {
		named = append(named, string(m[1]))
	}
	for _, point := range points {
		if !slices.Contains(named, point) {
			t.Errorf("%s does not have the kill point %s: TABLE=%[1]s test/faults/run.sh writes it", document, point)
		}
	}
	for _, point := range named {
		expect.True(t, slices.Contains(points, point), document, "has the kill point", point, "and the code has not")
	}
}

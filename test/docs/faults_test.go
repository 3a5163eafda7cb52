// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/must"
)

// The table of faults must have exactly the code's kill points.
func TestTheTableOfFaultsHasAllKillPoints(t *testing.T) {
	var points, named []string
	call := regexp.MustCompile(`(killpoint\.P|q\.p|l\.p)ass\("([a-z.-]+)"\)`)
	for _, dir := range []string{"enforcer", "hostmem", "lease", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range call.FindAllSubmatch(text, -1) {
				switch point := string(m[2]); string(m[1]) {
				case "q.p": // of a slice and of a pool
					points = append(points, point, strings.Replace(point, ".", ".pool.", 1))
				case "l.p": // of a lease's first broker and of a replacement
					points = append(points, "acquire."+point, "restart."+point)
				default:
					points = append(points, point)
				}
			}
			return err
		})
		must.Do(t, err)
	}
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
		if !slices.Contains(points, point) {
			t.Errorf("%s has the kill point %s, and the code has not", document, point)
		}
	}
}

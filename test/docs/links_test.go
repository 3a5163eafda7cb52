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

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	noSlug  = regexp.MustCompile(`[^\pL\pN_ -]`)
)

func TestLinksBetweenDocumentsLeadSomewhere(t *testing.T) {
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != root:
			return fs.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		for _, found := range link.FindAllStringSubmatch(document(t, path), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(found[1], "#")
			to := path
			if file != "" {
				to = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %v", path, err)
			} else if anchor != "" && filepath.Ext(to) == ".md" && !slices.Contains(anchors(document(t, to)), anchor) {
				t.Errorf("%s: %s has no section #%s", path, to, anchor)
			}
		}
		return nil
	})
	must.Do(t, err)
}

// document returns a file's text without code.
func document(t *testing.T, path string) string {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	return fence.ReplaceAllString(string(text), "")
}

func anchors(text string) (names []string) {
	for _, found := range heading.FindAllStringSubmatch(text, -1) {
		names = append(names, strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-"))
	}
	return names
}

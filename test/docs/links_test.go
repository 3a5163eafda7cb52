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
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fence    = regexp.MustCompile("(?ms)^```.*?^```")
	heading  = regexp.MustCompile(`(?m)^#+ (.+)$`)
	tableRow = regexp.MustCompile(`(?m)^\|.*$`)
	noSlug   = regexp.MustCompile(`[^\pL\pN_ -]`)
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

var odd = regexp.MustCompile(`(?i)it counts after|tells? an engine|engines? (is|are) told|\blives for\b|beginnings|^#+ rooms$|\bmourn|\bbury|\bburied|\bghost|\bguilty|\bpunish|\bacquit|` +
	`\bbelieved?\b|without a word|\b(is|are|was|were|be) held to\b|\bof the dead\b|\bits own word\b|\bare lies\b|lives from now`)

func TestDocumentsAvoidListedPhrases(t *testing.T) {
	files := []string{filepath.Join(root, "README.md"), filepath.Join(root, "configs/config.toml"), filepath.Join(root, "api/openapi.yaml")}
	for _, dir := range []string{"docs", "cmd/gpuslice"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			switch extension := filepath.Ext(path); {
			case err != nil:
				return err
			case extension == ".md", extension == ".8", extension == ".go" && !strings.HasSuffix(path, "_test.go"):
				files = append(files, path)
			}
			return nil
		})
		must.Do(t, err)
	}
	for _, file := range files {
		text := must.Get(os.ReadFile(file))(t)
		number := 0
		for line := range strings.Lines(string(text)) {
			if number++; odd.MatchString(strings.TrimRight(line, "\n")) {
				t.Errorf("%s:%d: %q", file, number, odd.FindString(line))
			}
		}
	}
}

// These pages give an overview, so they must stay short.
func TestPagesAreShort(t *testing.T) {
	pages := append(must.Get(filepath.Glob(root+"/docs/use/*.md"))(t), must.Get(filepath.Glob(root+"/docs/operate/*.md"))(t)...)
	for _, page := range append(pages, root+"/docs/architecture.md") {
		limit := 900
		if strings.HasSuffix(page, "/architecture.md") {
			limit = 2500
		}
		text := tableRow.ReplaceAllString(fence.ReplaceAllString(string(must.Get(os.ReadFile(page))(t)), ""), "")
		if words := len(strings.Fields(text)); words > limit {
			t.Errorf("%s has %d words beside tables and examples, more than %d: move details to another page", page, words, limit)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/must"
)

var odd = regexp.MustCompile(`(?i)it counts after|tells? an engine|engines? (is|are) told|\blives for\b|beginnings|^#+ rooms$|\bmourn|\bbury|\bburied|\bghost|\bguilty|\bpunish|\bacquit|` +
	`\bbelieved?\b|without a word|\b(is|are|was|were|be) held to\b|\bof the dead\b|\bits own word\b|\bare lies\b|lives from now`)

func TestPhrasesThatReadersStumbledOverAreGone(t *testing.T) {
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

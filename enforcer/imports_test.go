// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// levels are those of the packages below this directory: each imports from lower ones only.
var levels = map[string]int{
	"advice": 0, "api": 0, "durable": 0, "guard": 0, "killpoint": 0,
	"cgroup": 1, "config": 1, "driver": 1, "durable/durabletest": 1, "event": 1, "ledger": 1, "process": 1,
	"audit": 2, "checkpoint": 2, "history": 2, "unixsocket": 2,
	"admission": 3, "attach": 3, "client": 3, "hostmem": 3, "report": 3, "truth": 3,
	"policy": 4, "quota": 4, "store": 4,
	"native": 5, "recovery": 5, "session": 5,
	"metrics": 6, "server": 6,
	".": 7,
}

func TestImportsGoDownOnly(t *testing.T) {
	const root = "github.com/gpuslice/gpuslice/enforcer"
	seen := make(map[string]bool)
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "testdata":
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		of := filepath.Dir(path)
		level, known := levels[of]
		if !known && !seen[of] {
			t.Errorf("package %s has no level", of)
		}
		seen[of] = true
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			below, ours := strings.CutPrefix(name, root+"/")
			if !ours {
				if name == root {
					t.Errorf("%s imports the root", path)
				}
				continue
			}
			if other, known := levels[below]; known && other >= level {
				t.Errorf("%s, of level %d, imports %s, of level %d", path, level, below, other)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range levels {
		if !seen[name] {
			t.Errorf("there is no package %s", name)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var cgo = regexp.MustCompile(`(?m)^import "C"$`)

func TestEveryPackageHasTheDigestOfWhatItIncludes(t *testing.T) {
	const root = "../../.."
	packages := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		if cgo.Match(b) {
			packages[filepath.Dir(path)] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(packages) < 3 {
		t.Fatalf("found %d packages with C", len(packages))
	}
	for dir := range packages {
		files, err := included(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(files) == 0 {
			continue
		}
		want, err := digest(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, header)); err != nil || string(got) != want {
			t.Errorf("%s/%s is of other sources than %q (%v), and what is compiled in may be, too: run make generate",
				dir, header, files, err)
		}
	}
}

func TestWhatIsIncludedByWhatIsIncludedCounts(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"p/a.go": "package p\n\n// #include \"a.h\"\nimport \"C\"\n",
		"p/a.h":  "#include <stdio.h>\n#include \"../other/one.h\"\n",
		"p/b.c":  "# include \"a.h\"\n",
		// Tests bring their own.
		"p/a_test.go":   "package p\n\nconst program = `\n#include \"nowhere.c\"\n`\n",
		"other/one.h":   "#include \"two.h\"\n",
		"other/two.h":   "#include \"one.h\"\n",
		"other/three.h": "\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := filepath.Join(root, "p")
	if files, err := included(p); err != nil || !slices.Equal(files, []string{"../other/one.h", "../other/two.h"}) {
		t.Errorf("%q, %v", files, err)
	}
	before, err := digest(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "other/two.h"), []byte("int two;\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if after, err := digest(p); err != nil || after == before {
		t.Errorf("the digest did not change (%v)", err)
	}
}

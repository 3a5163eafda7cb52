// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// writesInPlace counts, by file, the calls that may write a file without a rename. All other files are written under a temporary
// name and renamed.
var writesInPlace = map[string]int{
	"interceptor/tools/digest/main.go": 1, // generates source code
	"lease/leasepb/generate/main.go":   2, // generates source code
	"lease/service/lease.go":           1, // a private file, renamed by put
	"lease/service/cgroup.go":          4, // files of cgroups
	"enforcer/store/records.go":        2, // a private file, renamed by put, and one that probe removes
	"hostmem/holder.go":                1, // /proc
	"hostmem/keeper.go":                1, // files of cgroups
	"enforcer/native/backend.go":       1, // files of cgroups
	"kubernetes/cdi/cdi.go":            1, // a private file, renamed by Write
}

var writes = regexp.MustCompile(`\bos\.(WriteFile|Create)\(`)

func TestNoFileIsWrittenInPlace(t *testing.T) {
	root := filepath.Join("..", "..")
	found := make(map[string]int)
	for _, dir := range []string{"api", "cmd", "daemon", "enforcer", "hook", "hostmem", "interceptor", "kubernetes", "lease", "shim", "vmm"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			name, _ := filepath.Rel(root, path)
			if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "kubernetes/test/") {
				return err
			}
			text, err := os.ReadFile(path)
			if n := len(writes.FindAll(text, -1)); n > 0 {
				found[name] = n
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, n := range found {
		if n != writesInPlace[name] {
			t.Errorf("%s has %d calls that write a file in place, want %d (write a temporary file and rename it)", name, n, writesInPlace[name])
		}
	}
	for name := range writesInPlace {
		if found[name] == 0 {
			t.Errorf("%s writes no file any more: remove it from the list", name)
		}
	}
}

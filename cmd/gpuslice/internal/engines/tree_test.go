// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestAFileIsReadWholeOrNotAtAll(t *testing.T) {
	for _, size := range []int{0, maxSize, maxSize + 1} {
		at := tree(t.TempDir())
		if err := os.WriteFile(filepath.Join(string(at), "file"), bytes.Repeat([]byte("x"), size), 0o600); err != nil {
			t.Fatal(err)
		}
		text, exists, err := at.read("/file")
		if size > maxSize {
			if err == nil {
				t.Errorf("%d bytes of %d are read", len(text), size)
			}
			continue
		}
		if err != nil || !exists || len(text) != size {
			t.Errorf("%d bytes of %d are read, exists: %v, %v", len(text), size, exists, err)
		}
	}
}

func TestAWriteThatFailsLeavesTheDirectoryAsItWas(t *testing.T) {
	at := tree(t.TempDir())
	if err := os.Mkdir(filepath.Join(string(at), "file"), 0o700); err != nil { // a directory, which write cannot replace
		t.Fatal(err)
	}
	if err := at.write("/file", []byte("text"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	if left, err := os.ReadDir(string(at)); err != nil || len(left) != 1 || !left[0].IsDir() {
		t.Errorf("%v, %v", left, err)
	}
}

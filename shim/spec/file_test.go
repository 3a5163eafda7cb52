// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"io"
	"os"
	"path/filepath"
	"testing"
)

func bundleOf(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, FileName), []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAReaderOfTheConfigurationKeepsTheOldText(t *testing.T) {
	dir := bundleOf(t, "the old text")
	f, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := f.Replace([]byte("the new")); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(reader); err != nil || string(text) != "the old text" {
		t.Errorf("a file that was open has %q, %v", text, err)
	}
	if text, err := os.ReadFile(f.Path); err != nil || string(text) != "the new" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

func TestAReplacementThatFailsLeavesNoFile(t *testing.T) {
	dir := bundleOf(t, "{}")
	f, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.Path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(f.Path, 0o700); err != nil { // a rename cannot replace a directory
		t.Fatal(err)
	}
	if err := f.Replace([]byte("new")); err == nil {
		t.Error("a directory was replaced")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%v are left, %v", entries, err)
	}
	f.Path = filepath.Join(dir, "none", FileName)
	if err := f.Replace([]byte("new")); err == nil {
		t.Error("a file was written into a directory that does not exist")
	}
}

func TestOnlyARegularFileOfAcceptableLengthIsRead(t *testing.T) {
	dir := bundleOf(t, "{}")
	path := filepath.Join(dir, FileName)
	for size, accepted := range map[int64]bool{maxSize: true, maxSize + 1: false} {
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir); (err == nil) != accepted {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if err := os.WriteFile(path+".real", []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path+".real", path); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil {
		t.Error("a symbolic link was read")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil {
		t.Error("a directory was read")
	}
}

// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func write(t *testing.T, mode os.FileMode, parts ...string) string {
	t.Helper()
	path := filepath.Join(parts...)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLibraryOfTheEnforcerComesFirstThenTheOneBeside(t *testing.T) {
	root := t.TempDir()
	f := Finder{Dir: filepath.Join(root, "bin"), Default: filepath.Join(root, "default.so")}

	if _, err := f.Library(""); !errors.Is(err, ErrNotFound) {
		t.Fatalf("nothing is there, got %v", err)
	}
	steps := []struct{ path string }{
		{write(t, 0o644, root, "default.so")},
		{write(t, 0o644, root, "bin", "libgpuslice.so")},
		{write(t, 0o644, root, "lib", "gpuslice", "libgpuslice.so")},
	}
	os.Remove(steps[1].path)
	os.Remove(steps[2].path)
	for _, step := range steps {
		write(t, 0o644, step.path)
		if got, err := f.Library(filepath.Join(root, "missing.so")); err != nil || got != step.path {
			t.Errorf("got %s, %v; want %s", got, err, step.path)
		}
	}
	named := write(t, 0o644, root, "named.so")
	if got, err := f.Library(named); err != nil || got != named {
		t.Errorf("got %s, %v; want %s", got, err, named)
	}
}

func TestLibraryPathNamesTheVersionAndNotTheLinkToIt(t *testing.T) {
	root := t.TempDir()
	real := write(t, 0o644, root, "lib", "gpuslice", "1.2.3", "libgpuslice.so")
	link := filepath.Join(root, "lib", "gpuslice", "libgpuslice.so")
	if err := os.Symlink("1.2.3/libgpuslice.so", link); err != nil {
		t.Fatal(err)
	}
	f := Finder{Dir: filepath.Join(root, "bin")}
	if err := os.Mkdir(f.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Library(""); err != nil || got != real {
		t.Errorf("got %s, %v; want %s", got, err, real)
	}
}

func TestProgramMustBeExecutable(t *testing.T) {
	root := t.TempDir()
	f := Finder{Dir: root}
	t.Setenv("PATH", filepath.Join(root, "path"))
	path := write(t, 0o644, root, "gpuslice-hook")
	if _, err := f.Program("gpuslice-hook"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a file that cannot be executed was found: %v", err)
	}
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Program("gpuslice-hook"); err != nil || got != path {
		t.Errorf("got %s, %v; want %s", got, err, path)
	}
}

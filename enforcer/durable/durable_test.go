// SPDX-License-Identifier: Apache-2.0

package durable_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/enforcer/durable"
	"github.com/gpuslice/gpuslice/enforcer/durable/durabletest"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

func check(t *testing.T, err error) {
	t.Helper()
	must.Do(t, err)
}

// The data is on disk before the name refers to it, and the name is on disk before Replace returns.
func TestReplaceSyncsBeforeItRenames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var r durabletest.Recorder
	d := r.Disk()
	order := []string{"create f.new", "write f.new", "sync f.new", "close f.new", "rename f.new f", "syncdir " + filepath.Base(filepath.Dir(path))}
	for _, text := range []string{"first", "second"} {
		replaced, err := d.Replace(path, []byte(text))
		if got, _ := os.ReadFile(path); err != nil || !replaced || string(got) != text {
			t.Errorf("%v, %v: %q, want %q", replaced, err, got, text)
		}
		expect.EqualSlices(t, r.Take(), order)
	}
	for i, operation := range order {
		r.Fail = func(now string) error {
			if now == operation {
				return syscall.EIO
			}
			return nil
		}
		replaced, err := d.Replace(path, []byte("third"))
		r.Fail = nil
		if last := i == len(order)-1; !errors.Is(err, syscall.EIO) || replaced != last {
			t.Errorf("%s fails: replaced %v, %v", operation, replaced, err)
		} else if got, _ := os.ReadFile(path); !last && string(got) != "second" {
			t.Errorf("%s fails: the file has %q", operation, got)
		}
		expect.ErrorIs(t, must.Err(os.Lstat(path+".new")), os.ErrNotExist, operation, "fails: the new file is left")
	}
}

func TestALinkInTheNewFilesPlaceIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	check(t, os.WriteFile(victim, []byte("x"), 0o644))
	check(t, os.Symlink(victim, filepath.Join(dir, "f.new")))
	disk := durable.Host()
	expect.ErrorIs(t, must.Err(disk.Replace(filepath.Join(dir, "f"), []byte("y"))), syscall.ELOOP)
	expect.Equal(t, string(must.Get(os.ReadFile(victim))(t)), "x")
}

func TestOnlyTheOwnerReadsAReplacedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	disk := durable.Host()
	_, err := disk.Replace(path, nil)
	check(t, err)
	info, err := os.Stat(path)
	check(t, err)
	expect.Equal(t, info.Mode(), 0o600)
}

// A file system that cannot sync proves that Sync and SyncDir reach it.
func TestASyncIsTheFileSystems(t *testing.T) {
	disk := durable.Host()
	check(t, disk.SyncDir(t.TempDir()))
	expect.ErrorIs(t, disk.SyncDir("/proc"), syscall.EINVAL, "a directory")
	f, err := disk.Create("/dev/null")
	check(t, err)
	expect.ErrorIs(t, errors.Join(f.Sync(), f.Close()), syscall.EINVAL, "a file")
}

func TestDirectoryWritableByOthersIsRefused(t *testing.T) {
	for what, row := range map[string]struct {
		want string
		make func(dir string) error
	}{
		"a new one":                  {"", func(string) error { return nil }},
		"one of before":              {"", func(dir string) error { return os.Mkdir(dir, 0o700) }},
		"one that others may write":  {"run chmod go-w on it", func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o770)) }},
		"a link":                     {"is not a directory", func(dir string) error { return os.Symlink(filepath.Dir(dir), dir) }},
		"a file":                     {"not a directory", func(dir string) error { return os.WriteFile(dir, nil, 0o600) }},
		"one of another user":        {"run chown", func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 1, 1)) }},
		"one below a missing parent": {"", func(dir string) error { return os.Remove(filepath.Dir(dir)) }},
	} {
		t.Run(what, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "parent", "dir")
			must.Do(t, os.Mkdir(filepath.Dir(dir), 0o700))
			if what == "one of another user" {
				needs.Root(t)
			}
			must.Do(t, row.make(dir))
			err := durable.MakePrivate(dir, 0o711)
			if row.want == "" {
				info := must.Get(os.Lstat(dir))(t)
				if err != nil || !info.IsDir() {
					t.Errorf("%v, %v", info.Mode(), err)
				}
			} else if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%v, want %q", err, row.want)
			}
		})
	}
	expect.Error(t, durable.MakePrivate("relative", 0o700), "a relative path is taken")
}

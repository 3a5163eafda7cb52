// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// test/hook tests with real containers.

func idOf(t *testing.T, path string) FileID {
	t.Helper()
	var s unix.Stat_t
	if err := unix.Lstat(path, &s); err != nil {
		t.Fatal(err)
	}
	return FileID{s.Dev, s.Ino}
}

func do(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestRemoveDeletesOnlyCreatedPlaces(t *testing.T) {
	for _, c := range []struct {
		name  string
		after func(t *testing.T, root string) // changes by the container
		known bool                            // the inode is recorded
		gone  bool
	}{
		{"untouched", func(*testing.T, string) {}, true, true},
		{"untouched, the hook was killed", func(*testing.T, string) {}, false, true},
		{"written to", func(t *testing.T, root string) {
			do(t, os.WriteFile(filepath.Join(root, preloadPath), []byte("x"), 0o644))
		}, true, false},
		{"another file", func(t *testing.T, root string) {
			do(t, os.WriteFile(filepath.Join(root, "x"), nil, 0o644), os.Rename(filepath.Join(root, "x"), filepath.Join(root, preloadPath)))
		}, true, false},
		{"a link", func(t *testing.T, root string) {
			do(t, os.Remove(filepath.Join(root, preloadPath)), os.Symlink("/tmp", filepath.Join(root, preloadPath)))
		}, true, false},
		{"a directory with something in it", func(t *testing.T, root string) {
			do(t, os.Remove(filepath.Join(root, preloadPath)), os.MkdirAll(filepath.Join(root, preloadPath, "x"), 0o755))
		}, false, false},
		{"etc is a link now", func(t *testing.T, root string) {
			do(t, os.Rename(filepath.Join(root, etcPath), filepath.Join(root, "e")), os.Symlink("e", filepath.Join(root, etcPath)))
		}, false, false},
		{"etc is gone", func(t *testing.T, root string) { do(t, os.RemoveAll(filepath.Join(root, etcPath))) }, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			file := filepath.Join(root, preloadPath)
			do(t, os.Mkdir(filepath.Join(root, etcPath), 0o755), os.WriteFile(file, nil, 0o644))
			place := Place{Path: preloadPath}
			if c.known {
				place.FileID = idOf(t, file)
			}
			c.after(t, root)
			left, err := Remove(root, []Place{place})
			if err != nil || len(left) != 0 {
				t.Errorf("left %v, %v", left, err)
			}
			if _, err := os.Lstat(file); os.IsNotExist(err) != c.gone {
				t.Errorf("lstat: %v", err)
			}
		})
	}
}

func TestRemoveDoesNotLeaveTheRoot(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	victim := filepath.Join(outside, preloadName)
	do(t, os.WriteFile(victim, nil, 0o644), os.Symlink(outside, filepath.Join(root, etcPath)))
	for _, id := range []FileID{{}, idOf(t, victim)} {
		if _, err := Remove(root, []Place{{preloadPath, id}, {"../" + filepath.Base(outside) + "/" + preloadName, id}}); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(victim); err != nil {
			t.Error(err)
		}
	}
}

func TestRemoveIgnoresAMissingRoot(t *testing.T) {
	if left, err := Remove(filepath.Join(t.TempDir(), "x"), []Place{{Path: preloadPath}}); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestAContainerInTheHostsMountNamespaceIsRefused(t *testing.T) {
	_, err := Open(os.Getpid(), t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "no mount namespace of its own") {
		t.Error(err)
	}
}

func TestAFileIsOpenedThoughTheHostMountsAtThatMoment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() { openat2 = unix.Openat2 }()
	for _, c := range []struct {
		fails int
		with  unix.Errno
		want  error
	}{{5, unix.EAGAIN, nil}, {5, unix.EINTR, nil}, {maxOpens, unix.EAGAIN, unix.EAGAIN}, {1, unix.ENOENT, unix.ENOENT}} {
		left := c.fails
		openat2 = func(at int, path string, how *unix.OpenHow) (int, error) {
			if left > 0 {
				left--
				return -1, c.with
			}
			return unix.Openat2(at, path, how)
		}
		o, err := openObject(unix.AT_FDCWD, file, 0, 0)
		if !errors.Is(err, c.want) {
			t.Errorf("%v %d times: %v, want %v", c.with, c.fails, err, c.want)
		}
		o.close()
	}
}

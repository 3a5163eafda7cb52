// SPDX-License-Identifier: Apache-2.0

// Package durable replaces files so that a reader finds each whole, as before the change or after it, even after a loss of power. It also
// creates their directories.
package durable

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// File is a file that is being written.
type File interface {
	io.WriteCloser
	Sync() error
}

// Disk has the operations on files. Their order decides which data survives a loss of power. Tests record them and inject errors.
type Disk struct {
	Create  func(path string) (File, error) // truncates an existing file, and follows no symbolic link
	Rename  func(from, to string) error
	Link    func(from, to string) error
	Remove  func(path string) error
	SyncDir func(dir string) error // persists the names in dir
}

// Host returns the operations on the host's file systems.
func Host() Disk {
	return Disk{Create: create, Rename: os.Rename, Link: os.Link, Remove: os.Remove, SyncDir: syncDir}
}

// Replace writes data to path by way of path.new. If it fails, replaced reports whether path has the new data, which may be lost with the
// power.
func (d *Disk) Replace(path string, data []byte) (replaced bool, err error) {
	temporary := path + ".new"
	f, err := d.Create(temporary)
	if err != nil {
		return false, err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = d.Rename(temporary, path)
	}
	if err != nil {
		_ = d.Remove(temporary)
		return false, err
	}
	return true, d.SyncDir(filepath.Dir(path))
}

// MakePrivate creates a directory, and its parents, in which only the caller's user can create or rename files. It fails if dir is not an
// absolute path, or exists and is a symbolic link, belongs to another user, or is writable by others: root would follow a link that they
// create there.
func MakePrivate(dir string, mode os.FileMode) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("%q is not an absolute path", dir)
	}
	if err := os.MkdirAll(dir, mode); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to uid %d: run chown %d on it", dir, st.Uid, os.Geteuid())
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s may be written by others (mode %#o): run chmod go-w on it", dir, info.Mode().Perm())
	}
	return nil
}

func create(path string) (File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// SPDX-License-Identifier: Apache-2.0

// Package durable replaces files so that a reader finds each whole, before the change or after it, even after a loss of power.
package durable

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// File is a file that is being written.
type File interface {
	io.WriteCloser
	Sync() error
}

// Disk has the operations on files. Their order decides which data outlives a loss of power. Tests record them and inject errors.
type Disk struct {
	Create  func(path string) (File, error) // empties a file that exists, and follows no link
	Rename  func(from, to string) error
	Link    func(from, to string) error
	Remove  func(path string) error
	SyncDir func(dir string) error // persists the names in dir
}

// Host is the host's file systems.
func Host() Disk {
	return Disk{Create: create, Rename: os.Rename, Link: os.Link, Remove: os.Remove, SyncDir: syncDir}
}

// Replace writes data to path through path.new. With an error, replaced says whether path has the new data, which a loss of power may undo.
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

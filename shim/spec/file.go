// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// FileName is the name of the configuration in a bundle.
const FileName = "config.json"

// maxSize limits the configuration, in bytes; real ones have 10 to 100 KiB.
const maxSize = 16 << 20

// File is a bundle's config.json as read.
type File struct {
	Path string
	Text []byte

	info os.FileInfo
}

// Read reads the config.json of a bundle. It must be a regular file: Replace would replace a link rather than its target.
func Read(bundle string) (*File, error) {
	f := &File{Path: filepath.Join(bundle, FileName)}
	file, err := os.OpenFile(f.Path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("the bundle's %s is a symbolic link: a regular file is accepted", f.Path)
	}
	if err != nil {
		return nil, fmt.Errorf("the bundle: %w", err)
	}
	defer file.Close()
	if f.info, err = file.Stat(); err != nil {
		return nil, fmt.Errorf("the bundle: %w", err)
	}
	if !f.info.Mode().IsRegular() {
		return nil, fmt.Errorf("the bundle's %s is not a regular file", f.Path)
	}
	if f.info.Size() > maxSize {
		return nil, fmt.Errorf("the bundle's %s is longer than %d MiB", f.Path, maxSize>>20)
	}
	if f.Text, err = io.ReadAll(io.LimitReader(file, maxSize)); err != nil {
		return nil, fmt.Errorf("the bundle's %s: %w", f.Path, err)
	}
	return f, nil
}

// Replace replaces the file atomically and keeps its mode and owner. The new file gets an unpredictable name in the same
// directory, so that no existing file is opened.
func (f *File) Replace(text []byte) (err error) {
	file, err := os.CreateTemp(filepath.Dir(f.Path), "."+FileName+".gpuslice-*")
	if err != nil {
		return fmt.Errorf("edit the bundle's %s: %w", FileName, err)
	}
	owner := f.info.Sys().(*syscall.Stat_t)
	_, err = file.Write(text)
	err = errors.Join(err,
		file.Chown(int(owner.Uid), int(owner.Gid)),
		file.Chmod(f.info.Mode().Perm()), // after Chown, which clears mode bits
		file.Close())
	if err == nil {
		err = os.Rename(file.Name(), f.Path)
	}
	if err != nil {
		return fmt.Errorf("edit the bundle's %s: %w", FileName, errors.Join(err, os.Remove(file.Name())))
	}
	return nil
}

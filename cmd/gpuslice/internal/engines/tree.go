// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxSize limits the files to read, in bytes; real ones have a few KiB.
const maxSize = 4 << 20

// tree is the root of a file system. Paths beneath it are absolute. Symbolic links do not lead out of it: /etc of an image must
// not be /etc of this machine.
type tree string

// resolve returns the real path of file on this machine, with all symbolic links resolved. Missing parts stay as they are.
func (t tree) resolve(file string) (string, error) {
	rest := strings.Split(path.Clean("/"+file), "/")[1:]
	at := "/" // beneath the root, without links
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		if part == ".." || part == "" || part == "." {
			at = path.Join(at, part)
			continue
		}
		next := path.Join(at, part)
		target, err := os.Readlink(filepath.Join(string(t), next))
		if err != nil { // no link, or missing
			at = next
			continue
		}
		if links++; links > 40 {
			return "", fmt.Errorf("%s: %w", file, syscall.ELOOP)
		}
		if path.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return filepath.Join(string(t), at), nil
}

func (t tree) read(file string) (text []byte, exists bool, err error) {
	real, err := t.resolve(file)
	if err != nil {
		return nil, false, err
	}
	f, err := os.OpenFile(real, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	if !info.Mode().IsRegular() {
		return nil, false, fmt.Errorf("%s is not a regular file", file)
	}
	if text, err = io.ReadAll(io.LimitReader(f, maxSize+1)); err != nil {
		return nil, false, err
	}
	if len(text) > maxSize {
		return nil, false, fmt.Errorf("%s is longer than %d MiB", file, maxSize>>20)
	}
	return text, true, nil
}

func (t tree) exists(file string) bool {
	real, err := t.resolve(file)
	if err != nil {
		return false
	}
	_, err = os.Stat(real)
	return err == nil
}

func (t tree) executable(file string) bool {
	real, err := t.resolve(file)
	if err != nil {
		return false
	}
	info, err := os.Stat(real)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// list returns the files in a directory, and below it if deep, sorted by path. A missing directory is empty.
func (t tree) list(dir string, deep bool) ([]string, error) {
	real, err := t.resolve(dir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(real)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		file := path.Join(dir, e.Name())
		if !e.IsDir() {
			files = append(files, file)
		} else if deep {
			below, err := t.list(file, deep)
			if err != nil {
				return nil, err
			}
			files = append(files, below...)
		}
	}
	return files, nil
}

// write creates or replaces a file atomically. An existing file keeps its mode, owner and extended attributes (an SELinux label);
// for a symbolic link, the target is replaced. Missing directories are created.
func (t tree) write(file string, text []byte, mode fs.FileMode) error {
	real, err := t.resolve(file)
	if err != nil {
		return err
	}
	dir := filepath.Dir(real)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	info, err := os.Stat(real)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(real)+".gpuslice-*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if info != nil {
		mode = info.Mode().Perm()
		if owner, ok := info.Sys().(*syscall.Stat_t); ok {
			err = errors.Join(err, f.Chown(int(owner.Uid), int(owner.Gid)))
		}
		copyAttributes(real, f.Name())
	}
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), real)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(dir)
}

// absent returns the missing ones of a directory and its parents, the outermost first.
func (t tree) absent(dir string) ([]string, error) {
	real, err := t.resolve(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(real); err == nil || dir == "/" {
		return nil, nil
	}
	above, err := t.absent(path.Dir(dir))
	return append(above, dir), err
}

// remove removes a file, and then those of the directories made that are empty.
func (t tree) remove(file string, made []string) error {
	real, err := t.resolve(file)
	if err != nil {
		return err
	}
	if err := os.Remove(real); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	t.removeDirs(made)
	return syncDir(filepath.Dir(real))
}

// removeDirs removes empty directories. The innermost comes last in made.
func (t tree) removeDirs(made []string) {
	for _, dir := range slices.Backward(made) {
		if real, err := t.resolve(dir); err == nil {
			_ = syscall.Rmdir(real) // fails if it has other files
		}
	}
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return nil // it was removed
	}
	defer d.Close()
	return d.Sync()
}

// copyAttributes copies the extended attributes if the file system supports them.
func copyAttributes(from, to string) {
	names := make([]byte, 4<<10)
	n, err := unix.Listxattr(from, names)
	if err != nil {
		return
	}
	for attribute := range strings.SplitSeq(string(names[:n]), "\x00") {
		if attribute == "" {
			continue
		}
		value := make([]byte, 64<<10)
		if n, err := unix.Getxattr(from, attribute, value); err == nil {
			_ = unix.Setxattr(to, attribute, value[:n], 0)
		}
	}
}

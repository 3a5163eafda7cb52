// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"crypto/rand"
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
	text, err = readAll(f, file)
	return text, err == nil, err
}

func readAll(f *os.File, file string) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", file)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxSize {
		return nil, fmt.Errorf("%s is longer than %d MiB", file, maxSize>>20)
	}
	return text, nil
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
	dir, name, err := t.parent(file, 0o755)
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := createTemp(dir, name)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	var old unix.Stat_t
	switch statErr := unix.Fstatat(int(dir.Fd()), name, &old, unix.AT_SYMLINK_NOFOLLOW); {
	case statErr == nil && old.Mode&unix.S_IFMT != unix.S_IFREG:
		err = errors.Join(err, fmt.Errorf("%s is not a regular file", file))
	case statErr == nil:
		mode = fs.FileMode(old.Mode & 0o777)
		err = errors.Join(err, f.Chown(int(old.Uid), int(old.Gid)))
		copyAttributes(dir, name, f)
	case !errors.Is(statErr, fs.ErrNotExist):
		err = errors.Join(err, statErr)
	}
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = unix.Renameat(int(dir.Fd()), path.Base(f.Name()), int(dir.Fd()), name)
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(int(dir.Fd()), path.Base(f.Name()), 0))
	}
	return dir.Sync()
}

// createTemp creates a file beside name with a name of its own.
func createTemp(dir *os.File, name string) (*os.File, error) {
	fresh := "." + name + ".gpuslice-" + rand.Text()
	fd, err := unix.Openat(int(dir.Fd()), fresh, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "create", Path: filepath.Join(dir.Name(), fresh), Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Join(dir.Name(), fresh)), nil
}

// parent opens the directory of file, and returns the file's name there, which is no symbolic link. Each step is taken from the
// directory before it, and rejected if another user may replace what it finds. Missing directories get the mode made; 0 creates none.
func (t tree) parent(file string, made fs.FileMode) (dir *os.File, name string, err error) {
	w := walk{tree: t, file: file}
	defer func() { w.close(dir) }()
	top, err := os.Open(string(t))
	if err != nil {
		return nil, "", err
	}
	w.above = []*os.File{top}
	if err := unix.Fstat(int(top.Fd()), &w.root); err != nil {
		return nil, "", err
	}
	if err := w.check(top.Name(), &w.root); err != nil {
		return nil, "", err
	}
	rest := strings.Split(path.Clean("/"+file), "/")[1:]
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			w.up(max(len(w.above)-1, 1))
			continue
		}
		target, err := w.link(part)
		if err != nil {
			return nil, "", err
		}
		if target != "" {
			if links++; links > 40 {
				return nil, "", fmt.Errorf("%s: %w", file, syscall.ELOOP)
			}
			if path.IsAbs(target) {
				w.up(1)
			}
			rest = append(strings.Split(target, "/"), rest...)
			continue
		}
		if len(rest) == 0 {
			return w.at(), part, nil
		}
		if err := w.down(part, made); err != nil {
			return nil, "", err
		}
	}
	return nil, "", fmt.Errorf("%s is not a regular file", file)
}

// walk has the directories from the tree's root to where parent is.
type walk struct {
	tree
	file  string
	above []*os.File
	root  unix.Stat_t
}

func (w *walk) at() *os.File { return w.above[len(w.above)-1] }

// up leaves n directories.
func (w *walk) up(n int) {
	for len(w.above) > n {
		w.at().Close()
		w.above = w.above[:len(w.above)-1]
	}
}

func (w *walk) close(kept *os.File) {
	for _, dir := range w.above {
		if dir != kept {
			dir.Close()
		}
	}
}

// link returns the target of a symbolic link, or "".
func (w *walk) link(name string) (string, error) {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(w.at().Fd()), name, target)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist) {
		return "", nil // no link, or missing
	}
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: filepath.Join(w.at().Name(), name), Err: err}
	}
	var is unix.Stat_t
	if err := unix.Fstatat(int(w.at().Fd()), name, &is, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return "", err
	}
	is.Mode &^= 0o022 // links have no mode
	return string(target[:n]), w.check(filepath.Join(w.at().Name(), name), &is)
}

func (w *walk) down(name string, made fs.FileMode) error {
	full := filepath.Join(w.at().Name(), name)
	open := func() (*os.File, error) {
		fd, err := unix.Openat(int(w.at().Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: full, Err: err}
		}
		return os.NewFile(uintptr(fd), full), nil
	}
	dir, err := open()
	if errors.Is(err, fs.ErrNotExist) && made != 0 {
		if err := unix.Mkdirat(int(w.at().Fd()), name, uint32(made)); err != nil {
			return &fs.PathError{Op: "mkdir", Path: full, Err: err}
		}
		if dir, err = open(); err == nil {
			err = dir.Chmod(made) // independent of the umask
		}
	}
	if dir != nil {
		w.above = append(w.above, dir)
	}
	if err != nil {
		return err
	}
	var is unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &is); err != nil {
		return err
	}
	return w.check(full, &is)
}

// check returns an error if another user than root, the caller and the owner of the tree may replace what is at a path.
func (w *walk) check(full string, is *unix.Stat_t) error {
	sticky := is.Mode&unix.S_ISVTX != 0
	switch {
	case is.Uid != 0 && int(is.Uid) != os.Geteuid() && is.Uid != w.root.Uid:
		return fmt.Errorf("%s: the user %d owns %s, and could have another file written: give it to root", w.file, is.Uid, full)
	case is.Mode&0o002 != 0 && !sticky,
		is.Mode&0o020 != 0 && !sticky && is.Gid != 0 && int(is.Gid) != os.Getegid() && is.Gid != w.root.Gid:
		return fmt.Errorf("%s: others than its owner may write to %s, and could have another file written: run `sudo chmod go-w` on it", w.file, full)
	}
	return nil
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
	dir, name, err := t.parent(file, 0)
	if errors.Is(err, fs.ErrNotExist) {
		t.removeDirs(made)
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &fs.PathError{Op: "remove", Path: file, Err: err}
	}
	t.removeDirs(made)
	return dir.Sync()
}

// removeDirs removes empty directories. The innermost comes last in made.
func (t tree) removeDirs(made []string) {
	for _, file := range slices.Backward(made) {
		if dir, name, err := t.parent(file, 0); err == nil {
			_ = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR) // fails if it has other files
			dir.Close()
		}
	}
}

// copyAttributes copies the extended attributes of a file in dir if the file system supports them.
func copyAttributes(dir *os.File, name string, to *os.File) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	names := make([]byte, 4<<10)
	n, err := unix.Flistxattr(fd, names)
	if err != nil {
		return
	}
	for attribute := range strings.SplitSeq(string(names[:n]), "\x00") {
		if attribute == "" {
			continue
		}
		value := make([]byte, 64<<10)
		if n, err := unix.Fgetxattr(fd, attribute, value); err == nil {
			_ = unix.Fsetxattr(int(to.Fd()), attribute, value[:n], 0)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Place is a mount point created in a root filesystem.
type Place struct {
	Path   string `json:"path"` // relative to the root
	FileID        // zero until it is created
}

// Missing returns the places that Make will create, in order.
func (c *Container) Missing() []Place {
	var missing []Place
	if c.etc == nil {
		missing = append(missing, Place{Path: etcPath})
	}
	for _, p := range c.preloads {
		if p.file == nil {
			missing = append(missing, Place{Path: p.path()})
		}
	}
	if c.dir == nil {
		missing = append(missing, Place{Path: dirName})
	}
	return missing
}

// Make creates the missing places. It returns the created ones even if it fails.
func (c *Container) Make() ([]Place, error) {
	var made []Place
	err := c.ns.do(func() error {
		for _, p := range c.Missing() {
			o, err := c.make(p.Path)
			if errors.Is(err, unix.EROFS) {
				return fmt.Errorf("the root filesystem is read-only and has no /%s to bind on: "+
					"add an empty directory /%s and an empty file /%s to the image, or make it writable", p.Path, dirName, c.displayPath())
			}
			if err != nil {
				return fmt.Errorf("make /%s in the root filesystem: %w", p.Path, err)
			}
			made = append(made, Place{p.Path, o.id()})
		}
		return nil
	})
	return made, err
}

// displayPath returns the paths of the preload files for a message, without the first slash.
func (c *Container) displayPath() string {
	var paths []string
	for _, p := range c.preloads {
		paths = append(paths, p.path())
	}
	return strings.Join(paths, " and /")
}

// make creates one place and keeps it open. It fails if a file or symbolic link has appeared there.
func (c *Container) make(name string) (*object, error) {
	at, into, base := c.root.fd, &c.dir, path.Base(name)
	if name == etcPath {
		into = &c.etc
	}
	file := false
	for _, p := range c.preloads {
		if name == p.path() {
			at, into, file = c.etc.fd, &p.file, true
		}
	}
	var err error
	if file {
		var fd int
		fd, err = unix.Openat(at, base, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		unix.Close(fd)
	} else {
		err = unix.Mkdirat(at, base, 0o755)
	}
	if err != nil {
		return nil, err
	}
	*into, err = openObject(at, base, unix.O_NOFOLLOW, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_XDEV)
	return *into, err
}

// Remove removes created places that are still the same empty file or directory, and returns those that it could not remove. It
// runs on the host after the container has stopped. A place without a recorded inode, after a kill, is removed unless a symbolic
// link leads to it.
//
// No other container may use the root: removing a mount point unmounts it in every mount namespace.
func Remove(rootfs string, made []Place) (left []Place, err error) {
	root, err := openObject(unix.AT_FDCWD, rootfs, unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return made, fmt.Errorf("the root filesystem %.256q: %w", rootfs, err)
	}
	defer root.close()
	var errs []error
	for i := len(made) - 1; i >= 0; i-- {
		if err := remove(root, made[i]); err != nil {
			left = append(left, made[i])
			errs = append(errs, fmt.Errorf("remove /%s from the root filesystem: %w", made[i].Path, err))
		}
	}
	return left, errors.Join(errs...)
}

func remove(root *object, p Place) error {
	resolve := uint64(onRoot)
	if p.FileID == (FileID{}) {
		resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	parent, err := openObject(root.fd, path.Dir(p.Path), unix.O_DIRECTORY, resolve)
	if err != nil {
		return ignoreGone(err)
	}
	defer parent.close()
	o, err := openObject(parent.fd, path.Base(p.Path), unix.O_NOFOLLOW, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_XDEV)
	if err != nil {
		return ignoreGone(err)
	}
	defer o.close()
	known := p.FileID == (FileID{}) || p.FileID == o.id()
	switch {
	case known && o.isDir():
		err = unix.Unlinkat(parent.fd, path.Base(p.Path), unix.AT_REMOVEDIR)
		if errors.Is(err, unix.ENOTEMPTY) {
			err = nil // in use by the container
		}
	case known && o.isRegular() && o.stat.Size == 0:
		err = unix.Unlinkat(parent.fd, path.Base(p.Path), 0)
	}
	return ignoreGone(err)
}

// ignoreGone treats an error as success if the container has removed or replaced the place.
func ignoreGone(err error) error {
	for _, e := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

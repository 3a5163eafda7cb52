// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"fmt"
	"path"

	"golang.org/x/sys/unix"
)

// Place is a file or directory that was made in a root filesystem to be bound on.
type Place struct {
	Path   string `json:"path"` // from the root, without a leading slash
	FileID        // zero until it is made
}

// Missing are the places that Make will make, in its order.
func (c *Container) Missing() []Place {
	var missing []Place
	if c.etc == nil {
		missing = append(missing, Place{Path: etcPath})
	}
	if c.preload == nil {
		missing = append(missing, Place{Path: preloadPath})
	}
	if c.dir == nil {
		missing = append(missing, Place{Path: dirName})
	}
	return missing
}

// Make makes what is missing, and returns what it made, also if it fails halfway.
func (c *Container) Make() ([]Place, error) {
	var made []Place
	err := c.ns.do(func() error {
		for _, p := range c.Missing() {
			o, err := c.make(p.Path)
			if errors.Is(err, unix.EROFS) {
				return fmt.Errorf("the root filesystem is read-only and has no /%s to bind on: "+
					"add an empty directory /%s and an empty file /%s to the image, or make it writable", p.Path, dirName, preloadPath)
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

// make makes one place and keeps it. What it names did not exist, so a symbolic link that is there now, or
// anything else, is not followed but an error.
func (c *Container) make(name string) (*object, error) {
	at, into, base := c.root.fd, &c.dir, path.Base(name)
	switch name {
	case etcPath:
		into = &c.etc
	case preloadPath:
		at, into = c.etc.fd, &c.preload
	}
	var err error
	if name == preloadPath {
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

// Remove removes from a root filesystem the places that were made in it, if they are still what they were: the same
// file or directory, and empty. It is called on the host when the container is over, and whatever the container
// did to its root meanwhile, nothing but an empty file of that inode can go. A place that was about to be made when
// the hook was killed has no inode on record; it goes if no symbolic link leads to it, since it was
// absent before. It returns what it left there.
//
// No other container may be using the root: removing what something is bound on in another mount
// namespace unbinds it there.
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
		return gone(err)
	}
	defer parent.close()
	o, err := openObject(parent.fd, path.Base(p.Path), unix.O_NOFOLLOW, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_XDEV)
	if err != nil {
		return gone(err)
	}
	defer o.close()
	known := p.FileID == (FileID{}) || p.FileID == o.id()
	switch {
	case known && o.isDir():
		err = unix.Unlinkat(parent.fd, path.Base(p.Path), unix.AT_REMOVEDIR)
		if errors.Is(err, unix.ENOTEMPTY) {
			err = nil // the container's now
		}
	case known && o.isRegular() && o.stat.Size == 0:
		err = unix.Unlinkat(parent.fd, path.Base(p.Path), 0)
	}
	return gone(err)
}

// gone takes an error that means that there is nothing of ours to remove for success: the container removed or
// replaced it.
func gone(err error) error {
	for _, e := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
)

const (
	etcPath     = "etc"
	preloadName = api.PreloadName
	preloadPath = etcPath + "/" + preloadName

	// Glibc as Nix builds it reads this file instead: dont-use-system-ld-so-preload.patch of nixpkgs.
	nixPreloadName = "ld-nix.so.preload"
	nixStore       = "nix/store"
)

// dirName is the slice's directory in the container. It is in the root because systemd and other inits mount a tmpfs on /run or
// /tmp.
var dirName = strings.TrimPrefix(api.ContainerDir, "/")

// maxPreload limits a preload file of the image, in bytes. Real ones have a line or two.
const maxPreload = 64 << 10

const (
	// inRoot resolves the image's symbolic links as the container will: ".." never leaves its root.
	inRoot = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
	// onRoot is inRoot, but fails with EXDEV if the path crosses another mount.
	onRoot = inRoot | unix.RESOLVE_NO_XDEV
)

// Inspect checks the mount points and reads the image's preload files. It changes nothing.
func (c *Container) Inspect() error {
	return c.ns.do(func() error {
		if err := c.inspectDir(); err != nil {
			return err
		}
		c.inspectLoaders()
		return c.inspectEtc()
	})
}

func (c *Container) inspectDir() error {
	dir, err := openObject(c.root.fd, dirName, unix.O_NOFOLLOW, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_XDEV)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("something is mounted on %s in the container: that place is gpuslice's own", api.ContainerDir)
	case err != nil:
		return fmt.Errorf("%s in the image: %w", api.ContainerDir, explain(err))
	}
	c.dir = dir
	if !dir.isDir() {
		return fmt.Errorf("%s in the image is %s: that place is gpuslice's own, and must be an empty directory or absent", api.ContainerDir, dir.kind())
	}
	return nil
}

func (c *Container) inspectEtc() (err error) {
	c.etc, err = openObject(c.root.fd, etcPath, unix.O_DIRECTORY, onRoot)
	switch {
	case errors.Is(err, unix.ENOENT):
		// An image built from scratch has no /etc; or /etc is a dangling link.
		return c.refuseDangling(c.root, etcPath, "/"+etcPath)
	case errors.Is(err, unix.EXDEV):
		return c.onAnotherMount()
	case err != nil:
		return fmt.Errorf("/%s in the image: %w", etcPath, explain(err))
	}
	if mode := c.etc.stat.Mode & 0o7777; mode&0o111 != 0o111 {
		return fmt.Errorf("/%s in the image has the mode %#o: processes that may not search it find no /%s, and run without the quota; "+
			"run chmod a+x on it in the image", etcPath, mode, preloadPath)
	}
	for _, p := range c.preloads {
		if err := c.inspectPreload(p); err != nil {
			return err
		}
	}
	return nil
}

func (c *Container) inspectPreload(p *preload) (err error) {
	// Resolve the whole path from the root, since the file may be a link that contains "..".
	p.file, err = openObject(c.root.fd, p.path(), 0, onRoot)
	switch {
	case errors.Is(err, unix.ENOENT):
		return c.refuseDangling(c.etc, p.name, "/"+p.path())
	case errors.Is(err, unix.EXDEV):
		return c.onAnotherMount()
	case err != nil:
		return fmt.Errorf("/%s in the image: %w", p.path(), explain(err))
	}
	if !p.file.isRegular() {
		return fmt.Errorf("/%s in the image is %s: only a regular file can name libraries to load first", p.path(), p.file.kind())
	}
	return c.read(p)
}

// refuseDangling accepts a missing file and rejects a dangling link, since creating its target would let the image choose the
// place.
func (c *Container) refuseDangling(at *object, name, shown string) error {
	link, err := openObject(at.fd, name, unix.O_NOFOLLOW, unix.RESOLVE_BENEATH)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s in the image: %w", shown, explain(err))
	}
	defer link.close()
	return fmt.Errorf("%s in the image is %s to nothing in its root filesystem: make it a regular file or remove it", shown, link.kind())
}

// onAnotherMount returns the error for a preload file that is not on the root's own mount.
func (c *Container) onAnotherMount() error {
	way, last := "leads through a mount", preloadPath
	paths := []string{etcPath}
	for _, p := range c.preloads {
		paths = append(paths, p.path())
	}
	for _, path := range paths {
		o, err := openObject(c.root.fd, path, 0, inRoot)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) {
			continue // absent, or behind links that are not followed here
		}
		if err != nil {
			return fmt.Errorf("/%s in the container: %w", path, explain(err))
		}
		if o.mountID() != c.root.mountID() {
			way = "is on what is mounted at " + c.mountPoint(o)
			if path != etcPath {
				last = path
			}
		}
		o.close()
	}
	return fmt.Errorf("/%s in the container %s: another user of it can remove the file, and so unbind the interceptor; "+
		"mount nothing there (other files and directories in /%s may be mounted)", last, way, etcPath)
}

// mountPoint returns the path in the container of the mount of o.
func (c *Container) mountPoint(o *object) string {
	const unknown = "an unknown place"
	file, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", c.pid))
	if err != nil {
		return unknown
	}
	defer file.Close()
	id := int(o.mountID())
	mounts, err := mountinfo.GetMountsFromReader(file, func(m *mountinfo.Info) (skip, stop bool) { return m.ID != id, m.ID == id })
	if err != nil || len(mounts) == 0 {
		return unknown
	}
	return "/" + strings.TrimPrefix(strings.TrimPrefix(mounts[0].Mountpoint, c.rootfs), "/")
}

func (c *Container) read(p *preload) error {
	tooLong := fmt.Errorf("/%s in the image is longer than %d KiB: no list of libraries to load first is", p.path(), maxPreload>>10)
	if p.file.stat.Size > maxPreload {
		return tooLong
	}
	fd, err := c.reopen(p.file)
	if err != nil {
		return fmt.Errorf("read /%s of the image: %w", p.path(), err)
	}
	f := os.NewFile(uintptr(fd), "/"+p.path())
	defer f.Close()
	p.entries, err = io.ReadAll(io.LimitReader(f, maxPreload+1))
	if err != nil {
		return fmt.Errorf("read /%s of the image: %w", p.path(), err)
	}
	if len(p.entries) > maxPreload {
		return tooLong
	}
	return nil
}

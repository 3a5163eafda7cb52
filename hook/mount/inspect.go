// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

const (
	etcPath     = "etc"
	preloadName = "ld.so.preload"
	preloadPath = etcPath + "/" + preloadName
)

// dirName is the slice's directory, directly under the container's root: an init that mounts a tmpfs over /run
// or /tmp, as systemd does, does not hide it.
var dirName = strings.TrimPrefix(api.ContainerDir, "/")

// maxPreload is the most that an image's ld.so.preload may hold. Real ones have a line or two.
const maxPreload = 64 << 10

// inRoot follows the image's symbolic links as the container will, with its root as the end of every "..".
const inRoot = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS

// Inspect looks at the two places where something is to be bound and reads the image's own ld.so.preload.
// It changes nothing.
func (c *Container) Inspect() error {
	return c.ns.do(func() error {
		if err := c.inspectDir(); err != nil {
			return err
		}
		c.inspectLoader32()
		return c.inspectPreload()
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

func (c *Container) inspectPreload() (err error) {
	c.etc, err = openObject(c.root.fd, etcPath, unix.O_DIRECTORY, inRoot)
	if errors.Is(err, unix.ENOENT) {
		// An image without /etc, built from nothing; or a link that leads nowhere.
		return c.refuseDangling(c.root, etcPath, "/"+etcPath)
	}
	if err != nil {
		return fmt.Errorf("/%s in the image: %w", etcPath, explain(err))
	}

	// The whole path again from the root, since the file itself may be a link with ".." in it.
	c.preload, err = openObject(c.root.fd, preloadPath, 0, inRoot)
	if errors.Is(err, unix.ENOENT) {
		if err := c.refuseDangling(c.etc, preloadName, "/"+preloadPath); err != nil {
			return err
		}
		return c.refuseToCreate()
	}
	if err != nil {
		return fmt.Errorf("/%s in the image: %w", preloadPath, explain(err))
	}
	if !c.preload.isRegular() {
		return fmt.Errorf("/%s in the image is %s: only a regular file can name libraries to load first", preloadPath, c.preload.kind())
	}
	if err := c.refuseShared(); err != nil {
		return err
	}
	return c.readPreload()
}

// refuseDangling tells a file that is missing from a link whose end is missing. Nothing can be bound on the latter,
// and making its end would let the image choose where.
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

// refuseToCreate is asked before a file is made in /etc. On another mount than the root's it would be made in a
// directory of the host (docker run -v dir:/etc), and stay there.
func (c *Container) refuseToCreate() error {
	if c.etc.mountID() == c.root.mountID() {
		return nil
	}
	where, _ := c.mountOf(c.etc)
	return fmt.Errorf("/%s in the container is on the volume mounted at %s, which has no %s, and none is created in a volume: "+
		"create an empty %s in it, or do not mount over /etc", etcPath, where, preloadName, preloadName)
}

// refuseShared is asked before something is bound on a file that exists. On a volume that is fine, since nothing is
// created, unless the volume's mounts propagate (docker run -v dir:/etc:rshared): then ours would
// appear on the host, on the host's own ld.so.preload if the volume is the host's /etc.
func (c *Container) refuseShared() error {
	if c.preload.mountID() == c.root.mountID() {
		return nil
	}
	where, shared := c.mountOf(c.preload)
	if !shared {
		return nil
	}
	return fmt.Errorf("/%s in the container is on the volume mounted at %s, whose mounts propagate to the host: mount it without shared or rshared",
		preloadPath, where)
}

// mountOf says where in the container the mount of o is, and whether its mounts propagate. What cannot be
// found out is taken for propagating.
func (c *Container) mountOf(o *object) (where string, shared bool) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", c.pid))
	if err != nil {
		return "an unknown place", true
	}
	defer file.Close()
	id := int(o.mountID())
	mounts, err := mountinfo.GetMountsFromReader(file, func(m *mountinfo.Info) (skip, stop bool) { return m.ID != id, m.ID == id })
	if err != nil || len(mounts) == 0 {
		return "an unknown place", true
	}
	shared = slices.ContainsFunc(strings.Fields(mounts[0].Optional), func(tag string) bool { return strings.HasPrefix(tag, "shared:") })
	return "/" + strings.TrimPrefix(strings.TrimPrefix(mounts[0].Mountpoint, c.rootfs), "/"), shared
}

func (c *Container) readPreload() error {
	if c.preload.stat.Size > maxPreload {
		return c.tooLong()
	}
	fd, err := c.reopen(c.preload)
	if err != nil {
		return fmt.Errorf("read /%s of the image: %w", preloadPath, err)
	}
	f := os.NewFile(uintptr(fd), "/"+preloadPath)
	defer f.Close()
	c.entries, err = io.ReadAll(io.LimitReader(f, maxPreload+1))
	if err != nil {
		return fmt.Errorf("read /%s of the image: %w", preloadPath, err)
	}
	if len(c.entries) > maxPreload {
		return c.tooLong()
	}
	return nil
}

func (c *Container) tooLong() error {
	return fmt.Errorf("/%s in the image is longer than %d KiB: no list of libraries to load first is", preloadPath, maxPreload>>10)
}

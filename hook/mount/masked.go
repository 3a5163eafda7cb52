// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
)

// maxLinks is the kernel's limit of symbolic links in a path.
const maxLinks = 40

var (
	errProcess = errors.New("it leads through /proc to a process, and so to any place")
	errVolume  = errors.New("it leads into a volume, where others can make a link to any place")
)

// RefuseMasked rejects paths that would hide the bound files when the runtime masks them after the hook.
func (c *Container) RefuseMasked(paths []string) error {
	return c.ns.do(func() error {
		needed, _, err := c.walk(path.Join(dirName, api.LibraryName))
		if err != nil {
			return fmt.Errorf("the way to %s in the container: %w", api.ContainerDir, err)
		}
		for _, p := range c.preloads {
			way, _, err := c.walk(p.path())
			if err != nil {
				return fmt.Errorf("the way to /%s in the container: %w", p.path(), err)
			}
			needed = append(needed, way...)
		}
		for _, masked := range paths {
			way, volume, err := c.walk(masked)
			if err == nil && len(way) > 0 && slices.Contains(needed, way[len(way)-1]) {
				return fmt.Errorf("the masked path %.256q hides /%s or %s, without which processes run without the quota: take it out of maskedPaths",
					masked, c.displayPath(), api.ContainerDir)
			}
			if err == nil && volume {
				err = errVolume
			}
			if err != nil {
				return fmt.Errorf("the masked path %.256q may hide the interceptor, so that processes run without the quota: %w; take it out of maskedPaths", masked, err)
			}
		}
		return nil
	})
}

// walk returns the places that a path of the container passes through, links included, from the root to its end, or nil if the
// end is missing. volume is set if the path leads through a mount other than the root's, procfs and sysfs.
func (c *Container) walk(name string) (way []string, volume bool, err error) {
	dir, names := "/", []string{"."} // dir contains no links
	names = append(names, strings.Split(name, "/")...)
	in := c.root
	for links := 0; len(names) > 0; names = names[1:] {
		if names[0] == "" {
			continue
		}
		at := path.Join(dir, names[0])
		volume = volume || in.mountID() != c.root.mountID() && !isOf(in, unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC)
		o, err := openObject(c.root.fd, at, unix.O_NOFOLLOW, inRoot)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return nil, volume, refuseNumber(in, names[0])
		}
		if err != nil {
			return nil, volume, explain(err)
		}
		defer o.close()
		place, err := readlink(c.procfds, strconv.Itoa(o.fd))
		if err != nil {
			return nil, volume, err
		}
		way = append(way, place)
		if !o.isLink() {
			dir, in = at, o
			continue
		}
		if links++; links > maxLinks {
			return nil, volume, unix.ELOOP
		}
		if isOf(o, unix.PROC_SUPER_MAGIC) {
			return nil, volume, errProcess
		}
		target, err := readlink(o.fd, "")
		if err != nil {
			return nil, volume, err
		}
		if path.IsAbs(target) {
			dir, in = "/", c.root
		}
		names = slices.Concat(names[:1], strings.Split(target, "/"), names[1:])
	}
	return way, volume, nil
}

// refuseNumber rejects a missing number in /proc: it may be a process when the runtime masks the path.
func refuseNumber(in *object, name string) error {
	if _, err := strconv.Atoi(name); err == nil && isOf(in, unix.PROC_SUPER_MAGIC) {
		return errProcess
	}
	return nil
}

// isOf reports whether an object is on a file system of one of these types.
func isOf(o *object, kinds ...int64) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(o.fd, &fs) == nil && slices.Contains(kinds, fs.Type)
}

func readlink(at int, name string) (string, error) {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(at, name, target)
	if err != nil {
		return "", fmt.Errorf("read a link: %w", err)
	}
	return string(target[:n]), nil
}

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

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// maxLinks is how many symbolic links the kernel follows in a path.
const maxLinks = 40

var errProcess = errors.New("it leads to a process by way of /proc, and so to any place")

// RefuseMasked refuses paths that hide what Bind has bound: the runtime masks them (maskedPaths in config.json) after the hook.
func (c *Container) RefuseMasked(paths []string) error {
	return c.ns.do(func() error {
		preload, err := c.walk(preloadPath)
		if err != nil {
			return fmt.Errorf("the way to /%s in the container: %w", preloadPath, err)
		}
		library, err := c.walk(path.Join(dirName, api.LibraryName))
		if err != nil {
			return fmt.Errorf("the way to %s in the container: %w", api.ContainerDir, err)
		}
		for _, masked := range paths {
			way, err := c.walk(masked)
			if err != nil {
				return fmt.Errorf("the masked path %.256q may hide the interceptor, so that processes run without the quota: %w; take it out of maskedPaths", masked, err)
			}
			if len(way) > 0 && slices.Contains(slices.Concat(preload, library), way[len(way)-1]) {
				return fmt.Errorf("the masked path %.256q hides /%s or %s, without which processes run without the quota: take it out of maskedPaths",
					masked, preloadPath, api.ContainerDir)
			}
		}
		return nil
	})
}

// walk returns the places in the namespace that a path of the container leads through, links included, from the root to its end; nil if
// there is nothing at its end.
func (c *Container) walk(name string) (way []string, err error) {
	dir, names := "/", []string{"."} // dir has no link
	names = append(names, strings.Split(name, "/")...)
	for links := 0; len(names) > 0; names = names[1:] {
		if names[0] == "" {
			continue
		}
		at := path.Join(dir, names[0])
		o, err := openObject(c.root.fd, at, unix.O_NOFOLLOW, inRoot)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return nil, c.refuseNumber(dir, names[0])
		}
		if err != nil {
			return nil, explain(err)
		}
		defer o.close()
		place, err := readlink(c.procfds, strconv.Itoa(o.fd))
		if err != nil {
			return nil, err
		}
		way = append(way, place)
		if !o.isLink() {
			dir = at
			continue
		}
		if links++; links > maxLinks {
			return nil, unix.ELOOP
		}
		if isProc(o) {
			return nil, errProcess
		}
		target, err := readlink(o.fd, "")
		if err != nil {
			return nil, err
		}
		if path.IsAbs(target) {
			dir = "/"
		}
		names = slices.Concat(names[:1], strings.Split(target, "/"), names[1:])
	}
	return way, nil
}

// refuseNumber refuses a number that is missing in /proc: a process may have it by the time that the runtime masks.
func (c *Container) refuseNumber(dir, name string) error {
	if _, err := strconv.Atoi(name); err != nil {
		return nil
	}
	o, err := openObject(c.root.fd, dir, 0, inRoot)
	if err != nil {
		return explain(err)
	}
	defer o.close()
	if isProc(o) {
		return errProcess
	}
	return nil
}

func isProc(o *object) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(o.fd, &fs) != nil || fs.Type == unix.PROC_SUPER_MAGIC
}

func readlink(at int, name string) (string, error) {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(at, name, target)
	if err != nil {
		return "", fmt.Errorf("read a link: %w", err)
	}
	return string(target[:n]), nil
}

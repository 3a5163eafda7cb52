// SPDX-License-Identifier: Apache-2.0

// Package mount binds a slice into a created container: the slice's directory on /.gpuslice, the interceptor on a file in it, and
// the files of /etc that name it to the image's loaders. It binds all or nothing; [Remove] removes the mount points.
//
// It treats the container's mount namespace and root filesystem as hostile, since the image chose every name there: it follows no
// path out of the root, and reads only regular files.
//
// The mount points and their parents are on the root filesystem's own mount. In a volume another container or a user of the host
// could remove a file, which drops the mounts on it in all other mount namespaces. A volume may also be a directory of the host.
//
// It needs Linux 5.12, for mount_setattr(2).
package mount

import (
	"errors"
	"fmt"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// FileID identifies a file or directory independently of path and mount namespace.
type FileID struct {
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`
}

// Container is a container's mount namespace and root filesystem. It is not safe for concurrent use.
type Container struct {
	Root FileID // ID of the root directory; containers on the same directory share it

	pid     int
	rootfs  string // path that the runtime uses
	ns      *namespace
	root    *object
	procfds int // this process's /proc/self/fd, opened on the host

	etc      *object // nil if missing
	preloads []*preload
	dir      *object // nil if missing
	has32    bool    // the image has 32-bit programs
}

// preload is a file in /etc in which a loader of the image finds the libraries to load first.
type preload struct {
	name    string
	file    *object // nil if missing
	entries []byte  // the image's own
}

func (p *preload) path() string { return path.Join(etcPath, p.name) }

// Open enters the mount namespace of process pid and opens the container's root filesystem there. rootfs is a path of the host:
// before the container starts, its namespace still has the host's tree. The mounts that runc and crun add are visible only
// inside.
func Open(pid int, rootfs string) (*Container, error) {
	procfds, err := unix.Open("/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /proc/self/fd: %w", err)
	}
	ns, err := enter(pid)
	if err != nil {
		unix.Close(procfds)
		return nil, err
	}
	c := &Container{pid: pid, rootfs: rootfs, ns: ns, procfds: procfds, preloads: []*preload{{name: preloadName}}}
	if err = ns.do(c.openRoot); err == nil {
		err = c.refuseCovered()
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Container) openRoot() error {
	root, err := openObject(unix.AT_FDCWD, c.rootfs, unix.O_DIRECTORY, unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return fmt.Errorf("the root filesystem %.256q: %w", c.rootfs, explain(err))
	}
	c.root = root
	c.Root = root.id()
	var host unix.Stat_t
	if err := unix.Stat("/", &host); err != nil {
		return fmt.Errorf("stat /: %w", err)
	}
	if (FileID{host.Dev, host.Ino}) == c.Root {
		return fmt.Errorf("the root filesystem %.256q is the host's own: nothing is created there", c.rootfs)
	}
	return nil
}

// refuseCovered rejects a mount over the root filesystem, as runc 1.1 makes for a volume on "/". It runs on the host.
func (c *Container) refuseCovered() error {
	var host unix.Stat_t
	if err := unix.Stat(c.rootfs, &host); err != nil {
		return fmt.Errorf("the root filesystem %.256q: %w", c.rootfs, err)
	}
	if (FileID{host.Dev, host.Ino}) != c.Root {
		return fmt.Errorf("something is mounted on / in the container, over its root filesystem %.256q: "+
			"another user of it can unbind the interceptor; mount it on a directory below", c.rootfs)
	}
	return nil
}

// Close leaves the namespace. Bound mounts remain.
func (c *Container) Close() {
	for _, o := range []*object{c.root, c.etc, c.dir} {
		o.close()
	}
	for _, p := range c.preloads {
		p.file.close()
	}
	unix.Close(c.procfds)
	c.ns.close()
}

// reopen opens a regular file or directory for reading. It uses the host's /proc/self/fd, since the container's may be replaced.
func (c *Container) reopen(o *object) (int, error) {
	return unix.Openat(c.procfds, strconv.Itoa(o.fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
}

// object is a file held by an O_PATH descriptor. It cannot be replaced, and opening it has no side effects even for a FIFO or a
// device.
type object struct {
	fd   int
	stat unix.Statx_t
}

// maxOpens limits the attempts to open a file while it is moved or mounted over.
const maxOpens = 128

// openat2 is replaced in tests.
var openat2 = unix.Openat2

func openObject(at int, path string, flags, resolve uint64) (*object, error) {
	var fd int
	err := error(unix.EAGAIN)
	// With RESOLVE_IN_ROOT a concurrent rename or mount on the host may cause EAGAIN, and openat2(2) says to retry.
	for tries := 0; (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)) && tries < maxOpens; tries++ {
		fd, err = openat2(at, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: resolve})
	}
	if err != nil {
		return nil, err
	}
	o := &object{fd: fd}
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &o.stat)
	if err == nil && o.stat.Mask&unix.STATX_MNT_ID == 0 {
		err = unix.ENOSYS
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return o, nil
}

func (o *object) close() {
	if o != nil {
		unix.Close(o.fd)
	}
}

func (o *object) id() FileID {
	return FileID{unix.Mkdev(o.stat.Dev_major, o.stat.Dev_minor), o.stat.Ino}
}

func (o *object) mountID() uint64 { return o.stat.Mnt_id }

func (o *object) isDir() bool     { return o.stat.Mode&unix.S_IFMT == unix.S_IFDIR }
func (o *object) isLink() bool    { return o.stat.Mode&unix.S_IFMT == unix.S_IFLNK }
func (o *object) isRegular() bool { return o.stat.Mode&unix.S_IFMT == unix.S_IFREG }

// kind returns the type of the file for messages.
func (o *object) kind() string {
	switch o.stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFLNK:
		return "a symbolic link"
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "a device"
	}
	return "a regular file"
}

// explain adds the required kernel version to ENOSYS.
func explain(err error) error {
	if errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%w: gpuslice needs Linux 5.12 or newer", err)
	}
	return err
}

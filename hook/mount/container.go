// SPDX-License-Identifier: Apache-2.0

// Package mount binds a slice into a container that has been created and not yet started: the slice's
// directory on /.gpuslice, the interceptor on a file in it, and an /etc/ld.so.preload that names it.
//
// It owns what happens inside the container's mount namespace and root filesystem, and takes both for hostile:
// the image chose every name there. No path of the image is followed out of its root, nothing is opened
// for reading before it is known to be a regular file. It binds all or nothing, and what it made to bind on can be removed
// again by [Remove].
//
// What is bound on, and the whole way there, is on the root filesystem's own mount. Who has a volume elsewhere, a user of
// the host or another container, can remove its files, and the kernel then drops what is bound on them in every other
// mount namespace. Nor is anything created in a volume, which may be a directory of the host.
//
// It needs Linux 5.12, for mount_setattr(2).
package mount

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// FileID names a file or directory, by whatever path and in whatever mount namespace it is seen.
type FileID struct {
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`
}

// Container is a container's mount namespace and its root filesystem in there. It is not safe for use by
// several goroutines.
type Container struct {
	Root FileID // of its root directory: containers that run on one directory share it

	pid     int
	rootfs  string // as the runtime names it
	ns      *namespace
	root    *object
	procfds int // this process's /proc/self/fd, opened on the host

	etc     *object // nil if missing
	preload *object // nil if missing
	dir     *object // nil if missing
	entries []byte  // the image's own ld.so.preload
	has32   bool    // the image has 32-bit programs
}

// Open enters the mount namespace of the container whose init is pid and finds its root filesystem there.
// At this point of a container's life the namespace still has the host's tree, so rootfs is the path
// that the host knows; what runc and crun bound on it is seen only inside.
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
	c := &Container{pid: pid, rootfs: rootfs, ns: ns, procfds: procfds}
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

// refuseCovered is asked on the host. runc 1.1 mounts a volume on "/" over the root filesystem: what is seen inside is the volume.
func (c *Container) refuseCovered() error {
	var host unix.Stat_t
	if err := unix.Stat(c.rootfs, &host); err != nil {
		return fmt.Errorf("the root filesystem %.256q: %w", c.rootfs, err)
	}
	if (FileID{host.Dev, host.Ino}) != c.Root {
		return fmt.Errorf("something is mounted on / in the container, over its root filesystem %.256q: "+
			"whoever can write there from outside can unbind the interceptor; mount it on a directory below", c.rootfs)
	}
	return nil
}

// Close leaves the namespace. What is bound stays bound.
func (c *Container) Close() {
	for _, o := range []*object{c.root, c.etc, c.preload, c.dir} {
		o.close()
	}
	unix.Close(c.procfds)
	c.ns.leave()
}

// reopen opens for reading what an O_PATH descriptor stands for, which the caller knows to be a regular
// file. /proc/self/fd was opened on the host: the container's namespace may have something else there.
func (c *Container) reopen(o *object) (int, error) {
	return unix.Openat(c.procfds, strconv.Itoa(o.fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
}

// object is a file that was found, held by an O_PATH descriptor: it cannot be exchanged for another,
// and holding it has no effect on it, be it a FIFO or a device.
type object struct {
	fd   int
	stat unix.Statx_t
}

// maxOpens bounds how often a file is opened that is moved or mounted over at the same time.
const maxOpens = 128

// openat2 is a variable for tests.
var openat2 = unix.Openat2

func openObject(at int, path string, flags, resolve uint64) (*object, error) {
	var fd int
	err := error(unix.EAGAIN)
	// With RESOLVE_IN_ROOT a rename or mount anywhere on the host may end the call with EAGAIN: openat2(2) says to try again.
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

// kind names what is there instead of what was expected.
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

// explain adds what an error number alone does not tell.
func explain(err error) error {
	if errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%w: gpuslice needs Linux 5.12 or newer", err)
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
)

// bindName is the directory within the slice's directory that becomes api.ContainerDir.
const bindName = "bind"

// Source lists what to bind, by paths on the host.
type Source struct {
	Dir     string // the slice's directory: Bind binds "bind" in it and writes the preload files to it
	Library string // the interceptor
}

const (
	readOnly = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	dataOnly = readOnly | unix.MOUNT_ATTR_NOEXEC
)

// Bind binds all of src into the container, or nothing. Call Inspect and Make first.
//
// It binds the library before the preload files: if they name a missing library, the loader prints an error in every process.
// Mounts are read-only, nosuid and nodev before they are attached.
func (c *Container) Bind(src Source) error {
	if len(c.Missing()) > 0 {
		return errors.New("bind: not all mount points are made: Make has to be called first")
	}
	if err := c.layPlatforms(filepath.Join(src.Dir, bindName)); err != nil {
		return err
	}
	dir, err := clone(filepath.Join(src.Dir, bindName), unix.S_IFDIR, dataOnly)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	library, err := clone(src.Library, unix.S_IFREG, readOnly)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w: install gpuslice again, or correct the library's path in the configuration", err)
		}
		return err
	}
	defer unix.Close(library)
	var preloads []int
	defer func() {
		for _, fd := range preloads {
			unix.Close(fd)
		}
	}()
	for _, p := range c.preloads {
		fd, err := c.clonePreload(src.Dir, p)
		if err != nil {
			return err
		}
		preloads = append(preloads, fd)
	}

	return c.ns.do(func() error {
		if err := attach(dir, c.dir.fd); err != nil {
			return fmt.Errorf("bind the slice's directory on %s: %w", api.ContainerDir, err)
		}
		attached := []int{dir}
		err := attachLibrary(library, dir)
		for i := 0; err == nil && i < len(preloads); i++ {
			if err = attach(preloads[i], c.preloads[i].file.fd); err != nil {
				err = fmt.Errorf("bind /%s: %w", c.preloads[i].path(), err)
			} else {
				attached = append(attached, preloads[i])
			}
		}
		for i := 0; err != nil && i < len(attached); i++ {
			err = errors.Join(err, c.detach(attached[i]))
		}
		return err
	})
}

// clone returns a detached bind mount of a path on the host. It has to be called in the host's mount namespace: the kernel clones no mounts of another.
func clone(path string, kind uint32, attrs uint64) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("bind %s: %w", path, explain(err))
	}
	if err = check(fd, kind, attrs); err == nil {
		err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attrs, Propagation: unix.MS_PRIVATE})
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("bind %s: %w", path, explain(err))
	}
	return fd, nil
}

// check rejects files that some user of the container could not load. The loader ignores a preload that it cannot load, so that user's processes would
// have no quota.
func check(fd int, kind uint32, attrs uint64) error {
	var stat unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(fd, &stat), unix.Fstatfs(fd, &fs)); err != nil {
		return err
	}
	needs, what := uint32(0o444), "regular file"
	if kind == unix.S_IFDIR {
		needs, what = 0o111, "directory"
	}
	switch {
	case stat.Mode&unix.S_IFMT != kind:
		return fmt.Errorf("it is not a %s", what)
	case stat.Mode&needs != needs:
		return fmt.Errorf("its mode is %#o, so some users of the container cannot read it: run chmod a+rX", stat.Mode&0o7777)
	case attrs&unix.MOUNT_ATTR_NOEXEC == 0 && fs.Flags&unix.ST_NOEXEC != 0:
		return errors.New("its file system is mounted noexec, so that no process can load it")
	}
	return nil
}

// clonePreload writes a preload file to the slice's directory, outside the container's reach, and clones it.
func (c *Container) clonePreload(dir string, p *preload) (int, error) {
	path := filepath.Join(dir, p.name)
	text := append([]byte(c.preloadLines()), p.entries...)
	if err := write(path, text); err != nil {
		return -1, fmt.Errorf("the container's %s: %w", p.name, err)
	}
	return clone(path, unix.S_IFREG, dataOnly)
}

// write creates a file that must not exist.
func write(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

func attach(tree, onto int) error {
	return unix.MoveMount(tree, "", onto, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// attachLibrary binds the library on the enforcer's placeholder in the slice's directory, which saves a mount point in the image.
func attachLibrary(library, dir int) error {
	place, err := openObject(dir, api.LibraryName, unix.O_NOFOLLOW, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_XDEV)
	if err != nil {
		return fmt.Errorf("open the placeholder of %s in the slice's directory: %w", api.LibraryName, err)
	}
	defer place.close()
	if err := attach(library, place.fd); err != nil {
		return fmt.Errorf("bind the interceptor on %s/%s: %w", api.ContainerDir, api.LibraryName, err)
	}
	return nil
}

// detach unmounts a tree in the container. umount2(2) takes only paths, so the tree is named by its entry in this process's /proc/self/fd, which becomes
// the thread's working directory.
func (c *Container) detach(tree int) error {
	if err := unix.Fchdir(c.procfds); err != nil {
		return fmt.Errorf("unmount what was bound already: enter /proc/self/fd: %w", err)
	}
	if err := unix.Unmount(strconv.Itoa(tree), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount what was bound already: %w", err)
	}
	return nil
}

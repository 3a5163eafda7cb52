// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/needs"
)

// created starts a process in its own mount namespace and returns it with a root filesystem, as a runtime does for hooks.
func created(t *testing.T) (c *Container, rootfs string, src Source) {
	t.Helper()
	needs.Root(t)
	init := exec.Command("sleep", "1000")
	init.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	do(t, init.Start())
	t.Cleanup(func() { _ = init.Process.Kill(); _ = init.Wait() })
	rootfs = t.TempDir()
	c, err := Open(init.Process.Pid, rootfs)
	do(t, err)
	t.Cleanup(c.Close)
	if own, err := os.Readlink("/proc/self/ns/mnt"); err != nil || own == namespaceOf(t, c) {
		t.Fatalf("this process is in the container: %s, %v", own, err)
	}
	src = Source{Dir: t.TempDir(), Library: filepath.Join(t.TempDir(), api.LibraryName)}
	do(t, os.Mkdir(filepath.Join(src.Dir, bindName), 0o755), os.WriteFile(filepath.Join(src.Dir, bindName, api.LibraryName), nil, 0o644),
		os.WriteFile(src.Library, []byte("interceptor"), 0o755))
	return c, rootfs, src
}

func namespaceOf(t *testing.T, c *Container) string {
	t.Helper()
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", c.pid))
	do(t, err)
	return name
}

// shared moves the slice's directory to a shared mount, as the host's /run may be.
func shared(t *testing.T, src *Source) {
	t.Helper()
	dir := t.TempDir()
	do(t, unix.Mount("none", dir, "tmpfs", 0, "mode=0755"))
	t.Cleanup(func() { do(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	do(t, unix.Mount("", dir, "", unix.MS_SHARED, ""), os.CopyFS(dir, os.DirFS(src.Dir)))
	src.Dir = dir
}

func prepare(t *testing.T, c *Container) {
	t.Helper()
	do(t, c.Inspect())
	_, err := c.Make()
	do(t, err)
}

// bound returns the options of the container's mounts below the root filesystem, by path.
func bound(t *testing.T, c *Container) map[string]string {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", c.pid))
	do(t, err)
	defer file.Close()
	mounts, err := mountinfo.GetMountsFromReader(file, mountinfo.PrefixFilter(c.rootfs))
	do(t, err)
	all := make(map[string]string)
	for _, m := range mounts {
		options := slices.DeleteFunc(strings.Split(m.Options, ","), func(o string) bool { return strings.HasSuffix(o, "atime") })
		if m.Optional != "" {
			options = append(options, m.Optional)
		}
		all[strings.TrimPrefix(m.Mountpoint, c.rootfs)] = strings.Join(options, ",")
	}
	return all
}

// The mounts are read-only and private, without setuid programs and devices. Only the interceptor is executable.
func TestMountsHaveTheFewestRights(t *testing.T) {
	for name, file := range map[string]string{"64-bit programs": "", "32-bit programs": loader32, "programs of Nix": nixStore + "/glibc"} {
		t.Run(name, func(t *testing.T) {
			c, rootfs, src := created(t)
			if file != "" {
				do(t, os.MkdirAll(filepath.Join(rootfs, filepath.Dir(file)), 0o755), os.WriteFile(filepath.Join(rootfs, file), nil, 0o755))
			}
			prepare(t, c)
			shared(t, &src)
			do(t, c.Bind(src))
			want := map[string]string{
				api.ContainerDir: "ro,nosuid,nodev,noexec",
				filepath.Join(api.ContainerDir, api.LibraryName): "ro,nosuid,nodev",
				"/" + preloadPath: "ro,nosuid,nodev,noexec",
			}
			if strings.HasPrefix(file, nixStore) {
				want["/etc/ld-nix.so.preload"] = "ro,nosuid,nodev,noexec"
			}
			if got := bound(t, c); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%v, want %v", got, want)
			}
			if mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(rootfs)); err != nil || len(mounts) != 0 {
				t.Errorf("the host has %v, %v", mounts, err)
			}
		})
	}
}

func TestASliceIsBoundWhollyOrNotAtAll(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, c *Container, src *Source){
		"its directory is missing": func(_ *testing.T, _ *Container, src *Source) { src.Dir += "x" },
		"there is no interceptor":  func(_ *testing.T, _ *Container, src *Source) { src.Library += "x" },
		"the interceptor is a directory": func(t *testing.T, _ *Container, src *Source) {
			src.Library = t.TempDir()
		},
		"the interceptor is a FIFO": func(t *testing.T, _ *Container, src *Source) {
			do(t, os.Remove(src.Library), unix.Mkfifo(src.Library, 0o755))
		},
		"its directory is a file": func(t *testing.T, _ *Container, src *Source) {
			do(t, os.RemoveAll(filepath.Join(src.Dir, bindName)), os.WriteFile(filepath.Join(src.Dir, bindName), nil, 0o644))
		},
		"its directory is closed to other users": func(t *testing.T, _ *Container, src *Source) {
			do(t, os.Chmod(filepath.Join(src.Dir, bindName), 0o700))
		},
		"the interceptor is closed to other users": func(t *testing.T, _ *Container, src *Source) {
			do(t, os.Chmod(src.Library, 0o750))
		},
		"no program of the interceptor's file system may be executed": func(t *testing.T, _ *Container, src *Source) {
			dir := t.TempDir()
			do(t, unix.Mount("none", dir, "tmpfs", unix.MS_NOEXEC, "mode=0755"))
			t.Cleanup(func() { do(t, unix.Unmount(dir, unix.MNT_DETACH)) })
			src.Library = filepath.Join(dir, api.LibraryName)
			do(t, os.WriteFile(src.Library, nil, 0o755))
		},
		"the preload file exists": func(t *testing.T, _ *Container, src *Source) {
			do(t, os.WriteFile(filepath.Join(src.Dir, preloadName), nil, 0o644))
		},
		"there is no file to bind the interceptor on": func(t *testing.T, _ *Container, src *Source) {
			do(t, os.Remove(filepath.Join(src.Dir, bindName, api.LibraryName)))
		},
		"the preload file's place is a directory": func(_ *testing.T, c *Container, _ *Source) {
			*c.preloads[1].file, *c.etc = *c.etc, *c.preloads[1].file
		},
		"the preload file's place was not made": func(_ *testing.T, c *Container, _ *Source) {
			c.preloads[0].file.close()
			c.preloads[0].file = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, rootfs, src := created(t)
			do(t, os.MkdirAll(filepath.Join(rootfs, nixStore), 0o755))
			prepare(t, c)
			spoil(t, c, &src)
			if err := c.Bind(src); err == nil {
				t.Error("it was bound")
			}
			if got := bound(t, c); len(got) != 0 {
				t.Errorf("these stay bound: %v", got)
			}
		})
	}
}

func TestTheRootFilesystemIsTheContainersOwn(t *testing.T) {
	c, rootfs, _ := created(t)
	for root, says := range map[string]string{"/": "the host's own", rootfs + "/none": "no such file"} {
		other, err := Open(c.pid, root)
		if err == nil {
			other.Close()
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", root, err)
		}
	}
	// A volume on / in the container hides its root filesystem.
	do(t, c.ns.do(func() error { return unix.Mount("none", rootfs, "tmpfs", 0, "") }))
	other, err := Open(c.pid, rootfs)
	if err == nil {
		other.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "something is mounted on /") {
		t.Errorf("covered: %v", err)
	}
}

// The image's ld.so.preload is not read if it leads out of the root filesystem, is not a file, or is too long.
func TestHostileMountPlaceIsRefused(t *testing.T) {
	for name, lay := range map[string]func(root string) error{
		"ld.so.preload is a directory": func(root string) error { return os.MkdirAll(filepath.Join(root, preloadPath), 0o755) },
		"ld.so.preload is a FIFO": func(root string) error {
			return errors.Join(os.Mkdir(filepath.Join(root, etcPath), 0o755), unix.Mkfifo(filepath.Join(root, preloadPath), 0o644))
		},
		"ld.so.preload is too long": func(root string) error {
			return errors.Join(os.Mkdir(filepath.Join(root, etcPath), 0o755), os.WriteFile(filepath.Join(root, preloadPath), make([]byte, maxPreload+1), 0o644))
		},
		"the slice's place is a file": func(root string) error { return os.WriteFile(filepath.Join(root, dirName), nil, 0o644) },
		"the slice's place is a link": func(root string) error { return os.Symlink("/tmp", filepath.Join(root, dirName)) },
	} {
		t.Run(name, func(t *testing.T) {
			c, rootfs, _ := created(t)
			do(t, lay(rootfs))
			if err := c.Inspect(); err == nil {
				t.Error("it is accepted")
			}
		})
	}
}

// This many threads use all idle ones, including the first.
func TestTheFirstThreadEntersNoContainer(t *testing.T) {
	const count = 64
	threads, stay := make(chan int), make(chan struct{})
	for range count {
		onOwnThread(func() {
			threads <- unix.Gettid()
			<-stay
		})
	}
	defer close(stay)
	seen := make(map[int]bool)
	for range count {
		seen[<-threads] = true
	}
	if seen[os.Getpid()] || len(seen) != count {
		t.Errorf("%d threads, the first one among them: %v", len(seen), seen[os.Getpid()])
	}
}

// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/mount"
	"golang.org/x/sys/unix"
)

// scratch is the mount point for layers in the thread's mount namespace. It is short, since the paths of all layers must fit into
// one page, and hides only files that no root filesystem uses.
const scratch = "/sys"

// mountRemapped mounts a root filesystem with its owners mapped into a user namespace and reports whether it did. containerd 2
// requests that by the options uidmap and gidmap, unknown to package mount of containerd 1.7. containerd unmounts it with the
// bundle.
func mountRemapped(rootfs []*types.Mount, bundle string) (bool, error) {
	if len(rootfs) != 1 {
		return false, nil
	}
	options, uids := takeOption(rootfs[0].Options, "uidmap=")
	options, gids := takeOption(options, "gidmap=")
	if uids == "" || gids == "" {
		return false, nil
	}
	target := filepath.Join(bundle, "rootfs")
	if err := os.MkdirAll(target, 0o711); err != nil {
		return false, err
	}
	tree, err := remap(mount.Mount{Type: rootfs[0].Type, Source: rootfs[0].Source, Options: options}, uids, gids)
	if err == nil {
		defer unix.Close(tree)
		err = unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	if err != nil {
		return false, fmt.Errorf("mount the root filesystem for a user namespace: %w", err)
	}
	return true, nil
}

// takeOption removes the option with prefix and returns its value.
func takeOption(options []string, prefix string) (rest []string, value string) {
	rest = slices.DeleteFunc(slices.Clone(options), func(option string) bool {
		after, ok := strings.CutPrefix(option, prefix)
		if ok {
			value = after
		}
		return ok
	})
	return rest, value
}

// remap returns a detached mount with its owners mapped.
//
// An overlay cannot be mapped, but its layers can, if they are attached. remap attaches them in the mount namespace of a thread,
// where others do not see them and they end with the shim.
func remap(m mount.Mount, uids, gids string) (tree int, err error) {
	onThread(func() { tree, err = remapHere(m, uids, gids) })
	return tree, err
}

// onThread runs f on a new thread that ends with it, but not on the process's first, which Go never ends and /proc/self shows.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onThread(f) // on another thread, since this one is locked and waits
			runtime.UnlockOSThread()
			return
		}
		f() // the thread stays locked, so Go ends it
	}()
	<-done
}

func remapHere(m mount.Mount, uids, gids string) (int, error) {
	users, err := userNamespace(uids, gids)
	if err != nil {
		return -1, err
	}
	defer users.Close()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return -1, os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return -1, &os.PathError{Op: "make private", Path: "/", Err: err}
	}
	if err := unix.Mount("tmpfs", scratch, "tmpfs", 0, "mode=0700"); err != nil {
		return -1, &os.PathError{Op: "mount a tmpfs on", Path: scratch, Err: err}
	}
	root := filepath.Join(scratch, "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		return -1, err
	}
	if m.Type != "overlay" {
		if err := m.Mount(root); err != nil {
			return -1, err
		}
		return mapped(root, users, 0)
	}
	options, lower := takeOption(m.Options, "lowerdir=")
	layers := strings.Split(lower, ":")
	for i, layer := range layers {
		tree, err := mapped(layer, users, unix.MOUNT_ATTR_RDONLY)
		if err != nil {
			return -1, err
		}
		layers[i] = filepath.Join(scratch, strconv.Itoa(i))
		err = os.Mkdir(layers[i], 0o700)
		if err == nil {
			err = unix.MoveMount(tree, "", unix.AT_FDCWD, layers[i], unix.MOVE_MOUNT_F_EMPTY_PATH)
		}
		unix.Close(tree)
		if err != nil {
			return -1, fmt.Errorf("attach layer %s: %w", layer, err)
		}
	}
	m.Options = append(options, "lowerdir="+strings.Join(layers, ":"))
	if err := m.Mount(root); err != nil {
		return -1, err
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, root, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	return tree, os.NewSyscallError("open_tree", err)
}

// mapped clones the mount at path with its owners mapped as in a user namespace.
func mapped(path string, users *os.File, attributes uint64) (int, error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, &os.PathError{Op: "open_tree", Path: path, Err: err}
	}
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_IDMAP | attributes, Userns_fd: uint64(users.Fd()),
	})
	if err != nil {
		unix.Close(tree)
		return -1, &os.PathError{Op: "map the owners of", Path: path, Err: err}
	}
	return tree, nil
}

// userNamespace creates a user namespace with these mappings and no process.
func userNamespace(uids, gids string) (*os.File, error) {
	uidMappings, err := parseMappings(uids)
	if err != nil {
		return nil, err
	}
	gidMappings, err := parseMappings(gids)
	if err != nil {
		return nil, err
	}
	// Tracing stops the child before its first instruction.
	process, err := os.StartProcess("/proc/self/exe", []string{program}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: uidMappings, GidMappings: gidMappings,
		Ptrace: true, Pdeathsig: unix.SIGKILL,
	}})
	if err != nil {
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	users, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", process.Pid))
	_ = process.Kill()
	_, _ = process.Wait() // the shim's reaper may have waited already
	return users, err
}

// parseMappings parses "INSIDE:OUTSIDE:SIZE,…".
func parseMappings(text string) (mappings []syscall.SysProcIDMap, err error) {
	for part := range strings.SplitSeq(text, ",") {
		numbers := strings.Split(part, ":")
		var of [3]int
		if len(numbers) != len(of) {
			return nil, fmt.Errorf("%.256q is no mapping of ids", part)
		}
		for i, number := range numbers {
			n, err := strconv.ParseUint(number, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%.256q is no mapping of ids: %w", part, err)
			}
			of[i] = int(n)
		}
		mappings = append(mappings, syscall.SysProcIDMap{ContainerID: of[0], HostID: of[1], Size: of[2]})
	}
	return mappings, nil
}

// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace runs functions in a container's mount namespace on a dedicated thread, while the rest of the program stays on the
// host.
//
// setns(2) needs a thread that shares no root and working directory, hence unshare(CLONE_FS). The thread stays locked, so Go ends
// it instead of reusing it. Descriptors are valid on both sides.
type namespace struct {
	calls chan func()
}

func enter(pid int) (*namespace, error) {
	file := fmt.Sprintf("/proc/%d/ns/mnt", pid)
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the container's mount namespace %s: %w", file, err)
	}
	defer unix.Close(fd)
	var theirs, ours unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &theirs), unix.Stat("/proc/self/ns/mnt", &ours)); err != nil {
		return nil, fmt.Errorf("the mount namespaces of the container and the host: %w", err)
	}
	if theirs.Dev == ours.Dev && theirs.Ino == ours.Ino {
		return nil, errors.New("the container has no mount namespace of its own, so nothing can be bound into it: " +
			`add {"type": "mount"} to linux.namespaces in its config.json`)
	}

	ns := &namespace{calls: make(chan func())}
	entered := make(chan error)
	onOwnThread(func() {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			entered <- fmt.Errorf("unshare the working directory: %w", err)
			return
		}
		if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
			entered <- fmt.Errorf("enter the container's mount namespace %s: %w", file, err)
			return
		}
		entered <- nil
		for call := range ns.calls {
			call()
		}
	})
	if err := <-entered; err != nil {
		return nil, err
	}
	return ns, nil
}

// onOwnThread starts f on a dedicated thread, but not the process's first, which /proc/self shows and Go never ends.
func onOwnThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		locked := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(locked)
			f()
		}()
		<-locked
		runtime.UnlockOSThread()
	}()
}

func (ns *namespace) do(f func() error) error {
	done := make(chan error)
	ns.calls <- func() { done <- f() }
	return <-done
}

func (ns *namespace) close() { close(ns.calls) }

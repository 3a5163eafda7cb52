// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Handle refers to one process, even after its pid was reused. It is safe for concurrent use.
type Handle struct {
	Identity

	mu sync.RWMutex // keeps fd from being closed, and reused, while it is in use
	fd int          // a pidfd; -1 after Close
}

// Open returns a handle on the process with the given pid, or ErrDead if there is none.
func Open(pid int) (*Handle, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return nil, fmt.Errorf("process %d: %w", pid, ErrDead)
	case errors.Is(err, unix.ENOSYS):
		return nil, fmt.Errorf("pidfd_open of process %d: %w: Linux 5.3 or newer is needed", pid, err)
	case err != nil:
		return nil, fmt.Errorf("pidfd_open of process %d: %w", pid, err)
	}
	return take(fd, pid)
}

// Again returns a handle on a process known by its pid and start time. It returns ErrDead if that process has exited, even if its pid was
// reused.
func Again(pid int, start uint64) (*Handle, error) {
	h, err := Open(pid)
	if err == nil && h.Start != start {
		h.Close()
		return nil, fmt.Errorf("process %d: %w", pid, ErrDead)
	}
	return h, err
}

// Exists reports whether a process with this pid is alive. It does not read /proc.
func Exists(pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return !errors.Is(err, unix.ESRCH)
	}
	h := &Handle{fd: fd}
	defer h.Close()
	return h.Alive()
}

// FromPidfd returns a handle on the process of a pidfd from the kernel (SO_PEERPIDFD). It owns fd, even if it fails. It checks the pid that
// came with it (SO_PEERCRED) against the pidfd; 0 means that none came.
func FromPidfd(fd, pid int) (*Handle, error) {
	id, known := identityCache.of(fd)
	named, err := id.PID, error(nil)
	if !known {
		named, err = pidOf(fd)
	}
	if err == nil && pid != 0 && pid != named {
		err = fmt.Errorf("the pidfd is of process %d, not of %d", named, pid)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return take(fd, named)
}

// take reads the identity of pid, and then checks that it was fd's process: while a pidfd is not signalled its process is not reaped, and
// its pid is not reused.
func take(fd, pid int) (*Handle, error) {
	h := &Handle{fd: fd}
	id, known := identityCache.of(fd)
	var err error
	if !known || id.PID != pid {
		id, err = identify(pid)
	}
	if !h.Alive() {
		h.Close()
		return nil, fmt.Errorf("process %d: %w", pid, ErrDead)
	}
	if errors.Is(err, ErrDead) || errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("process %d: %w", pid, ErrHidden)
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	h.Identity = id
	if !known {
		identityCache.keep(fd, id)
	}
	return h, nil
}

// pidOf returns the pid of a pidfd's process.
func pidOf(fd int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, fmt.Errorf("cannot read the pid of a pidfd: %w", err)
	}
	for line := range bytes.Lines(b) {
		rest, ok := bytes.CutPrefix(line, []byte("Pid:"))
		if !ok {
			continue
		}
		pid, err := strconv.Atoi(string(bytes.TrimSpace(rest)))
		switch {
		case err != nil:
			return 0, fmt.Errorf("cannot read the pid of a pidfd: %w", err)
		case pid == 0:
			return 0, errors.New("the process is not in the enforcer's pid namespace, nor below it: run the enforcer on the host")
		case pid < 0:
			return 0, ErrDead
		}
		return pid, nil
	}
	return 0, fmt.Errorf("descriptor %d is not a pidfd", fd)
}

// Alive reports whether a thread of the process is alive. It is false for a zombie.
func (h *Handle) Alive() bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.fd < 0 {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		// poll fails only for lack of memory. Report the process as alive, since the bytes of a dead one are released.
		return err != nil || n == 0
	}
}

// Signal sends sig to the process. It returns ErrDead if it has exited.
func (h *Handle) Signal(sig syscall.Signal) error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.fd < 0 {
		return os.ErrClosed
	}
	err := unix.PidfdSendSignal(h.fd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", h.PID, ErrDead)
	}
	if err != nil {
		return fmt.Errorf("cannot send signal %v to process %d: %w", sig, h.PID, err)
	}
	return nil
}

// Close releases the handle. It also ends a Watcher's watch of h: call Unwatch first.
func (h *Handle) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fd < 0 {
		return nil
	}
	fd := h.fd
	h.fd = -1
	return unix.Close(fd)
}

// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/unixsocket"
)

// ErrInUse means that another program listens on the socket.
var ErrInUse = errors.New("another daemon answers on it")

// Listen creates the control socket, for root and group, or for the caller's user alone if group is "". It replaces a stale
// socket, and returns ErrInUse if a program listens on it.
func Listen(path, group string) (net.Listener, error) {
	gid := -1
	mode := os.FileMode(0o600)
	if group != "" {
		var err error
		if gid, err = groupID(group); err != nil {
			return nil, fmt.Errorf("listen on %s: %w", path, err)
		}
		mode = 0o660
	}
	return listenFor(path, gid, mode)
}

// ListenForUsers creates the users' socket, open to all users.
func ListenForUsers(path string) (net.Listener, error) {
	l, err := listenFor(path, -1, 0o666)
	if err != nil {
		return nil, err
	}
	raw, err := l.(*net.UnixListener).SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), usersQueue) }), err)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), l.Close())
	}
	return l, nil
}

// usersQueue is the length of the users' accept queue.
const usersQueue = 32

func groupID(group string) (int, error) {
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, fmt.Errorf("%w: create the group (`sudo groupadd --system %s`), or set group = \"\" in the configuration", err, group)
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return 0, fmt.Errorf("group %s has id %q", group, g.Gid)
	}
	return gid, nil
}

func listenFor(path string, gid int, mode os.FileMode) (net.Listener, error) {
	l, err := listen(path, gid, mode)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

func listen(path string, gid int, mode os.FileMode) (net.Listener, error) {
	if err := vacant(path); err != nil {
		return nil, err
	}
	// The socket is renamed to path once it has its owner and mode. Removing path first could delete the socket of another
	// process.
	temporary := fmt.Sprintf("%s%d", firstName(path), os.Getpid())
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		// Linux gives the file the mode of the socket's inode. A umask would affect the files of all other threads, too.
		failed := c.Control(func(fd uintptr) {
			err = errors.Join(unix.Fchmod(int(fd), 0o600), unixsocket.RefuseDescriptors(int(fd)))
		})
		return errors.Join(failed, err)
	}}
	l, err := config.Listen(context.Background(), "unix", temporary)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the file has another name by then
	if gid >= 0 {
		err = os.Chown(temporary, -1, gid)
	}
	if err == nil {
		err = os.Chmod(temporary, mode)
	}
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(temporary))
	}
	return l, nil
}

// firstName returns the prefix of the temporary name of the socket at path; the process's pid follows. The kernel keeps reporting
// the temporary name.
func firstName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".")
}

// MadeAs reports whether name is a temporary name of the socket at path.
func MadeAs(name, path string) bool {
	number, ok := strings.CutPrefix(name, firstName(path))
	_, err := strconv.ParseUint(number, 10, 32)
	return ok && err == nil
}

// RemoveStale removes the socket at path if no program listens on it. It removes no other file.
func RemoveStale(path string) error {
	if err := vacant(path); err != nil {
		return nil //nolint:nilerr // then it is not stale
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// vacant returns nil if path does not exist or is a stale socket, else the reason why it cannot be replaced.
func vacant(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("the path exists and is not a socket (%s): move it away", info.Mode().Type())
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		conn.Close()
		return ErrInUse
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	return err // a full queue (EAGAIN) means that it is in use
}

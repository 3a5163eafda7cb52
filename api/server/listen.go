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

// ErrInUse says that somebody answers on the socket already.
var ErrInUse = errors.New("another daemon answers on it")

// Listen makes the control socket, for root and group; for the caller's user alone if group is "". A socket that is
// left from an enforcer that died is replaced, one that somebody answers on is not.
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

// ListenForUsers makes the users' socket, to which everybody may connect.
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

// usersQueue is how many wait in the kernel to be accepted: no more than are accepted in about a second.
const usersQueue = 128

func groupID(group string) (int, error) {
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, fmt.Errorf("%w: make the group (`sudo groupadd --system %s`), or set group = \"\" in the configuration", err, group)
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
	// The socket is renamed to path once it has its owner and mode. No path is removed, which another process may just have taken.
	temporary := fmt.Sprintf("%s%d", firstName(path), os.Getpid())
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		// Linux gives the file the mode of the socket's own inode. A umask would do the same for every
		// file that any thread makes meanwhile.
		failed := c.Control(func(fd uintptr) {
			err = errors.Join(unix.Fchmod(int(fd), 0o600), unixsocket.RefuseDescriptors(int(fd)))
		})
		return errors.Join(failed, err)
	}}
	l, err := config.Listen(context.Background(), "unix", temporary)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // its name is not that of the file any more
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

// firstName is the name under which the socket at path is made, up to the process's number. The kernel keeps showing that name.
func firstName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".")
}

// MadeAs says whether a socket of this name was made to be the one at path.
func MadeAs(name, path string) bool {
	number, is := strings.CutPrefix(name, firstName(path))
	_, err := strconv.ParseUint(number, 10, 32)
	return is && err == nil
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

// vacant says why path cannot be replaced: by nothing, or by a socket that nobody answers on, it can.
func vacant(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("it is there and not a socket (%s): move it away", info.Mode().Type())
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		conn.Close()
		return ErrInUse
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	return err // a full queue (EAGAIN) is an answer as well
}

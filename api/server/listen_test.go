// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"io"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/unixsocket"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestSocketIsAccessibleOnlyToRootAndTheGroup(t *testing.T) {
	group, err := user.LookupGroupId(strconv.Itoa(os.Getgid()))
	if err != nil {
		t.Skipf("requires a group with a name: %v", err)
	}
	for name, mode := range map[string]os.FileMode{group.Name: 0o660, "": 0o600} {
		path := socketPath(t)
		l := must.Get(Listen(path, name))(t)
		defer l.Close()
		info := must.Get(os.Stat(path))(t)
		if info.Mode().Perm() != mode || info.Sys().(*syscall.Stat_t).Gid != uint32(os.Getgid()) {
			t.Errorf("group %q: mode %v, group %d", name, info.Mode(), info.Sys().(*syscall.Stat_t).Gid)
		}
		if files, _ := filepath.Glob(filepath.Dir(path) + "/.*sock*"); len(files) > 0 {
			t.Errorf("left behind: %q", files)
		}
	}
}

func TestDescriptorsThatAPeerSendsAreNotKept(t *testing.T) {
	for name, listen := range map[string]func(path string) (net.Listener, error){
		"control": func(path string) (net.Listener, error) { return Listen(path, "") },
		"users":   ListenForUsers,
	} {
		path := socketPath(t)
		l := must.Get(listen(path))(t)
		t.Run(name, func(t *testing.T) { sendDescriptor(t, path, unixsocket.Refuses()) })
		// As before Linux 6.16: reading the message closes the descriptors.
		raw := must.Get(l.(*net.UnixListener).SyscallConn())(t)
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unixsocket.PassRights, 1) })
		go func() { _ = New(&fakeService{}, quiet()).Serve(t.Context(), l) }()
		t.Run(name+", older kernel", func(t *testing.T) { sendDescriptor(t, path, false) })
	}
}

// sendDescriptor sends one end of a pipe along with a request, and checks whether it gets closed.
func sendDescriptor(t *testing.T, path string, refused bool) {
	conn := must.Get(net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"}))(t)
	defer conn.Close()
	r, w, err := os.Pipe()
	must.Do(t, err)
	defer r.Close()
	_, _, err = conn.WriteMsgUnix([]byte("GET /v1/info HTTP/1.1\r\nHost: x\r\n\r\n"), unix.UnixRights(int(w.Fd())), nil)
	w.Close()
	must.Equal(t, refused, errors.Is(err, unix.EPERM), err)
	if !refused {
		expect.NoError(t, must.Err(conn.Read(make([]byte, 1))), "no answer")
	}
	_ = r.SetReadDeadline(time.Now().Add(time.Minute))
	expect.ErrorIs(t, must.Err(r.Read(make([]byte, 1))), io.EOF, "somebody has the pipe still")
}

func TestAGroupThatDoesNotExistIsNamed(t *testing.T) {
	_, err := Listen(socketPath(t), "no-such-group")
	expect.ErrorContains(t, err, "groupadd --system no-such-group")
}

func TestOnlyTheSocketOfADeadEnforcerIsReplaced(t *testing.T) {
	path := socketPath(t)
	first := must.Get(Listen(path, ""))(t)
	expect.ErrorIs(t, must.Err(Listen(path, "")), ErrInUse)
	first.Close() // the file stays, as after SIGKILL
	must.Do(t, must.Err(os.Stat(path)), "the file is gone")
	second := must.Get(Listen(path, ""))(t)
	defer second.Close()
	conn := must.Get(net.Dial("unix", path))(t)
	conn.Close()
}

func TestASocketWhoseQueueIsFullIsNotReplaced(t *testing.T) {
	path := socketPath(t)
	l := must.Get(Listen(path, ""))(t)
	defer l.Close()
	raw, err := l.(*net.UnixListener).SyscallConn()
	must.Do(t, err)
	_ = raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 0) })
	for err == nil {
		var conn net.Conn
		if conn, err = net.Dial("unix", path); err == nil {
			defer conn.Close()
		}
	}
	must.True(t, errors.Is(err, unix.EAGAIN), err)
	expect.ErrorIs(t, must.Err(Listen(path, "")), unix.EAGAIN)
	expect.NoError(t, RemoveStale(path))
	expect.NoError(t, must.Err(os.Stat(path)), "it was removed")
}

func TestAFileInTheSocketsPlaceIsLeftAlone(t *testing.T) {
	path := socketPath(t)
	must.Do(t, os.WriteFile(path, []byte("precious"), 0o600))
	expect.Error(t, must.Err(Listen(path, "")), "it was replaced")
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Errorf("it has %q now", b)
	}
}

func TestConnectionsBeyondTheLimitWait(t *testing.T) {
	path := socketPath(t)
	inner := must.Get(Listen(path, ""))(t)
	l := limit(inner, limits{connections: connections{all: 1, others: 1, perUser: 1}})
	for range 2 {
		conn := must.Get(net.Dial("unix", path))(t)
		defer conn.Close()
	}
	first := must.Get(l.Accept())(t)
	second := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			conn.Close()
		}
		second <- err
	}()
	select {
	case <-second:
		t.Fatal("a second connection was accepted")
	case <-time.After(50 * time.Millisecond):
	}
	first.Close()
	first.Close() // the second Close must not free another place
	must.Do(t, <-second)
	l.Close()
	expect.Error(t, must.Err(l.Accept()), "accepted after Close")
}

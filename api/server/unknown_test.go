// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// connected is a process of another user that has a connection to path.
func connected(t *testing.T, path string) (exit func()) {
	t.Helper()
	child := asNobody(t, crowd+"="+path, crowd+"_COUNT=1", crowd+"_OPEN=1")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	exit = func() { in.Close(); _ = child.Wait() }
	t.Cleanup(exit)
	if said, err := bufio.NewReader(out).ReadString('\n'); said != "1 open, 0 busy\n" {
		t.Fatalf("%q, %v", said, err)
	}
	return exit
}

// accepted returns false if the next connection of a users' socket is a known host user's.
func accepted(listener net.Listener) (subordinate bool, err error) {
	l := limit(listener, userLimits.connections).(*limited)
	conn, err := l.Accept()
	if err != nil {
		return false, err
	}
	defer conn.Close()
	if subordinate = conn.(*limitedConn).subordinate; subordinate != (l.by[noUID] == 1) {
		return subordinate, errors.New("it does not count as one of those that are not known")
	}
	return subordinate, nil
}

func TestAPeerThatCannotBeLookedUpIsNoUserOfTheHost(t *testing.T) {
	for name, exits := range map[string]bool{"it is there": false, "it has exited": true} {
		t.Run(name, func(t *testing.T) {
			path := socketPath(t)
			if err := os.Chmod(path[:strings.LastIndexByte(path, '/')], 0o755); err != nil {
				t.Fatal(err)
			}
			listener, err := ListenForUsers(path)
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			exit := connected(t, path)
			if exits {
				exit()
			}
			if subordinate, err := accepted(listener); err != nil || subordinate != exits {
				t.Errorf("not known to be the host's: %v, %v; want %v", subordinate, err, exits)
			}
		})
	}
}

// A server in a pid namespace of its own sees no process outside.
func TestAPeerThatCannotBeSeenIsNoUserOfTheHost(t *testing.T) {
	const serves = "GPUSLICE_SERVES"
	if os.Getenv(serves) != "" {
		listener, err := net.FileListener(os.NewFile(3, "listener"))
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		if subordinate, err := accepted(listener); err != nil || !subordinate {
			t.Errorf("not known to be the host's: %v, %v", subordinate, err)
		}
		return
	}
	path := socketPath(t)
	if err := os.Chmod(path[:strings.LastIndexByte(path, '/')], 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := ListenForUsers(path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	file, err := listener.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	connected(t, path)
	server := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	server.Env = append(os.Environ(), serves+"=1")
	server.ExtraFiles = []*os.File{file}
	server.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if out, err := server.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// A peer without credentials must not pass for root.
func TestARequestOfAnUnknownPeerIsPaced(t *testing.T) {
	served := 0
	handler := paced(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }), perRequest)
	begun := time.Now()
	for range paceBurst + 1 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/v1/info", http.NoBody))
	}
	if took := time.Since(begun); served != paceBurst+1 || took < 100*time.Millisecond {
		t.Errorf("%d requests in %v: the last one did not wait", served, took)
	}
}

func TestAConnectionThatEndedCountsNoMore(t *testing.T) {
	l := limit(nil, connections{all: 4, others: 2, each: 1}).(*limited)
	conn, other := net.Pipe()
	defer conn.Close()
	defer other.Close()
	for range l.connections.others + 1 {
		leave, _, refusal := l.enter(conn)
		if refusal != nil {
			t.Fatal(refusal)
		}
		if _, _, refusal := l.enter(conn); refusal == nil {
			t.Fatal("the user has one too many")
		}
		leave()
	}
	if l.others != 0 || len(l.by) != 0 {
		t.Errorf("%d count, of %v", l.others, l.by)
	}
}

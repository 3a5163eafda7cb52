// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestTheSocketIsForRootAndTheGroupAlone(t *testing.T) {
	group, err := user.LookupGroupId(strconv.Itoa(os.Getgid()))
	if err != nil {
		t.Skipf("requires a group with a name: %v", err)
	}
	for name, mode := range map[string]os.FileMode{group.Name: 0o660, "": 0o600} {
		path := socketPath(t)
		l, err := Listen(path, name)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode || info.Sys().(*syscall.Stat_t).Gid != uint32(os.Getgid()) {
			t.Errorf("group %q: mode %v, group %d", name, info.Mode(), info.Sys().(*syscall.Stat_t).Gid)
		}
		if files, _ := filepath.Glob(filepath.Dir(path) + "/.*sock*"); len(files) > 0 {
			t.Errorf("left behind: %q", files)
		}
	}
}

func TestAGroupThatDoesNotExistIsNamed(t *testing.T) {
	_, err := Listen(socketPath(t), "no-such-group")
	if err == nil || !strings.Contains(err.Error(), "groupadd --system no-such-group") {
		t.Errorf("got %v", err)
	}
}

func TestADeadEnforcersSocketIsReplacedAndALivingOnesIsNot(t *testing.T) {
	path := socketPath(t)
	first, err := Listen(path, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, ""); !errors.Is(err, ErrInUse) {
		t.Errorf("got %v, want ErrInUse", err)
	}
	first.Close() // as after a SIGKILL the file stays
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the test is about a file that stays: %v", err)
	}
	second, err := Listen(path, "")
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestAFileInTheSocketsPlaceIsLeftAlone(t *testing.T) {
	path := socketPath(t)
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, ""); err == nil {
		t.Error("it was replaced")
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Errorf("it has %q now", b)
	}
}

func TestConnectionsBeyondTheLimitWait(t *testing.T) {
	path := socketPath(t)
	inner, err := Listen(path, "")
	if err != nil {
		t.Fatal(err)
	}
	l := limit(inner, connections{all: 1, others: 1, each: 1})
	for range 2 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	first, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
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
	first.Close() // twice frees one place
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := l.Accept(); err == nil {
		t.Error("accepted after Close")
	}
}

//go:build hostile

// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// sendGarbage sends invalid or unknown requests; the answer is an error or a closed connection.
func (u *user) sendGarbage() error {
	n, _ := rand.Int(rand.Reader, big.NewInt(5))
	switch n.Int64() {
	case 0:
		return u.refused("POST", "/v1/slices", []byte(`{"id":"`+strings.Repeat("x", 60<<10)+`"}`), "")
	case 1:
		return u.refused("POST", "/v1/slices", []byte(strings.Repeat("[", 60<<10)), "")
	case 2:
		return u.refused("BREW", "/v1/"+strings.Repeat("pot/", 1000), nil, "")
	case 3:
		return u.refused("DELETE", "/v1/slices/%00%ff?force=maybe&force=2", nil, "")
	}
	u.turns <- struct{}{}
	defer func() { <-u.turns }()
	conn, err := u.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	b := make([]byte, 4096)
	_, _ = rand.Read(b)
	copy(b[len(b)-4:], "\r\n\r\n")
	_, _ = conn.Write(b)
	said, err := io.ReadAll(conn)
	if err == nil && bytes.Contains(said, []byte("connections")) {
		err = errors.New("there was no place")
	}
	return ignoring(err, unix.ECONNRESET)
}

func ignoring(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

// dial waits a while for room in the kernel's queue, as a client does.
func (u *user) dial() (net.Conn, error) {
	conn, err := net.Dial("unix", u.Users)
	for begun := time.Now(); errors.Is(err, unix.EAGAIN) && time.Since(begun) < 10*time.Second; conn, err = net.Dial("unix", u.Users) {
		time.Sleep(2 * time.Millisecond)
	}
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(20 * time.Second))
	}
	return conn, err
}

func (u *user) reachOthers() error {
	if names, err := os.ReadDir(u.Slices); err == nil {
		return harmf("the user reads the names of %d slices", len(names))
	}
	if _, err := os.ReadDir(filepath.Dir(u.Control)); err != nil {
		return err
	}
	for _, pid := range u.PIDs {
		if unix.Kill(pid, unix.SIGTERM) == nil {
			return harmf("the user sent process %d a signal", pid)
		}
		_ = unix.PtraceAttach(pid)
	}
	return nil
}

func (u *user) floodOwnSession() error {
	s, _, err := u.ownSession()
	if err != nil {
		return err
	}
	c := &containerActor{socket: filepath.Join(s.Dir, "bind", api.AttachSocketName)}
	return c.sends(ledger.Request{Op: ledger.OpAttach}.Encode(), nil)
}

func (u *user) requestHostMemory() error {
	s, _, err := u.ownSession()
	if err != nil {
		return err
	}
	c := &containerActor{socket: filepath.Join(s.Dir, "bind", api.AttachSocketName)}
	return c.sends(ledger.Request{Op: ledger.OpHost, Bytes: 1 << 40}.Encode(), nil)
}

func (u *user) allocates() error {
	s, _, err := u.ownSession()
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(u.Programs, "worker"))
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+s.Library, api.DirEnv+"="+filepath.Join(s.Dir, "bind"))
	w, err := newWorker(cmd)
	if err != nil {
		return err
	}
	defer w.kill()
	if got := w.ask("context 0"); got != "ok" {
		return fmt.Errorf("a context: %s", got)
	}
	for taken := uint64(0); ; taken += 128 << 20 {
		switch got := w.ask("alloc 0 %d 0", 128<<20); {
		case got == "oom":
			w.writeLine("storm 7 100000 %d", 512<<20)
			time.Sleep(50 * time.Millisecond)
			return nil
		case taken > 1<<30:
			return harmf("a session of 1 GiB was given %d bytes", taken)
		case !strings.HasPrefix(got, "ok"):
			return fmt.Errorf("it allocates: %s", got)
		}
	}
}

// openTooMany gets one error for too many connections; further ones wait until they are closed.
func (u *user) openTooMany() error {
	var all []net.Conn
	defer func() {
		for _, conn := range all {
			conn.Close()
		}
	}()
	for range 12 {
		conn, err := u.dial()
		if err != nil {
			return err
		}
		all = append(all, conn)
		_, _ = io.WriteString(conn, "POST /v1/slices HTTP/1.1\r\nHost: ")
	}
	last := all[len(all)-1]
	line, err := bufio.NewReader(last).ReadString('\n')
	if err == nil && !strings.Contains(line, " 503 ") {
		err = fmt.Errorf("the last connection gets the answer %q", line)
	}
	time.Sleep(100 * time.Millisecond)
	return err
}

func (u *user) hangUp() error {
	var all sync.WaitGroup
	var connected atomic.Int32
	for range 16 {
		all.Go(func() {
			for range 100 {
				if conn, err := net.Dial("unix", u.Users); err == nil {
					connected.Add(1)
					conn.Close()
				}
			}
		})
	}
	all.Wait()
	if connected.Load() == 0 {
		return errors.New("none of 1,600 is connected")
	}
	return nil
}

func (u *user) readNothing() error {
	conn, err := u.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	requests := strings.Repeat("GET /v1/info HTTP/1.1\r\nHost: gpuslice\r\n\r\n", 1000)
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	if n, err := io.WriteString(conn, requests); err != nil && n < 1000 {
		return err
	}
	time.Sleep(time.Second)
	return nil
}

func (u *user) sendMuch() error {
	err := u.refused("POST", "/v1/slices", make([]byte, 8<<20), "")
	return ignoring(ignoring(err, unix.EPIPE), unix.ECONNRESET) // the server closed it
}

func (u *user) sendLongNames() error {
	return u.refused("DELETE", "/v1/slices/"+strings.Repeat("x", 255), nil, "")
}

// asEach runs do as a different user of the namespace each time, by a thread with that uid.
func (u *user) asEach(do func() error) func() error {
	var next atomic.Uint32
	return func() (err error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // never unlocked: the thread keeps the uid until it ends
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(next.Add(1)%200), ^uintptr(0)); e != 0 {
				err = e
				return
			}
			err = do()
		}()
		<-done
		return err
	}
}

func (u *user) openOne() error {
	conn, err := u.dial()
	if err != nil {
		return err
	}
	time.AfterFunc(100*time.Millisecond, func() { conn.Close() })
	_, err = io.WriteString(conn, "GET /v1/info HTTP/1.1\r\n")
	return ignoring(ignoring(err, unix.EPIPE), unix.ECONNRESET)
}

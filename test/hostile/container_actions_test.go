//go:build hostile

// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// containerActions are those of a container's root, with Docker's default capabilities.
func containerActions(victims) []action {
	c := &containerActor{socket: api.ContainerDir + "/" + api.AttachSocketName}
	return []action{
		{name: "asks for a place in the ledger", atLeast: 20, do: c.asks(ledger.Request{Op: ledger.OpAttach})},
		{name: "asks what the driver holds for it, 64 at once", atLeast: 2, pause: 100 * time.Millisecond, do: c.requestAtOnce(64, ledger.Request{Op: ledger.OpTruth})},
		{name: "names devices that there are not", atLeast: 20, do: c.requestUnknownDevice},
		{name: "sends garbage to the attach socket", atLeast: 20, do: c.sendGarbage},
		{name: "sends descriptors to the attach socket", atLeast: 100, do: c.sendDescriptors},
		{name: "connects 100 times, and says and reads nothing", atLeast: 2, pause: time.Second, do: c.connectAndWait},
		{name: "forks until it may not, each child asks for a place, and is killed", atLeast: 10, pause: 200 * time.Millisecond, do: crowd("attach")},
		{name: "forks until it may not", atLeast: 10, pause: 200 * time.Millisecond, do: crowd("fork")},
		{name: "allocates until it is refused", atLeast: 10, do: c.allocates},
		{name: "kills its own processes while they allocate", atLeast: 10, do: c.killOwnProcess},
		{name: "moves /etc away, and has a program allocate without the interceptor", atLeast: 5, pause: 2 * time.Second, do: c.hides},
		{name: "mounts, and unmounts what is bound in it", atLeast: 200, pause: 10 * time.Millisecond, do: c.mounts},
		{name: "mounts in a user namespace of its own", atLeast: 10, pause: 500 * time.Millisecond, do: c.enterNamespace},
		{name: "overwrites its ledger", atLeast: 1, last: true, do: c.overwrites},
	}
}

type containerActor struct {
	socket string
	etc    sync.RWMutex // guards /etc with the loader's preload list
}

// connect waits for a place in the queue: the container's own actions compete for it.
func (c *containerActor) connect() (conn *net.UnixConn, err error) {
	for deadline := time.Now().Add(time.Second); ; time.Sleep(100 * time.Microsecond) {
		conn, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: c.socket, Net: "unixpacket"})
		if !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) {
			break
		}
	}
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(10 * time.Second))
	}
	return conn, err
}

func answered(conn *net.UnixConn) error {
	buffer, along := make([]byte, ledger.MessageSize), make([]byte, 256)
	n, m, _, _, err := conn.ReadMsgUnix(buffer, along)
	if err != nil {
		return err
	}
	if messages, err := unix.ParseSocketControlMessage(along[:m]); err == nil {
		for i := range messages {
			fds, _ := unix.ParseUnixRights(&messages[i])
			for _, fd := range fds {
				unix.Close(fd)
			}
		}
	}
	_, err = ledger.DecodeReply(buffer[:n])
	return err
}

func (c *containerActor) asks(r ledger.Request) func() error {
	message := r.Encode()
	return func() error { return c.sends(message, nil) }
}

// sends sends a message and expects some answer.
func (c *containerActor) sends(message, along []byte) error {
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, _, err := conn.WriteMsgUnix(message, along, nil); err != nil {
		return err
	}
	return answered(conn)
}

func (c *containerActor) requestAtOnce(n int, r ledger.Request) func() error {
	return func() error {
		var all []*net.UnixConn
		defer func() {
			for _, conn := range all {
				conn.Close()
			}
		}()
		for range n {
			conn, err := c.connect()
			if err == nil {
				all = append(all, conn)
				_, err = conn.Write(r.Encode())
			}
			if err != nil {
				return err
			}
		}
		for _, conn := range all {
			if err := answered(conn); err != nil {
				return err
			}
		}
		return nil
	}
}

func (c *containerActor) requestUnknownDevice() error {
	r := ledger.Request{Op: ledger.OpDevice, Bytes: 1 << 40}
	_, _ = rand.Read(r.UUID[:])
	return c.sends(r.Encode(), nil)
}

func (c *containerActor) sendGarbage() error {
	message := make([]byte, 200)
	_, _ = rand.Read(message)
	return c.sends(message[:1+int(message[0])%len(message)], nil)
}

func (c *containerActor) sendDescriptors() error {
	files := make([]int, 0, 16)
	for range cap(files) {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		files = append(files, fd)
	}
	err := c.sends(ledger.Request{Op: ledger.OpTruth}.Encode(), unix.UnixRights(files...))
	if errors.Is(err, unix.EPERM) { // since Linux 6.16 the sender gets the error
		return nil
	}
	return err
}

func (c *containerActor) connectAndWait() error {
	var all []*net.UnixConn
	defer func() {
		for _, conn := range all {
			conn.Close()
		}
	}()
	for i := range 100 {
		conn, err := c.connect()
		if err != nil {
			return err
		}
		all = append(all, conn)
		if i%2 == 0 { // requests without reading answers
			_, _ = conn.Write(ledger.Request{Op: ledger.OpAttach}.Encode())
		}
	}
	time.Sleep(500 * time.Millisecond)
	return nil
}

func crowd(what string) func() error {
	return func() error {
		out, err := exec.Command("/programs/crowd", what).Output()
		if err != nil {
			return err
		}
		if n, err := strconv.Atoi(strings.TrimSpace(string(out))); err != nil || n < 8 {
			return fmt.Errorf("it made %q processes", out)
		}
		return nil
	}
}

func (c *containerActor) cuda() (*worker, error) {
	c.etc.RLock()
	defer c.etc.RUnlock()
	return newWorker(exec.Command("/programs/worker"))
}

func (c *containerActor) allocates() error {
	w, err := c.cuda()
	if err != nil {
		return err
	}
	defer w.kill()
	if got := w.ask("context 0"); got != "ok" && got != "oom" {
		return fmt.Errorf("a context: %s", got)
	}
	refusals := 0
	for refusals < 50 { // the container's other processes use part of 2 GiB
		switch got := w.ask("alloc 0 %d %d", 64<<20, refusals%2); got {
		case "oom":
			refusals++
		default:
			if !strings.HasPrefix(got, "ok") {
				return fmt.Errorf("it allocates: %s", got)
			}
		}
	}
	return nil
}

func (c *containerActor) killOwnProcess() error {
	w, err := c.cuda()
	if err != nil {
		return err
	}
	if got := w.ask("context 0"); got != "ok" && got != "oom" {
		w.kill()
		return fmt.Errorf("a context: %s", got)
	}
	w.writeLine("storm %d 100000 %d", time.Now().UnixNano(), 256<<20)
	time.Sleep(20 * time.Millisecond)
	w.kill()
	return nil
}

func (c *containerActor) hides() error {
	w, err := func() (*worker, error) {
		c.etc.Lock()
		defer c.etc.Unlock()
		if err := errors.Join(os.Rename("/etc", "/etc.away"), os.Mkdir("/etc", 0o755)); err != nil {
			return nil, err
		}
		w, err := newWorker(exec.Command("/programs/worker"))
		return w, errors.Join(err, os.Remove("/etc"), os.Rename("/etc.away", "/etc"))
	}()
	if err != nil {
		return err
	}
	defer w.kill()
	if got := w.ask("context 0"); got != "ok" {
		return fmt.Errorf("a context without the interceptor: %s", got)
	}
	if got := w.ask("alloc 0 %d 0", 3<<30); !strings.HasPrefix(got, "ok") { // over the quota of 2 GiB
		return fmt.Errorf("memory without the interceptor: %s", got)
	}
	time.Sleep(2 * time.Second)
	return nil
}

func (c *containerActor) mounts() error {
	for _, target := range []string{"/etc", "/etc/ld.so.preload", api.ContainerDir, c.socket} {
		if err := unix.Mount("/tmp", target, "", unix.MS_BIND, ""); err == nil {
			return harmf("it mounted something on %s", target)
		}
		if err := unix.Unmount(target, unix.MNT_DETACH); err == nil {
			return harmf("it unmounted %s", target)
		}
	}
	if os.Remove(c.socket) == nil || os.WriteFile(api.ContainerDir+"/"+api.LibraryName, nil, 0) == nil {
		return harmf("it changed what is in %s", api.ContainerDir)
	}
	return nil
}

func (c *containerActor) enterNamespace() error {
	cmd := exec.Command("/bin/sh", "-c", "mount -t tmpfs none /etc && mount -t tmpfs none /tmp")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: 0, Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: 0, Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

func (c *containerActor) overwrites() error {
	w, err := c.cuda()
	if err != nil {
		return err
	}
	defer w.kill()
	// The first process has a place in the ledger; later ones get none.
	if got := w.ask("context 0"); got != "ok" {
		return fmt.Errorf("a context: %s", got)
	}
	if got := w.ask("scribble %d 100000", time.Now().UnixNano()); got != "ok 100000" {
		return fmt.Errorf("it writes: %s", got)
	}
	return nil
}

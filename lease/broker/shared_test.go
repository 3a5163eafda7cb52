// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/vmm/cuda"
)

// mapped counts this process's mappings of shared memory.
func mapped(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "memfd:gpuslice-lease")
}

func TestFailedSharedMemoryIsNotCounted(t *testing.T) {
	const bytes = 1 << 20
	s := serve(t, Config{SharedBytes: bytes, Clients: 1})
	before := mapped(t)
	greet := func() string {
		t.Helper()
		connection, err := net.Dial("unix", s.path+"-shared")
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		if _, err := fmt.Fprintf(connection, "token %d\n", bytes); err != nil {
			t.Fatal(err)
		}
		answer, err := bufio.NewReader(connection).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	s.do(func() { s.device.fails["Pin"] = failing("cuMemHostRegister", cuda.OutOfMemory) })
	for range 3 { // the second would not fit if the first were still counted
		if answer := greet(); !strings.HasPrefix(answer, "error ") || strings.Contains(answer, "do not fit") {
			t.Errorf("the driver pins nothing: %q", answer)
		}
	}
	if s.mutex.Lock(); s.sharedBytes != 0 {
		t.Errorf("%d bytes are counted", s.sharedBytes)
	}
	s.mutex.Unlock()
	if now := mapped(t); now > before { // those of a former test may go at any time
		t.Errorf("%d mappings, want %d as before", now, before)
	}
	s.do(func() { delete(s.device.fails, "Pin") })
	if answer := greet(); !strings.HasPrefix(answer, "ok ") {
		t.Errorf("when the driver pins again: %q", answer)
	}
}

func TestSharedMemoryThatCannotBeMadeIsNotCounted(t *testing.T) {
	s := serve(t, Config{SharedBytes: 1 << 63, Clients: 1})
	if _, err := s.sharedMemory("token 9223372036854775808"); err == nil || s.sharedBytes != 0 {
		t.Errorf("got %v, %d bytes are counted", err, s.sharedBytes)
	}
	for greeting, want := range map[string]string{"other 1": "token", "token 0": "number", "token x": "number", "token": "number"} {
		if _, err := s.sharedMemory(greeting); err == nil || !strings.Contains(err.Error(), want) || s.sharedBytes != 0 {
			t.Errorf("%q: got %v, %d bytes are counted", greeting, err, s.sharedBytes)
		}
	}
}

// A client that keeps the descriptor keeps none of the broker's memory.
func TestSharedMemoryIsFreedThoughTheClientKeepsIt(t *testing.T) {
	const bytes = 1 << 20
	s := serve(t, Config{SharedBytes: bytes, Clients: 1})
	connection, file := s.takeShared(t, bytes)
	defer file.Close()
	if n := pages(t, file); n == 0 {
		t.Fatal("the memory has no pages")
	}
	connection.Close()
	await.That(t, "its pages are freed", func() bool { return pages(t, file) == 0 })
}

// A client may still copy an answer from there.
func TestSharedMemorySurvivesTheSession(t *testing.T) {
	const bytes = 1 << 20
	s := serve(t, Config{SharedBytes: bytes, Clients: 1})
	connection, file := s.takeShared(t, bytes)
	defer connection.Close()
	defer file.Close()
	had := pages(t, file)
	s.Stop()
	await.Value(t, "the broker ends", s.code)
	if n := pages(t, file); n != had {
		t.Errorf("%d of %d blocks are left", n, had)
	}
}

func (s *serving) takeShared(t *testing.T, bytes int) (net.Conn, *os.File) {
	t.Helper()
	connection, err := net.Dial("unix", s.path+"-shared")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(connection, "token %d\n", bytes); err != nil {
		t.Fatal(err)
	}
	line, control := make([]byte, 512), make([]byte, unix.CmsgSpace(4))
	n, controlled, _, _, err := connection.(*net.UnixConn).ReadMsgUnix(line, control)
	if err != nil || !strings.HasPrefix(string(line[:n]), "ok ") {
		t.Fatalf("%q, %v", line[:n], err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:controlled])
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	return connection, os.NewFile(uintptr(fds[0]), "shared memory")
}

// pages returns a file's size in 512-byte blocks.
func pages(t *testing.T, file *os.File) int64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Blocks
}

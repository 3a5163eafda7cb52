// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/killpoint"
)

const maxGreeting = 128 // bytes: token and size

// serveShared gives clients shared memory: one piece per connection, for as long as that is open.
func (b *Broker) serveShared(listener net.Listener) {
	slots := make(chan struct{}, 4*b.config.Clients) // per client: its own, and the session's for long transfers
	for {
		slots <- struct{}{}
		connection, err := listener.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			defer func() { _ = connection.Close(); <-slots }()
			b.share(connection)
		}()
	}
}

func (b *Broker) share(connection net.Conn) {
	_ = connection.SetDeadline(time.Now().Add(greetTimeout))
	line, err := bufio.NewReader(io.LimitReader(connection, maxGreeting)).ReadString('\n')
	if err != nil {
		return // no answer: the request is incomplete
	}
	_ = connection.SetDeadline(time.Time{})
	s, err := b.sharedMemory(strings.TrimSuffix(line, "\n"))
	if err != nil {
		_, _ = fmt.Fprintf(connection, "error %v\n", err)
		return
	}
	defer b.unshare(s)
	err = sendDescriptor(connection, fmt.Sprintf("ok %d\n", s.number), s.file)
	_ = s.file.Close() // the mapping remains
	killpoint.Pass("broker.handed")
	if err != nil {
		return
	}
	closed := make(chan struct{})
	go func() {
		_, _ = connection.Read(make([]byte, 1)) // only EOF is expected
		close(closed)
	}()
	select {
	case <-closed:
	case <-b.ended:
	}
}

type shared struct {
	number uint64
	memory []byte
	file   *os.File
}

func (b *Broker) sharedMemory(greeting string) (*shared, error) {
	token, size, _ := strings.Cut(greeting, " ")
	if !b.knows(token) {
		return nil, errors.New("that is not this lease's token")
	}
	bytes, err := strconv.ParseUint(size, 10, 64)
	if err != nil || bytes == 0 {
		return nil, fmt.Errorf("%q is no number of bytes: TOKEN, a space, a number from 1 on", size)
	}
	if err := b.takeShared(bytes); err != nil {
		return nil, err
	}
	s, err := newShared(bytes)
	if err != nil {
		b.giveShared(bytes)
		return nil, err
	}
	if !b.do(func() { s.number, err = b.engine.share(s.memory) }) {
		return nil, errors.New("the session has ended") // the mapping ends with the process
	}
	if err != nil {
		s.unmap()
		_ = s.file.Close()
		b.giveShared(bytes)
		return nil, err
	}
	killpoint.Pass("broker.shared")
	return s, nil
}

func (b *Broker) takeShared(bytes uint64) error {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if bytes > b.config.SharedBytes-b.sharedBytes {
		return fmt.Errorf("%d bytes of shared memory do not fit: the session has %d of %d", bytes, b.sharedBytes, b.config.SharedBytes)
	}
	b.sharedBytes += bytes
	return nil
}

func (b *Broker) giveShared(bytes uint64) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.sharedBytes -= bytes
}

func (b *Broker) unshare(s *shared) {
	if b.do(func() { b.engine.unshare(s.number) }) {
		killpoint.Pass("broker.unshared")
		s.unmap()
		b.giveShared(uint64(len(s.memory)))
	}
}

// unmap frees the pages, though the client may keep the descriptor: pages that it then touches are charged to its own cgroup. At the end of a
// session the pages stay: a client may still copy what it was answered, and must not read zeros.
func (s *shared) unmap() {
	_ = unix.Madvise(s.memory, unix.MADV_REMOVE)
	_ = unix.Munmap(s.memory)
}

// newShared creates memory that clients cannot shrink. Its pages are populated now, to charge them to the broker's cgroup.
func newShared(bytes uint64) (*shared, error) {
	fd, err := unix.MemfdCreate("gpuslice-lease", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("gpuslice-lease", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("create shared memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "shared memory")
	err = file.Truncate(int64(bytes))
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	var memory []byte
	if err == nil {
		memory, err = unix.Mmap(fd, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create shared memory: %w", err), file.Close())
	}
	return &shared{memory: memory, file: file}, nil
}

func sendDescriptor(connection net.Conn, line string, file *os.File) error {
	socket, ok := connection.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("%T passes no descriptors", connection)
	}
	_, _, err := socket.WriteMsgUnix([]byte(line), unix.UnixRights(int(file.Fd())), nil)
	return err
}

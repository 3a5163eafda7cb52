// SPDX-License-Identifier: Apache-2.0

package hostmem

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/unixsocket"
)

const (
	// holderWord is the first argument of a holder. The idle time and the number of cgroups to enter follow.
	holderWord = "host-memory-holder"
	// readyFD is the descriptor to report readiness or an error on. The cgroups' files follow.
	readyFD = 3
	// SocketName is the name of the socket in the working directory.
	SocketName = "holder.sock"
	isReady    = "ready"
)

// IsHolder reports whether args start the program as holder.
func IsHolder(args []string) bool { return len(args) == 4 && args[1] == holderWord }

// Hold runs the holder, and returns the exit code.
func Hold(args []string) int {
	ready := os.NewFile(readyFD, "ready")
	h, listener, err := begin(args)
	if err != nil {
		fmt.Fprint(ready, err)
		return 1
	}
	fmt.Fprint(ready, isReady)
	ready.Close()
	h.serve(listener)
	return 0
}

type holder struct {
	idle time.Duration // the holder ends after holding nothing, without connections, for this time
	end  func()

	deaths *process.Watcher

	mu    sync.Mutex // guards the fields below
	files map[Process]*file
	conns int
}

type file struct {
	process *process.Handle

	mu sync.Mutex // held during operations
	fd int        // -1 once the process has ended
}

func begin(args []string) (*holder, *net.UnixListener, error) {
	idle, err := time.ParseDuration(args[2])
	if err != nil {
		return nil, nil, err
	}
	cgroups, err := strconv.Atoi(args[3])
	if err != nil {
		return nil, nil, err
	}
	for i := range cgroups { // before any memory is allocated
		procs := os.NewFile(uintptr(readyFD+1+i), "cgroup.procs")
		if _, err := procs.WriteString("0"); err != nil {
			return nil, nil, fmt.Errorf("enter the cgroup: %w", err)
		}
		procs.Close()
	}
	// If the cgroup lacks room in spite of the enforcer's check, the allocation has to fail, and not kill this process. This
	// needs CAP_SYS_RESOURCE.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT)
	unix.Umask(0o177)
	if err := unix.Unlink(SocketName); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, nil, &os.PathError{Op: "unlink", Path: SocketName, Err: err}
	}
	l, err := unixsocket.Listen("unixpacket", SocketName)
	if err != nil {
		return nil, nil, err
	}
	h := &holder{idle: idle, files: make(map[Process]*file)}
	if h.deaths, err = process.NewWatcher(); err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false) // the path may belong to another holder by then
	h.end = sync.OnceFunc(func() { _ = l.Close() })
	return h, l, nil
}

// serve accepts connections until the holder was idle for long enough.
func (h *holder) serve(listener *net.UnixListener) {
	go h.endIdle()
	for {
		conn, err := listener.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(100 * time.Millisecond) // out of descriptors
		default:
			go h.serveConn(conn)
		}
	}
}

func (h *holder) endIdle() {
	used := time.Now()
	for ; ; time.Sleep(h.idle / 8) {
		h.mu.Lock()
		connected := h.conns > 0
		h.mu.Unlock()
		if connected || h.charged() > 0 {
			used = time.Now()
		} else if time.Since(used) > h.idle {
			h.end()
			return
		}
	}
}

func (h *holder) serveConn(conn *net.UnixConn) {
	defer conn.Close()
	peer, err := unixsocket.Ask(conn, unixsocket.Credentials)
	if err != nil || int(peer.Uid) != os.Geteuid() {
		return
	}
	h.count(1)
	defer h.count(-1)
	for {
		var buffer [requestSize + 1]byte
		n, err := conn.Read(buffer[:])
		if err != nil {
			return
		}
		r, err := decodeRequest(buffer[:n])
		if err != nil {
			return
		}
		charged, fd, err := h.do(r)
		a := reply{bytes: charged}
		if err != nil {
			a.failed = unix.EIO
			_ = errors.As(err, &a.failed)
		}
		var rights []byte
		if fd >= 0 {
			rights = unix.UnixRights(fd)
		}
		_, _, err = conn.WriteMsgUnix(a.encode(), rights, nil)
		if fd >= 0 {
			unix.Close(fd)
		}
		if err != nil {
			return
		}
	}
}

func (h *holder) count(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns += n
}

// do carries out a request. The caller has to close fd unless it is -1.
func (h *holder) do(r request) (charged uint64, fd int, err error) {
	fd = -1
	if r.op == opBytes && r.of == (Process{}) {
		return h.charged(), fd, nil
	}
	f, err := h.of(r)
	if f == nil || err != nil {
		return 0, fd, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fd < 0 {
		return 0, fd, unix.ESRCH
	}
	switch r.op {
	case opGrow:
		killpoint.Pass("holder.grow")
		if err = grow(f.fd, r.from, r.to); err == nil {
			fd, err = unix.FcntlInt(uintptr(f.fd), unix.F_DUPFD_CLOEXEC, 0)
		}
		killpoint.Pass("holder.grown")
	case opTrim:
		err = punch(f.fd, r.from, r.to)
	}
	return f.charged(), fd, err
}

// of returns the file of a process, or nil. It creates the file for opGrow.
func (h *holder) of(r request) (*file, error) {
	h.mu.Lock()
	f := h.files[r.of]
	h.mu.Unlock()
	if f != nil || r.op != opGrow {
		return f, nil
	}
	p, err := process.Again(r.of.PID, r.of.Start)
	if err != nil {
		return nil, unix.ESRCH
	}
	fd, err := newFile(r.size)
	if err != nil {
		p.Close()
		return nil, err
	}
	f = &file{process: p, fd: fd}
	h.mu.Lock()
	defer h.mu.Unlock()
	if other := h.files[r.of]; other != nil { // created concurrently
		p.Close()
		unix.Close(fd)
		return other, nil
	}
	if err := h.deaths.Watch(p, func() { go h.forget(r.of, f) }); err != nil {
		p.Close()
		unix.Close(fd)
		return nil, err
	}
	h.files[r.of] = f
	return f, nil
}

// forget empties and closes the file of a process that has ended. Other processes may still have its descriptor.
func (h *holder) forget(of Process, f *file) {
	h.mu.Lock()
	delete(h.files, of)
	h.mu.Unlock()
	h.deaths.Unwatch(f.process)
	f.process.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = punch(f.fd, 0, maxSize)
	unix.Close(f.fd)
	f.fd = -1
}

func (h *holder) charged() (sum uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.files {
		sum += f.charged()
	}
	return sum
}

// charged returns the allocated bytes of the file. Fewer may be charged to the holder, if another process touched some first.
func (f *file) charged() uint64 {
	var st unix.Stat_t
	if unix.Fstat(f.fd, &st) != nil {
		return 0
	}
	const block = 512
	return uint64(st.Blocks) * block
}

// newFile returns a memfd of fixed size, sealed against any change of its seals.
func newFile(size uint64) (int, error) {
	const flags, noexecSeal = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING, 8 // MFD_NOEXEC_SEAL, Linux 6.3
	fd, err := unix.MemfdCreate("gpuslice-host", flags|noexecSeal)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("gpuslice-host", flags)
	}
	if err != nil {
		return -1, err
	}
	err = unix.Ftruncate(fd, int64(size))
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// grow has a range charged to this process's cgroup. A failure undoes the allocation, even if this process gets killed. Where
// shmem gives huge pages on madvise only, it maps, advises and touches the range instead.
func grow(fd int, from, to uint64) error {
	if from == to {
		return nil
	}
	var err error = unix.EINVAL
	if enabled, _ := os.ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled"); bytes.Contains(enabled, []byte("[advise]")) {
		err = populate(fd, from, to)
	}
	if errors.Is(err, unix.EINVAL) { // not supported before Linux 5.14
		err = ignoringEINTR(func() error { return unix.Fallocate(fd, 0, int64(from), int64(to-from)) })
	}
	if err != nil {
		_ = punch(fd, from, to)
	}
	return err
}

func populate(fd int, from, to uint64) error {
	const populateWrite = 23 // MADV_POPULATE_WRITE
	memory, err := unix.Mmap(fd, int64(from), int(to-from), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(memory) }()
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE)
	return ignoringEINTR(func() error { return unix.Madvise(memory, populateWrite) })
}

// punch releases a range, up to the end of the file at most.
func punch(fd int, from, to uint64) error {
	if from == to {
		return nil
	}
	return ignoringEINTR(func() error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(from), int64(to-from))
	})
}

// ignoringEINTR repeats do after signals that Go's runtime sends to its threads.
func ignoringEINTR(do func() error) (err error) {
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = do()
	}
	return err
}

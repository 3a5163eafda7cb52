// SPDX-License-Identifier: Apache-2.0

package hostmem

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/unixsocket"
)

const (
	idle = time.Minute
	// patience limits the wait for one answer. It is shorter than the timeout of the process that needs the memory (ASK_SECONDS
	// in attach_client.h).
	patience = 4 * time.Second
	// tryPace is the minimum time between a failure and the next attempt.
	tryPace = time.Second
)

// Options configure a Keeper.
type Options struct {
	RunDir string // directory of the holder's socket; only root may write there
	Cgroup string // relative to the root of the hierarchy with the memory controller
	Log    *slog.Logger
	// Idle is the time after which an unused holder ends; 0 is a minute.
	Idle time.Duration
}

// Keeper is the enforcer's side: it finds the holder, or starts one. It is safe for concurrent use; calls run one at a time, and
// can take as long as patience.
type Keeper struct {
	options Options
	host    *cgroup.Host

	turn *guard.Turn // guards the fields below
	// conn stays open: the holder does not end while it is.
	conn    *net.UnixConn
	pid     int
	failed  error // error of the last attempt to get a connection
	retryAt time.Time

	said atomic.Pointer[error] // copy of failed, readable without waiting
}

// New returns a Keeper. It starts no holder yet.
func New(o Options) (*Keeper, error) {
	if o.Idle == 0 {
		o.Idle = idle
	}
	host, err := cgroup.Open("/proc")
	if err != nil {
		return nil, err
	}
	return &Keeper{options: o, host: host, turn: guard.NewTurn()}, nil
}

// Begin finds the holder, or starts one. A started one is fresh: it knows none of the memory of an earlier holder.
func (k *Keeper) Begin() (fresh bool, err error) {
	k.turn.Wait()
	defer k.turn.Give()
	return k.connect()
}

// PID returns the pid of the holder; granted memory is charged to its cgroup.
func (k *Keeper) PID() (int, error) {
	if _, err := k.ask(request{op: opBytes}); err != nil { // it is alive
		return 0, err
	}
	k.turn.Wait()
	defer k.turn.Give()
	return k.pid, nil
}

// Grow has a range of a process's memory charged, and returns the descriptor of its memfd. size is the maximum that the process
// can ever get.
func (k *Keeper) Grow(p Process, size, from, to uint64) (*os.File, error) {
	a, err := k.ask(request{op: opGrow, of: p, size: size, from: from, to: to})
	if err == nil && a.file == nil {
		err = errMessage
	}
	return a.file, err
}

// Trim releases a range that is no longer used.
func (k *Keeper) Trim(p Process, from, to uint64) error {
	_, err := k.ask(request{op: opTrim, of: p, from: from, to: to})
	return err
}

// Bytes returns the charged bytes of a process, or of all for the zero Process.
func (k *Keeper) Bytes(p Process) (uint64, error) {
	a, err := k.ask(request{op: opBytes, of: p})
	return a.bytes, err
}

// Used returns the bytes charged to the cgroup.
func (k *Keeper) Used() (uint64, error) {
	places, err := k.host.Named(k.options.Cgroup)
	if err != nil {
		return 0, err
	}
	bytes, _, err := cgroup.MemoryUsed(places[0])
	return bytes, err
}

// Err returns the error of the last attempt to reach the holder, or nil. It does not block.
func (k *Keeper) Err() error {
	if err := k.said.Load(); err != nil {
		return *err
	}
	return nil
}

// Close disconnects from the holder, which stays for the next enforcer.
func (k *Keeper) Close() error {
	k.turn.Wait()
	defer k.turn.Give()
	k.hangUp()
	return nil
}

type answered struct {
	reply
	file *os.File
}

// ask repeats the request once if the holder has died, so every operation has to be idempotent.
func (k *Keeper) ask(r request) (a answered, err error) {
	guard.MayWait("the holder of host memory")
	k.turn.Wait()
	defer k.turn.Give()
	for tries := 0; ; tries++ {
		if _, err := k.connect(); err != nil {
			return a, err
		}
		a, err = exchange(k.conn, r)
		if err == nil {
			break
		}
		k.hangUp()
		if tries > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			return a, fmt.Errorf("the holder of host memory does not answer: %w", err)
		}
	}
	if a.failed != 0 {
		if a.file != nil {
			a.file.Close()
		}
		return answered{}, fmt.Errorf("the holder of host memory, in cgroup %s: %w", k.options.Cgroup, a.failed)
	}
	return a, nil
}

func exchange(conn *net.UnixConn, r request) (a answered, err error) {
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(r.encode()); err != nil {
		return a, err
	}
	var buffer [replySize + 1]byte
	var control [64]byte
	n, nc, _, _, err := conn.ReadMsgUnix(buffer[:], control[:])
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return a, err
	}
	fds := descriptors(control[:nc])
	if len(fds) > 0 {
		a.file = os.NewFile(uintptr(fds[0]), "host memory")
		for _, fd := range fds[1:] {
			unix.Close(fd)
		}
	}
	if a.reply, err = decodeReply(buffer[:n]); err != nil && a.file != nil {
		a.file.Close()
		a.file = nil
	}
	return a, err
}

func descriptors(control []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		if rights, err := unix.ParseUnixRights(&m); err == nil {
			fds = append(fds, rights...)
		}
	}
	return fds
}

func (k *Keeper) hangUp() {
	if k.conn != nil {
		k.conn.Close()
		k.conn = nil
	}
}

// connect requires the turn.
func (k *Keeper) connect() (fresh bool, err error) {
	if k.conn != nil {
		return false, nil
	}
	if now := time.Now(); now.Before(k.retryAt) {
		return false, k.failed
	}
	fresh, err = k.find()
	if err != nil {
		k.failed, k.retryAt = fmt.Errorf("host memory cannot be allocated in cgroup %s: %w", k.options.Cgroup, err), time.Now().Add(tryPace)
		k.said.Store(&k.failed)
		return false, k.failed
	}
	k.failed, k.retryAt = nil, time.Time{}
	k.said.Store(nil)
	return fresh, nil
}

func (k *Keeper) find() (fresh bool, err error) {
	places, err := k.host.Named(k.options.Cgroup)
	if err != nil {
		return false, err
	}
	if conn, pid, err := dial(k.options.RunDir); err == nil {
		m, err := k.host.Membership(pid)
		if _, speaks := exchange(conn, request{op: opBytes}); speaks == nil && err == nil && m.Is(places[0]) {
			k.conn, k.pid = conn, pid
			return false, nil
		}
		conn.Close() // it has another configuration or version, and ends when its memory is no longer used
	}
	if err := k.start(places); err != nil {
		return false, err
	}
	conn, pid, err := dial(k.options.RunDir)
	if err != nil {
		return false, err
	}
	k.conn, k.pid = conn, pid
	k.options.Log.Info("the holder of host memory was started", "pid", pid, "cgroup", places[0].Dir())
	return true, nil
}

// dial connects to the holder, and checks that the peer runs as this process's user. Only that user may write to the directory.
func dial(dir string) (*net.UnixConn, int, error) {
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // the address of a Unix socket has only 108 bytes
	if err != nil {
		return nil, 0, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(at)
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: fmt.Sprintf("/proc/self/fd/%d/%s", at, SocketName)})
	if err != nil {
		return nil, 0, err
	}
	peer, err := unixsocket.Ask(conn, unixsocket.Credentials)
	if err == nil && int(peer.Uid) != os.Geteuid() {
		err = fmt.Errorf("%s in %s is uid %d's", SocketName, dir, peer.Uid)
	}
	if err != nil {
		conn.Close()
		return nil, 0, err
	}
	return conn, int(peer.Pid), nil
}

// start creates the cgroup if needed, and starts a holder that enters it.
func (k *Keeper) start(places []cgroup.Path) error {
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	ready, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	files = append(files, tell)
	for i, p := range places {
		procs, err := makeCgroup(p, i == 0)
		if err != nil {
			return err
		}
		files = append(files, procs)
	}
	// The holder inherits only the environment.
	cmd := exec.Command("/proc/self/exe", holderWord, k.options.Idle.String(), strconv.Itoa(len(places)))
	cmd.Args[0], cmd.Dir, cmd.ExtraFiles = os.Args[0], k.options.RunDir, files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the holder: %w", err)
	}
	go func() { _ = cmd.Wait() }() // reaps it if it ends first; otherwise it outlives this process
	tell.Close()
	_ = ready.SetReadDeadline(time.Now().Add(patience))
	said, err := io.ReadAll(io.LimitReader(ready, 1000))
	if string(said) != isReady {
		_ = cmd.Process.Kill()
		return errors.Join(fmt.Errorf("the holder does not start: %s", said), err)
	}
	return nil
}

// makeCgroup creates the cgroup if it is missing, and changes no existing one. It returns the file used to enter it.
func makeCgroup(p cgroup.Path, charged bool) (*os.File, error) {
	dir := p.Mount
	for _, name := range strings.Split(strings.Trim(p.Rel, "/"), "/") {
		next := filepath.Join(dir, name)
		err := os.Mkdir(next, 0o755)
		if err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("make the cgroup: %w", err)
		}
		if charged && p.V2 {
			if err := handDown(dir); err != nil {
				return nil, err
			}
		}
		dir = next
	}
	if charged {
		if _, has, err := cgroup.MemoryUsed(p); err != nil || !has {
			return nil, errors.Join(fmt.Errorf("%s has no memory controller", dir), err)
		}
	}
	return os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_WRONLY, 0)
}

// handDown enables the memory controller for the children of a cgroup that has it.
func handDown(dir string) error {
	read := func(name string) []string {
		text, _ := os.ReadFile(filepath.Join(dir, name))
		return strings.Fields(string(text))
	}
	const control = "cgroup.subtree_control"
	if !slices.Contains(read("cgroup.controllers"), "memory") || slices.Contains(read(control), "memory") {
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, control), []byte("+memory"), 0); err != nil {
		return fmt.Errorf("enable the memory controller for the cgroup's children: %w", err)
	}
	return nil
}

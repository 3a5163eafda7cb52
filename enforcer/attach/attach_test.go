// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/unixsocket"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

func anybody(*process.Handle) bool { return true }

// echo replies with the peer's pid.
func echo(peer *process.Handle, _ bool, r ledger.Request) (ledger.Reply, []*os.File, bool) {
	defer peer.Close()
	return ledger.Reply{Lane: uint32(peer.PID), Device: r.Device}, nil, true
}

func serveAnyone(t testing.TB, handler Handler) string {
	t.Helper()
	_, dir := serveMembers(t, anybody, handler)
	return dir
}

func serveMembers(t testing.TB, member Member, handler Handler) (s *Server, dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gs-")
	must.Do(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	s = must.Get(Serve(Place{Dir: dir, Mode: 0o600, UID: -1, GID: -1}, NewPace(), member, handler, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(func() { s.Close() })
	return s, dir
}

func dial(t testing.TB, dir string) *net.UnixConn {
	t.Helper()
	for {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(dir, api.AttachSocketName), Net: "unixpacket"})
		if errors.Is(err, unix.EAGAIN) { // the backlog is full; a blocking connect(2) would wait
			time.Sleep(time.Millisecond)
			continue
		}
		must.Do(t, err)
		return conn
	}
}

func ask(t testing.TB, conn *net.UnixConn, message, rights []byte) ledger.Reply {
	t.Helper()
	if _, _, err := conn.WriteMsgUnix(message, rights, nil); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(await.Patience))
	var b [128]byte
	n := must.Get(conn.Read(b[:]))(t)
	return must.Get(ledger.DecodeReply(b[:n]))(t)
}

func TestPeerIdentityComesFromTheKernel(t *testing.T) {
	conn := dial(t, serveAnyone(t, echo))
	defer conn.Close()
	if r := ask(t, conn, ledger.Request{Op: ledger.OpTruth, Device: 5}.Encode(), nil); r.Status != ledger.StatusOK || int(r.Lane) != os.Getpid() || r.Device != 5 {
		t.Fatalf("%+v", r)
	}
}

func TestAMalformedMessageIsAnsweredAsSuch(t *testing.T) {
	good := ledger.Request{Op: ledger.OpAttach}.Encode()
	dir := serveAnyone(t, func(peer *process.Handle, _ bool, _ ledger.Request) (ledger.Reply, []*os.File, bool) {
		t.Error("the message was handled as a request")
		return echo(peer, true, ledger.Request{})
	})
	for name, message := range map[string][]byte{
		"short": good[:63], "long": append(bytes.Clone(good), 0), "huge": make([]byte, 60000),
		"magic": mutate(good, 0), "version": mutate(good, 4), "operation": mutate(good, 7), "layout": mutate(good, 12), "reserved": mutate(good, 63),
	} {
		conn := dial(t, dir)
		expect.Equal(t, ask(t, conn, message, nil).Status, ledger.StatusMalformed, name)
		conn.Close()
	}
}

func mutate(message []byte, at int) []byte {
	m := bytes.Clone(message)
	m[at] ^= 0x40
	return m
}

func descriptors(t testing.TB) int {
	t.Helper()
	entries := must.Get(os.ReadDir("/proc/self/fd"))(t)
	return len(entries)
}

func TestDescriptorsThatAPeerSendsAreNotKept(t *testing.T) {
	s, dir := serveMembers(t, anybody, echo)
	request := ledger.Request{Op: ledger.OpAttach}.Encode()
	before := descriptors(t)
	if unixsocket.Refuses() {
		conn := dial(t, dir)
		if _, _, err := conn.WriteMsgUnix(request, unix.UnixRights(0, 1, 2), nil); !errors.Is(err, unix.EPERM) {
			t.Errorf("they were sent: %v", err)
		}
		ask(t, conn, request, nil)
		conn.Close()
	}
	// Before Linux 6.16 the kernel drops descriptors when the message is read.
	raw := must.Get(s.listener.SyscallConn())(t)
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unixsocket.PassRights, 1) })
	for range 50 {
		conn := dial(t, dir)
		ask(t, conn, request, unix.UnixRights(0, 1, 2))
		conn.Close()
	}
	await.That(t, "no descriptor is left", func() bool { return descriptors(t) <= before })
}

// A peer may disconnect, or stay silent, at any step of the exchange.
func TestADisconnectedPeerLeavesNoDescriptor(t *testing.T) {
	dir := serveAnyone(t, echo)
	request := ledger.Request{Op: ledger.OpAttach}.Encode()
	before := descriptors(t)
	for range 20 {
		dial(t, dir).Close() // sends nothing

		half := dial(t, dir)
		_, _ = half.Write(request[:32])
		half.Close()

		deaf := dial(t, dir) // does not wait for the reply
		_, _ = deaf.Write(request)
		deaf.Close()

		dumb := dial(t, dir) // has closed its sending side
		_ = dumb.CloseWrite()
		_ = dumb.SetReadDeadline(time.Now().Add(await.Patience))
		if n, err := dumb.Read(make([]byte, 128)); n != 0 || err == nil {
			t.Fatalf("an empty request got a reply of %d bytes", n)
		}
		dumb.Close()
	}
	await.That(t, "no descriptor is left", func() bool { return descriptors(t) <= before })
	conn := dial(t, dir)
	defer conn.Close()
	ask(t, conn, request, nil)
}

func TestFloodOnOneSocketDelaysNoOther(t *testing.T) {
	message := ledger.Request{Op: ledger.OpAttach}.Encode()
	answered, all := make(chan struct{}), make(chan struct{}, InFlight)
	flooded, other := serveAnyone(t, func(peer *process.Handle, _ bool, r ledger.Request) (ledger.Reply, []*os.File, bool) {
		all <- struct{}{}
		<-answered
		return echo(peer, true, r)
	}), serveAnyone(t, echo)
	end := sync.OnceFunc(func() { close(answered) })
	defer end()
	for range InFlight + backlog/2 {
		conn := dial(t, flooded)
		defer conn.Close()
		must.Get(conn.Write(message))(t)
	}
	await.That(t, "all slots are taken", func() bool { return len(all) == InFlight })
	conn := dial(t, other)
	defer conn.Close()
	ask(t, conn, message, nil)
	end()
	go func() {
		for range all { // connections in the backlog
		}
	}()
	// The first one is served as well, once the silent connections have timed out.
	for range InFlight {
		conn := dial(t, flooded)
		defer conn.Close()
	}
	late := dial(t, flooded)
	defer late.Close()
	ask(t, late, message, nil)
}

func TestNoMoreThanInFlightAreServedAtOnce(t *testing.T) {
	var now, most atomic.Int64
	dir := serveAnyone(t, func(peer *process.Handle, _ bool, r ledger.Request) (ledger.Reply, []*os.File, bool) {
		n := now.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		time.Sleep(5 * time.Millisecond)
		now.Add(-1)
		return echo(peer, true, r)
	})
	done := make(chan struct{})
	const clients = 3 * InFlight
	for range clients {
		go func() {
			defer func() { done <- struct{}{} }()
			conn := dial(t, dir)
			defer conn.Close()
			ask(t, conn, ledger.Request{Op: ledger.OpAttach}.Encode(), nil)
		}()
	}
	for range clients {
		<-done
	}
	must.True(t, most.Load() <= InFlight, most.Load(), "at once")
}

func TestListeningAgainReplacesTheSocketOfADeadEnforcer(t *testing.T) {
	dir := serveAnyone(t, echo)
	again := must.Get(Serve(Place{Dir: dir, Mode: 0o666, UID: -1, GID: -1}, NewPace(), anybody, echo, slog.New(slog.DiscardHandler)))(t)
	defer again.Close()
	info := must.Get(os.Lstat(filepath.Join(dir, api.AttachSocketName)))(t)
	must.Equal(t, info.Mode().Perm(), 0o666)
	conn := dial(t, dir)
	defer conn.Close()
	ask(t, conn, ledger.Request{Op: ledger.OpAttach}.Encode(), nil)
}

func TestALinkInPlaceOfTheDirectoryIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	must.Do(t, os.Symlink(dir, link))
	if _, err := Serve(Place{Dir: link, Mode: 0o666, UID: -1, GID: -1}, NewPace(), anybody, echo, slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("it was")
	}
}

// TestMain also runs the children of the tests.
func TestMain(m *testing.M) {
	if dir := os.Getenv("ATTACH_HAMMER"); dir != "" {
		hammer(dir)
	}
	os.Exit(m.Run())
}

// FuzzAttach sends arbitrary messages. The server replies or closes the connection, leaks nothing, and keeps serving.
func FuzzAttach(f *testing.F) {
	good := ledger.Request{Op: ledger.OpDevice, UUID: [16]byte{1}, Bytes: 1 << 36}.Encode()
	f.Add(good, false)
	f.Add(good[:10], true)
	f.Add([]byte{}, true)
	f.Add(bytes.Repeat(good, 3), false)
	f.Add(mutate(good, 59), false) // a reserved field
	dir := serveAnyone(f, echo)
	f.Fuzz(func(t *testing.T, message []byte, rights bool) {
		message = message[:min(len(message), 1<<16)]
		conn := dial(t, dir)
		defer conn.Close()
		var oob []byte
		if rights {
			oob = unix.UnixRights(0)
		}
		if _, _, err := conn.WriteMsgUnix(message, oob, nil); err != nil {
			return
		}
		_ = conn.CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(await.Patience))
		var b [128]byte
		n, err := conn.Read(b[:])
		if err != nil || n == 0 {
			return
		}
		if _, err := ledger.DecodeReply(b[:n]); err != nil {
			t.Fatalf("message %x got the reply %x: %v", message, b[:n], err)
		}
	})
}

// A member is cached until it exits.
func TestExitedMemberIsLookedUpAgain(t *testing.T) {
	lookups, isMember := 0, true
	s, _ := serveMembers(t, func(*process.Handle) bool { lookups++; return isMember }, echo)
	cmd := exec.Command("sleep", "1000")
	must.Start(t, cmd)
	p := must.Get(process.Open(cmd.Process.Pid))(t)
	defer p.Close()
	s.members[p.Identity] = time.Now().Add(time.Hour)
	if !s.ask(p) || lookups != 0 {
		t.Fatalf("checked a member %d times", lookups)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	isMember = false
	if s.ask(p) || lookups != 1 {
		t.Errorf("an exited process is a member after %d checks", lookups)
	}
	if _, kept := s.members[p.Identity]; kept {
		t.Error("an exited process is cached as a member")
	}
}

func TestFilesAreClosedAfterTheReply(t *testing.T) {
	read, file, err := os.Pipe()
	must.Do(t, err)
	defer read.Close()
	conn := dial(t, serveAnyone(t, func(peer *process.Handle, _ bool, _ ledger.Request) (ledger.Reply, []*os.File, bool) {
		peer.Close()
		return ledger.Reply{}, []*os.File{file}, true
	}))
	ask(t, conn, ledger.Request{Op: ledger.OpAttach}.Encode(), nil) // drops the reply
	conn.Close()
	must.Do(t, read.SetReadDeadline(time.Now().Add(await.Patience)))
	expect.ErrorIs(t, must.Err(read.Read(make([]byte, 1))), io.EOF, "the file is still open")
	if err := file.Close(); !errors.Is(err, os.ErrClosed) { // not by a finalizer
		t.Error(err)
	}
}

func TestSocketBelongsToItsOwnerFromTheStart(t *testing.T) {
	needs.Root(t)
	dir := t.TempDir()
	const uid, gid = 5001, 5002
	listener := must.Get(listen(Place{Dir: dir, Mode: 0o640, UID: uid, GID: gid}))(t)
	defer listener.Close()
	var st unix.Stat_t
	must.Do(t, unix.Stat(filepath.Join(dir, api.AttachSocketName), &st))
	if st.Uid != uid || st.Gid != gid || st.Mode != unix.S_IFSOCK|0o640 {
		t.Errorf("uid %d, gid %d, mode %o", st.Uid, st.Gid, st.Mode)
	}
}

func TestConnectionServesOneRequest(t *testing.T) {
	var asked atomic.Int64
	conn := dial(t, serveAnyone(t, func(peer *process.Handle, _ bool, r ledger.Request) (ledger.Reply, []*os.File, bool) {
		asked.Add(1)
		return echo(peer, true, r)
	}))
	defer conn.Close()
	question := ledger.Request{Op: ledger.OpTruth}.Encode()
	for range 8 { // the server may have closed the connection after the first
		_, _ = conn.Write(question)
	}
	_ = conn.SetReadDeadline(time.Now().Add(await.Patience))
	answers := 0
	for {
		n, err := conn.Read(make([]byte, 128))
		must.True(t, !errors.Is(err, os.ErrDeadlineExceeded), "it stays open")
		if err != nil && !errors.Is(err, io.EOF) || n == 0 {
			break
		}
		answers++
	}
	if answers > 1 || asked.Load() != 1 {
		t.Errorf("%d requests were handled, but %d got replies", asked.Load(), answers)
	}
}

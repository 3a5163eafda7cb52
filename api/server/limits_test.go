// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/pace"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

const nobody = 65534

// crowd is set in a copy of this program that runs as another user. It opens as many connections as it can, prints how many
// stayed open, and holds them until its input ends.
const crowd = "GPUSLICE_CROWD"

func TestMain(m *testing.M) {
	if path := os.Getenv(crowd); path != "" {
		holdMany(path)
		return
	}
	os.Exit(m.Run())
}

func holdMany(path string) {
	n, _ := strconv.Atoi(os.Getenv(crowd + "_COUNT"))
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = limit.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	}
	conns := make([]net.Conn, 0, n)
	failed := 0
	for len(conns) < n {
		conn, err := net.Dial("unix", path)
		if errors.Is(err, unix.EAGAIN) {
			time.Sleep(time.Millisecond)
			continue
		}
		if err != nil {
			if failed++; failed > 100 {
				fmt.Println("cannot connect:", err)
				return
			}
			continue
		}
		conns = append(conns, conn)
	}
	// Rejected connections get an answer, which may take some time.
	expected, _ := strconv.Atoi(os.Getenv(crowd + "_OPEN"))
	open, busy := conns, 0
	for deadline := time.Now().Add(await.Patience); len(open) > expected && time.Now().Before(deadline); {
		var still []net.Conn
		for _, conn := range open {
			_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
			answer := make([]byte, 1024)
			n, err := conn.Read(answer)
			switch {
			case strings.Contains(string(answer[:n]), `"busy"`):
				busy++
			case errors.Is(err, os.ErrDeadlineExceeded):
				still = append(still, conn)
			}
		}
		open = still
	}
	fmt.Printf("%d open, %d busy\n", len(open), busy)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// serveWith serves on a socket open to all users, with these limits.
func serveWith(t *testing.T, s Service, l limits) (path string) {
	t.Helper()
	return serveHandler(t, Handler(s, quiet()), l)
}

func serveHandler(t *testing.T, h http.Handler, l limits) (path string) {
	t.Helper()
	path, l.lookUp = socketPath(t), await.Patience
	must.Do(t, os.Chmod(filepath.Dir(path), 0o755))
	listener := must.Get(ListenForUsers(path))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- newServer(h, l, quiet()).Serve(ctx, listener) }()
	t.Cleanup(func() { cancel(); <-done })
	return path
}

func answers200(t *testing.T, path string) {
	t.Helper()
	r, err := httpClient(path).Get("http://gpuslice/v1/info")
	must.Do(t, err)
	r.Body.Close()
	expect.Equal(t, r.StatusCode, 200, "status")
}

// asNobody returns a command that runs a copy of this program as user nobody.
func asNobody(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	needs.Root(t)
	program := must.Get(os.ReadFile(os.Args[0]))(t)
	dir := must.Get(os.MkdirTemp("/tmp", "gs"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	copied := filepath.Join(dir, "crowd")
	must.Do(t, errors.Join(os.Chmod(dir, 0o755), os.WriteFile(copied, program, 0o755)))
	cmd := exec.Command(copied)
	cmd.Env = append(os.Environ(), env...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries := must.Get(os.ReadDir("/proc/self/fd"))(t)
	return len(entries)
}

func TestTenThousandIdleConnectionsOfAUserBlockNoOther(t *testing.T) {
	l := controlLimits
	l.header = time.Minute // keeps them open during the test
	path := serveWith(t, &fakeService{}, l)
	const connections = 10_000
	child := asNobody(t, crowd+"="+path, fmt.Sprintf("%s_COUNT=%d", crowd, connections), fmt.Sprintf("%s_OPEN=%d", crowd, l.perUser))
	in := must.Get(child.StdinPipe())(t)
	out := must.Get(child.StdoutPipe())(t)
	before := openFiles(t)
	must.Do(t, child.Start())
	defer func() { in.Close(); _ = child.Wait() }()
	answers200(t, path) // answered during the slow request
	said := must.Get(bufio.NewReader(out).ReadString('\n'))(t)
	var open, busy int
	must.Do(t, must.Err(fmt.Sscanf(said, "%d open, %d busy", &open, &busy)), said)
	if open != l.perUser || busy != connections-l.perUser {
		t.Errorf("%d connections stayed open and %d were refused: want %d and %d", open, busy, l.perUser, connections-l.perUser)
	}
	if n := openFiles(t); n > before+l.perUser+8 {
		t.Errorf("%d descriptors, %d before", n, before)
	}
	for range 100 {
		answers200(t, path)
	}
}

func TestClosedConnectionsFreeAUsersPlaces(t *testing.T) {
	path := serveWith(t, &fakeService{}, userLimits)
	program := asNobody(t)
	for range 3 {
		await.That(t, "earlier connections have closed", func() bool {
			child := exec.Command(program.Path)
			child.Dir, child.SysProcAttr, child.Stdin = program.Dir, program.SysProcAttr, strings.NewReader("")
			child.Env = append(program.Env, crowd+"="+path, fmt.Sprintf("%s_COUNT=%d", crowd, userLimits.perUser), fmt.Sprintf("%s_OPEN=%d", crowd, userLimits.perUser))
			return string(must.Get(child.Output())(t)) == fmt.Sprintf("%d open, 0 busy\n", userLimits.perUser)
		})
	}
}

func TestASlowClientIsDisconnected(t *testing.T) {
	l := controlLimits
	l.header, l.read, l.idle = 50*time.Millisecond, 100*time.Millisecond, 50*time.Millisecond
	l.all = 1 // each needs the place of the previous one
	f := withEvents(1, 1)
	path := serveWith(t, f, l)
	head := "POST /v1/slices HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
	hungUpOn := func(name string, says func(io.Writer)) {
		t.Helper()
		conn := must.Get(net.Dial("unix", path))(t)
		defer conn.Close()
		go says(conn)
		_ = conn.SetReadDeadline(time.Now().Add(await.Patience))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: it waits", name)
		}
	}
	for name, says := range map[string]func(io.Writer){
		"nothing":             func(io.Writer) {},
		"half a head":         func(w io.Writer) { _, _ = io.WriteString(w, head) },
		"a byte now and then": func(w io.Writer) { writeSlowly(w, head) },
		"half a body":         func(w io.Writer) { _, _ = io.WriteString(w, head+"\r\n{") },
		"a body bit by bit":   func(w io.Writer) { _, _ = io.WriteString(w, head+"\r\n"); writeSlowly(w, strings.Repeat(" ", 1000)) },
		"no body of a move": func(w io.Writer) {
			_, _ = io.WriteString(w, strings.Replace(head, "slices", "slices/s/suspend", 1)+"\r\n")
		},
		"no body of a follow": func(w io.Writer) {
			_, _ = io.WriteString(w, strings.Replace(head, "POST /v1/slices", "GET /v1/events?follow=true", 1)+"\r\n")
		},
		"one request, no more": func(w io.Writer) { _, _ = io.WriteString(w, "GET /v1/info HTTP/1.1\r\nHost: x\r\n\r\n") },
	} {
		hungUpOn(name, says)
	}
	hungUpOn("another one", func(io.Writer) {})
	expect.Equal(t, len(f.moved), 0, f.moved, "without the body of the request")
}

// writeSlowly writes one byte at a time until the reader disconnects.
func writeSlowly(w io.Writer, text string) {
	for i := range text {
		if _, err := io.WriteString(w, text[i:i+1]); err != nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestAHeadThatIsTooLargeIsRefused(t *testing.T) {
	path := serveWith(t, &fakeService{}, controlLimits)
	for size, want := range map[int]string{maxHeader: " 200 ", maxHeader + 1: " 431 ", 2 * maxHeader: " 431 "} {
		const before, after = "GET /v1/info HTTP/1.0\r\nX: ", "\r\n\r\n"
		conn := must.Get(net.Dial("unix", path))(t)
		defer conn.Close()
		_, _ = io.WriteString(conn, before+strings.Repeat("x", size-len(before)-len(after))+after)
		expect.Contains(t, must.Get(bufio.NewReader(conn).ReadString('\n'))(t), want, "a head of", size, "bytes")
	}
}

func TestFollowersThatNeverReadAreDisconnected(t *testing.T) {
	f := withEvents(1, 4096)
	l := controlLimits
	l.write = 50 * time.Millisecond
	path := serveWith(t, f, l)
	for range maxStreams {
		conn := must.Get(net.Dial("unix", path))(t)
		defer conn.Close()
		_, _ = io.WriteString(conn, "GET /v1/events?follow=true HTTP/1.0\r\n\r\n")
	}
	await.That(t, "all follow", func() bool { return f.followers.Load() == maxStreams })
	long := strings.Repeat("x", 1000)
	for range 4000 { // more than their sockets buffer
		f.log.Append("c1", api.Event{Kind: api.EventRefused, Tenant: long})
	}
	await.That(t, "a place of theirs is free", func() bool {
		r, err := httpClient(path).Head("http://gpuslice/v1/events")
		if err != nil { // the follower was too slow
			return false
		}
		r.Body.Close()
		return r.StatusCode == 200
	})
}

// connects makes n connections as a user, and returns once they are in the kernel's queue.
func connects(t *testing.T, path string, uid uint32, n int) {
	t.Helper()
	child := asNobody(t, crowd+"="+path, fmt.Sprintf("%s_COUNT=%d", crowd, n), fmt.Sprintf("%s_OPEN=%d", crowd, n))
	child.SysProcAttr.Credential.Uid = uid
	in := must.Get(child.StdinPipe())(t)
	out := must.Get(child.StdoutPipe())(t)
	must.Do(t, child.Start())
	t.Cleanup(func() { in.Close(); _ = child.Wait() })
	if said, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasSuffix(said, " 0 busy\n") {
		t.Fatalf("uid %d: %q, %v", uid, said, err)
	}
}

// paceOne returns a listener for users with a pace of one connection in all, and counts its pauses.
func paceOne(t *testing.T) (l *limited, path string, rests *int) {
	t.Helper()
	path = socketPath(t)
	must.Do(t, os.Chmod(filepath.Dir(path), 0o755))
	inner := must.Get(ListenForUsers(path))(t)
	t.Cleanup(func() { inner.Close() })
	must.Do(t, inner.(*net.UnixListener).SetDeadline(time.Now().Add(await.Patience)))
	l, rests = limit(inner, userLimits).(*limited), new(int)
	l.paces, l.lookUp = &pace.Users{Burst: 1}, await.Patience
	l.pause = func() { *rests++ }
	return l, path, rests
}

func (l *limited) accepts(t *testing.T, uid uint32) {
	t.Helper()
	conn := must.Get(l.Accept())(t, "none of uid", uid, "is accepted")
	t.Cleanup(func() { conn.Close() })
	if got := conn.(*limitedConn).counts; got != uid {
		t.Fatalf("a connection of uid %d is accepted, want %d", got, uid)
	}
}

func TestAFloodOfOneUserDelaysNoConnectionOfAnother(t *testing.T) {
	l, path, rests := paceOne(t)
	connects(t, path, nobody, usersQueue)
	connects(t, path, 1, 1) // which each host knows
	l.accepts(t, nobody)
	l.accepts(t, 1)
	if *rests != 0 || l.rejected != usersQueue-1 {
		t.Errorf("uid 1 waited for %d pauses and %d connections, want 0 and %d", *rests, l.rejected, usersQueue-1)
	}
}

func TestRejectedConnectionsAreFewBetweenTwoPauses(t *testing.T) {
	l, path, rests := paceOne(t)
	for round := range 4 {
		connects(t, path, nobody, usersQueue/2)
		connects(t, path, uint32(1+round), 1)
		if round == 0 {
			l.accepts(t, nobody)
		}
		l.accepts(t, uint32(1+round))
		if want := l.rejected / restAfter; *rests != want {
			t.Errorf("%d pauses after %d rejections, want %d", *rests, l.rejected, want)
		}
	}
	expect.True(t, *rests != 0, "no pause after", l.rejected, "rejections")
}

func TestAUserThatWaitsForItsAnswersIsWithinThePaceOfConnections(t *testing.T) {
	if p := connectionPaces(userLimits); p.PerSecond*perRequest < userLimits.pace || p.Burst*perRequest < int(paceBurst*userLimits.pace)+userLimits.perUser {
		t.Errorf("%v connections a second after %d, and %v KiB of requests after %v", p.PerSecond, p.Burst, userLimits.pace, paceBurst*userLimits.pace)
	}
}

// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// hammer sends requests to dir's socket until it is killed, as a process of a container may.
func hammer(dir string) {
	message := ledger.Request{Op: ledger.OpAttach}.Encode()
	for {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(dir, api.AttachSocketName), Net: "unixpacket"})
		if err != nil {
			time.Sleep(time.Millisecond) // the backlog is full
			continue
		}
		_, _ = conn.Write(message)
		_, _ = conn.Read(make([]byte, 128))
		conn.Close()
	}
}

// While 64 processes flood one slice's socket, each request on another socket gets a reply, and the flood gets no more than the rate.
func TestFloodOnOneSliceIsBoundedAndDelaysNoOther(t *testing.T) {
	var flood atomic.Int64
	flooded := serveAnyone(t, func(peer *process.Handle, _ bool, r ledger.Request) (ledger.Reply, []*os.File, bool) {
		flood.Add(1)
		return echo(peer, true, r)
	})
	other := serveAnyone(t, echo)
	began := time.Now()
	for range 64 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "ATTACH_HAMMER="+flooded)
		must.Start(t, child)
	}
	// Ask until the flood has used up its burst, and at least 200 times.
	asked := 0
	for deadline := began.Add(time.Minute); time.Now().Before(deadline) && (flood.Load() < int64(Burst+Rate) || asked < 200); asked++ {
		conn := dial(t, other)
		must.Equal(t, ask(t, conn, ledger.Request{Op: ledger.OpTruth, Device: uint32(asked)}.Encode(), nil).Device, uint32(asked), "device")
		conn.Close()
	}
	n := flood.Load() // before the clock is read, so that the bound holds
	took := time.Since(began)
	if allowed := int64(Burst) + int64(took/(time.Second/Rate)) + InFlight; n > allowed {
		t.Errorf("the flood got %d replies in %v, want at most %d", n, took, allowed)
	}
	t.Logf("in %v the flood got %d replies, and the other slice all of its %d", took, flood.Load(), asked)
}

// Any number of peers causes one walk of the process tree at a time.
func TestPeersAreLookedUpOneAtATime(t *testing.T) {
	var now, answered atomic.Int64
	_, dir := serveMembers(t, func(*process.Handle) bool {
		if n := now.Add(1); n > 1 {
			t.Errorf("%d at a time", n)
		}
		time.Sleep(time.Millisecond) // like a walk of a deep tree
		now.Add(-1)
		return false
	}, func(peer *process.Handle, member bool, r ledger.Request) (ledger.Reply, []*os.File, bool) {
		expect.True(t, !member, "a stranger is taken for a member")
		answered.Add(1)
		return echo(peer, member, r)
	})
	var conns []*net.UnixConn
	message := ledger.Request{Op: ledger.OpAttach}.Encode()
	for range InFlight {
		conn := dial(t, dir)
		defer conn.Close()
		must.Get(conn.Write(message))(t)
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if n, err := conn.Read(make([]byte, 128)); err != nil || n == 0 {
			t.Fatalf("no answer: %d, %v", n, err)
		}
	}
	expect.Equal(t, answered.Load(), InFlight, "were answered")
}

// The attach socket rejects other protocols, above all the control API.
func TestTheAttachSocketDoesNotSpeakTheControlAPI(t *testing.T) {
	dir := serveAnyone(t, func(peer *process.Handle, _ bool, _ ledger.Request) (ledger.Reply, []*os.File, bool) {
		t.Error("the message was handled as a request")
		return echo(peer, true, ledger.Request{})
	})
	for _, verb := range []string{
		"GET /v1/slices HTTP/1.0\r\n\r\n",
		"DELETE /v1/slices/x?force=true HTTP/1.0\r\nHost: gpuslice\r\n\r\n",
		fmt.Sprintf("%-*s", ledger.MessageSize, "POST /v1/slices HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"), // of a request's length
	} {
		conn := dial(t, dir)
		expect.Equal(t, ask(t, conn, []byte(verb), nil).Status, ledger.StatusMalformed, verb)
		conn.Close()
	}
	// The socket refuses a stream, which HTTP needs.
	if conn, err := net.Dial("unix", filepath.Join(dir, api.AttachSocketName)); err == nil {
		conn.Close()
		t.Error("the socket accepts a stream")
	}
}

// Without free descriptors the server accepts no connection, and it recovers.
func TestServerRecoversFromDescriptorExhaustion(t *testing.T) {
	if os.Getenv("ATTACH_EXHAUSTED") == "" { // a process of its own, since the test lowers RLIMIT_NOFILE
		child := exec.Command(os.Args[0], "-test.run=^TestServerRecoversFromDescriptorExhaustion$")
		child.Env = append(os.Environ(), "ATTACH_EXHAUSTED=1")
		must.Output(child.CombinedOutput())(t)
		return
	}
	dir := serveAnyone(t, echo)
	conn := dial(t, dir) // connects before the descriptors are exhausted
	defer conn.Close()
	ask(t, conn, ledger.Request{Op: ledger.OpAttach}.Encode(), nil)
	late := dial(t, dir)
	defer late.Close()
	var before unix.Rlimit
	must.Do(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	must.Do(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: before.Max}))
	var taken []*os.File
	for {
		file, err := os.Open("/dev/null")
		if err != nil {
			break
		}
		taken = append(taken, file)
	}
	expect.Error(t, must.Err(os.ReadDir("/proc/"+strconv.Itoa(os.Getpid())+"/fd")), "a descriptor is left")
	time.Sleep(300 * time.Millisecond) // time for a few failed attempts
	for _, file := range taken {
		file.Close()
	}
	again := dial(t, dir)
	defer again.Close()
	for _, c := range []*net.UnixConn{late, again} {
		ask(t, c, ledger.Request{Op: ledger.OpAttach}.Encode(), nil)
	}
}

// Any other process is checked each time, since it may have become a member.
func TestMembershipIsCachedForMemberFor(t *testing.T) {
	var looked atomic.Int64
	var isMember atomic.Bool
	_, dir := serveMembers(t, func(*process.Handle) bool { looked.Add(1); return isMember.Load() },
		func(peer *process.Handle, member bool, r ledger.Request) (ledger.Reply, []*os.File, bool) {
			expect.Equal(t, member, isMember.Load(), "the member argument of the handler")
			return echo(peer, member, r)
		})
	asks := func() {
		conn := dial(t, dir)
		defer conn.Close()
		ask(t, conn, ledger.Request{Op: ledger.OpTruth}.Encode(), nil)
	}
	for range 3 {
		asks()
	}
	expect.Equal(t, looked.Load(), 3, "checks of a process that is no member")
	isMember.Store(true)
	began := time.Now()
	for range 50 {
		asks()
	}
	if n, allowed := looked.Load()-3, int64(time.Since(began)/memberFor)+1; n > allowed {
		t.Errorf("a member was checked %d times, want at most %d", n, allowed)
	}
}

// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// alone waits until the session has a single client.
func alone(t *testing.T, s *lease.Session) {
	t.Helper()
	for until := time.Now().Add(patience); must(s.Stats(t.Context()))(t).GetClients() != 1; {
		if time.Now().After(until) {
			t.Fatal("the place of a client that is gone is not given back")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestClientCannotShrinkSharedMemory(t *testing.T) {
	b := startBroker(t)
	s := b.open(t)
	ctx := t.Context()
	token := strings.TrimSpace(string(must(os.ReadFile(b.tokenFile))(t)))
	const size = 1 << 20
	connection := must(net.Dial("unix", filepath.Join(filepath.Dir(b.tokenFile), "shared.sock")))(t).(*net.UnixConn)
	defer func() { _ = connection.Close() }()
	_ = must(fmt.Fprintf(connection, "%s %d\n", token, size))(t)
	line, control := make([]byte, 512), make([]byte, unix.CmsgSpace(4))
	n, controlled, _, _, err := connection.ReadMsgUnix(line, control)
	ok(t, err)
	messages := must(unix.ParseSocketControlMessage(control[:controlled]))(t)
	if len(messages) != 1 {
		t.Fatalf("the broker sent no memory: %q", line[:n])
	}
	fd := must(unix.ParseUnixRights(&messages[0]))(t)[0]
	defer func() { _ = unix.Close(fd) }()
	for _, length := range []int64{0, 1, size - 1, size + 1, 1 << 40} {
		if err := unix.Ftruncate(fd, length); err == nil {
			t.Errorf("it has %d bytes now", length)
		}
	}
	for _, seal := range []int{unix.F_SEAL_WRITE, unix.F_SEAL_FUTURE_WRITE} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal); err == nil {
			t.Errorf("it is sealed by %#x now", seal)
		}
	}
	// Punched pages read as zeros.
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size); err != nil {
		t.Logf("no hole: %v", err)
	}
	var number uint64
	if _, err := fmt.Sscanf(string(line[:n]), "ok %d", &number); err != nil {
		t.Fatal(err)
	}
	connected := must(grpc.NewClient(b.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(2*size))))(t)
	defer func() { _ = connected.Close() }()
	stream := must(leasepb.NewSessionClient(connected).Work(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)))(t)
	ask := func(r *leasepb.Request) *leasepb.Reply {
		t.Helper()
		ok(t, stream.Send(&leasepb.Requests{Requests: []*leasepb.Request{r}}))
		reply := must(stream.Recv())(t).GetReplies()[0]
		if reply.GetFailure() != nil {
			t.Fatal(reply.GetFailure())
		}
		return reply
	}
	buffer := ask(&leasepb.Request{Operation: &leasepb.Request_MemAlloc{MemAlloc: &leasepb.MemAlloc{Bytes: size}}}).GetMemAlloc().GetHandle()
	ask(&leasepb.Request{Operation: &leasepb.Request_MemSet{MemSet: &leasepb.MemSet{Handle: buffer, Bytes: size, Value: 7}}})
	ask(&leasepb.Request{Operation: &leasepb.Request_MemWrite{MemWrite: &leasepb.MemWrite{
		Handle: buffer, Source: &leasepb.MemWrite_Shared{Shared: &leasepb.Range{Memory: number, Bytes: size}},
	}}})
	got := ask(&leasepb.Request{Operation: &leasepb.Request_MemRead{MemRead: &leasepb.MemRead{Handle: buffer, Destination: &leasepb.MemRead_Bytes{Bytes: size}}}})
	if !bytes.Equal(got.GetMemRead().GetData(), make([]byte, size)) {
		t.Error("what was never written is not zero")
	}
	// An empty token file does not end an open session.
	ok(t, os.Truncate(b.tokenFile, 0))
	ok(t, s.Sync(ctx))
	if _, err := lease.Open(ctx, b.address, b.tokenFile); err == nil {
		t.Error("no token opens the session")
	}
}

func TestKilledClientLeaksNothing(t *testing.T) {
	b := startBroker(t)
	s := b.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dying := rawStream(ctx, t, b)
	ok(t, dying.Send(&leasepb.Requests{Requests: []*leasepb.Request{{Operation: &leasepb.Request_MemAlloc{MemAlloc: &leasepb.MemAlloc{Bytes: 1 << 20}}}}}))
	if failure := must(dying.Recv())(t).GetReplies()[0].GetFailure(); failure != nil {
		t.Fatal(failure)
	}
	cancel()
	alone(t, s)
	if stats := must(s.Stats(t.Context()))(t); stats.GetBuffers() != 1 || stats.GetAllocated() != 1<<20 {
		t.Errorf("%v", stats) // the remaining buffer belongs to the session
	}
	other := must(s.Alloc(t.Context(), vram-1<<20))(t)
	ok(t, other.Set(t.Context(), 0, 1, 1))
	ok(t, s.Sync(t.Context()))
}

func TestTruncatedStreamsHarmNoOtherClient(t *testing.T) {
	b := startBroker(t)
	s := b.open(t)
	buffer := must(s.Alloc(t.Context(), 1<<20))(t)
	ok(t, buffer.Set(t.Context(), 0, 1<<20, 9))
	token := strings.TrimSpace(string(must(os.ReadFile(b.tokenFile))(t)))
	cuts := 0
	for n := 0; n < 40; n++ {
		// The connection fails after some bytes, without gRPC's knowledge.
		dial := func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := net.Dial("unix", strings.TrimPrefix(b.address, "unix:"))
			return &cut{Conn: conn, left: 100 + n*n*120}, err
		}
		connection := must(grpc.NewClient("passthrough:///session", grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
		stream, err := leasepb.NewSessionClient(connection).Work(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token))
		for err == nil {
			err = stream.Send(&leasepb.Requests{Requests: []*leasepb.Request{{Operation: &leasepb.Request_MemWrite{MemWrite: &leasepb.MemWrite{
				Handle: 99, Source: &leasepb.MemWrite_Data{Data: make([]byte, 64<<10)},
			}}}}})
			cuts++
		}
		_ = connection.Close()
	}
	if cuts < 40 {
		t.Errorf("only %d messages were begun", cuts)
	}
	alone(t, s)
	got := make([]byte, 1<<20)
	ok(t, buffer.Read(t.Context(), 0, got))
	if !bytes.Equal(got, bytes.Repeat([]byte{9}, 1<<20)) {
		t.Error("another client's buffer was written")
	}
}

// cut is a connection that closes after left bytes were written.
type cut struct {
	net.Conn
	left int
}

func (c *cut) Write(p []byte) (int, error) {
	if len(p) <= c.left {
		c.left -= len(p)
		return c.Conn.Write(p)
	}
	n, err := c.Conn.Write(p[:c.left])
	c.left = 0
	_ = c.Close()
	if err == nil {
		err = net.ErrClosed
	}
	return n, err
}

func TestTenThousandConnectionsDelayClientsBriefly(t *testing.T) {
	b := startBroker(t, "--clients", "2")
	s := b.open(t)
	var idle []net.Conn
	closeAll := func() {
		for _, connection := range idle {
			_ = connection.Close()
		}
		idle = nil
	}
	defer closeAll()
	for i := range 10000 {
		name := []string{"session.sock", "shared.sock"}[i%2]
		connection, err := net.DialTimeout("unix", filepath.Join(filepath.Dir(b.tokenFile), name), time.Second)
		if err != nil { // the kernel's queue is full
			closeAll()
			continue
		}
		if idle = append(idle, connection); len(idle) > 400 {
			closeAll()
		}
		if i%1000 == 0 {
			ok(t, s.Sync(t.Context()))
		}
	}
	closeAll()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	again := must(lease.Open(ctx, b.address, b.tokenFile))(t)
	ok(t, again.Sync(ctx))
	ok(t, again.Close())
	shared := must(s.Share(ctx, 4096))(t)
	ok(t, shared.Close())
}

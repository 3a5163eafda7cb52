// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/test/await"
)

const (
	vram     = 64 << 20
	patience = await.Patience // for steps that take milliseconds
)

const program = `.version 7.0
.target sm_50
.address_size 64
.visible .entry nothing()
{
	ret;
}
`

// variables is a module with a variable in each space.
const variables = `.version 7.0
.target sm_50
.address_size 64
.visible .const .align 4 .f32 factor = 0f40000000;
.visible .global .align 4 .u32 count[4];
.visible .entry scale(.param .u64 data)
{
	.reg .f32 %f<4>;
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [data];
	ld.global.f32 %f1, [%rd1];
	ld.const.f32 %f2, [factor];
	mul.f32 %f3, %f1, %f2;
	st.global.f32 [%rd1], %f3;
	ret;
}
`

func TestASessionIsWorkedInFromBeginningToEnd(t *testing.T) {
	b := startBroker(t)
	s := b.open(t)
	ctx := t.Context()
	first := must(s.Alloc(ctx, 10<<20))(t)
	data := make([]byte, 10<<20) // more than one message
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	if n, err := first.WriteAt(data, 0); n != len(data) || err != nil {
		t.Fatal(n, err)
	}
	second := must(s.Alloc(ctx, 4<<20))(t)
	ok(t, second.Copy(ctx, 1000, first, 5, 3<<20))
	ok(t, second.Set(ctx, 0, 1000, 0xab))
	want := append(bytes.Repeat([]byte{0xab}, 1000), data[5:5+3<<20]...)
	want = append(want, make([]byte, 4<<20-len(want))...)
	got := make([]byte, 4<<20)
	if n, err := second.ReadAt(got, 0); n != len(got) || err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, %v, equal: %v", n, err, bytes.Equal(got, want))
	}
	if read := must(io.ReadAll(io.NewSectionReader(first, 0, math.MaxInt64)))(t); !bytes.Equal(read, data) {
		t.Error("read to the end, it has other bytes")
	}
	m := must(s.Load(ctx, []byte(program)))(t)
	for range 5000 { // more than may be in flight
		ok(t, m.Launch(ctx, "nothing", lease.Shape{Grid: lease.Dim{X: 4}, Block: lease.Dim{X: 32}}))
	}
	ok(t, s.Sync(ctx))
	stats := must(s.Stats(ctx))(t)
	if stats.GetVram() != vram || stats.GetAllocated() != 14<<20 || stats.GetBuffers() != 2 || stats.GetModules() != 1 || stats.GetClients() != 1 ||
		stats.GetLaunches() != 5000 || stats.GetLaunchFailures() != 0 || stats.GetSyncs() != 1 || stats.GetWritten() != 10<<20 || stats.GetRead() != 14<<20 {
		t.Errorf("%v", stats)
	}
	out := must(s.Submit(ctx, lease.Submission{
		Image:    []byte(program),
		Buffers:  []lease.SubmittedBuffer{{Size: 8, Data: []byte("abc"), Out: true}, {Size: 100}},
		Launches: []lease.SubmittedLaunch{{Kernel: "nothing"}},
	}))(t)
	if len(out) != 1 || string(out[0]) != "abc\x00\x00\x00\x00\x00" {
		t.Errorf("%q", out)
	}
	ok(t, m.Unload(ctx))
	ok(t, first.Free(ctx))
	ok(t, second.Free(ctx))
	if stats := must(s.Stats(ctx))(t); stats.GetAllocated()+stats.GetBuffers()+stats.GetModules() != 0 {
		t.Errorf("something is left: %v", stats)
	}
	whole := must(s.Alloc(ctx, vram))(t)
	ok(t, whole.Free(ctx))
	ok(t, s.Close())
	if err := s.Sync(ctx); !errors.Is(err, lease.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	ok(t, b.command.Process.Signal(syscall.SIGTERM))
	if code := b.exit(t); code != 0 {
		t.Errorf("exit %d: %s", code, b.stderr.String())
	}
}

func TestReservedMemoryIsTakenAtTheBeginning(t *testing.T) {
	b := startBroker(t, "--reserve")
	s := b.open(t)
	ctx := t.Context()
	whole := must(s.Alloc(ctx, vram))(t)
	ok(t, whole.Set(ctx, 0, vram, 0xff))
	_, err := s.Alloc(ctx, 1)
	refused(t, err, lease.AllocFailed)
	ok(t, whole.Free(ctx))
	for range 2 {
		part := must(s.Alloc(ctx, vram/2))(t)
		data := make([]byte, 4096)
		if ok(t, part.Read(ctx, vram/2-4096, data)); !bytes.Equal(data, make([]byte, 4096)) {
			t.Error("a new buffer shows what another had")
		}
	}
}

func TestEachRefusalOfASessionHasACodeAndAMessage(t *testing.T) {
	s := startBroker(t).open(t)
	ctx := t.Context()
	_, err := s.Alloc(ctx, vram+1)
	if e := refused(t, err, lease.AllocFailed); e.Requested != vram+1 || e.Limit != vram || e.Current != 0 || e.Advice == "" {
		t.Errorf("%+v", e)
	}
	for _, size := range []uint64{math.MaxUint64, math.MaxUint64 - 5, 1 << 40} {
		_, err := s.Alloc(ctx, size)
		refused(t, err, lease.AllocFailed)
	}
	_, err = s.Alloc(ctx, 0)
	refused(t, err, lease.InvalidRequest)
	buffer := must(s.Alloc(ctx, 1000))(t)
	refused(t, buffer.Write(ctx, 990, make([]byte, 11)), lease.InvalidHandle)
	refused(t, buffer.Read(ctx, math.MaxUint64, make([]byte, 2)), lease.InvalidHandle)
	refused(t, buffer.Set(ctx, 1001, 0, 0), lease.InvalidHandle)
	if _, err := buffer.ReadAt(make([]byte, 1), 1000); err != io.EOF {
		t.Errorf("a read at the end: %v", err)
	}
	if _, err := buffer.WriteAt(nil, -1); err == nil {
		t.Error("a write at -1 succeeds")
	}
	ok(t, buffer.Free(ctx))
	refused(t, buffer.Free(ctx), lease.InvalidHandle)
	refused(t, buffer.Write(ctx, 0, []byte{1}), lease.InvalidHandle)
	_, err = s.Load(ctx, nil)
	refused(t, err, lease.InvalidRequest)
	_, err = s.Load(ctx, []byte(strings.NewReplacer("7.0", "8.8", "sm_50", "sm_121").Replace(program)))
	if e := refused(t, err, lease.LoadFailed); !strings.Contains(e.Advice, "for compute capability "+s.ComputeCapability()+" or an older one") {
		t.Errorf("PTX for a newer device: %+v", e)
	}
	m := must(s.Load(ctx, []byte(program)))(t)
	for _, wrong := range []lease.Shape{{Block: lease.Dim{X: 1025}}, {Block: lease.Dim{X: math.MaxUint32, Y: math.MaxUint32}}} {
		ok(t, m.Launch(ctx, "nothing", wrong))
		refused(t, s.Sync(ctx), lease.LaunchFailed)
		ok(t, s.Sync(ctx))
	}
	ok(t, m.Launch(ctx, "something", lease.Shape{}))
	if e := refused(t, s.Sync(ctx), lease.LaunchFailed); !strings.Contains(e.Message, "something") || e.Lost {
		t.Errorf("%+v", e)
	}
	if err := m.Launch(ctx, "nothing", lease.Shape{}, "text"); err == nil {
		t.Error("a string is an argument")
	}
	ok(t, m.Unload(ctx))
	refused(t, m.Unload(ctx), lease.InvalidHandle)
	ok(t, m.Launch(ctx, "nothing", lease.Shape{}))
	if e := refused(t, s.Sync(ctx), lease.InvalidHandle); !strings.Contains(e.Message, `of "nothing": the session has no module`) {
		t.Errorf("a launch of a module that is unloaded: %+v", e)
	}
	ok(t, s.Sync(ctx))
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Alloc(ended, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context: %v", err)
	}
	ok(t, s.Sync(ctx))
}

func TestClientsOfASessionShareItAndAreCarriedOutInOrder(t *testing.T) {
	b := startBroker(t)
	ctx := t.Context()
	one, two := b.open(t), b.open(t)
	const size = 1 << 20
	buffer := must(one.Alloc(ctx, size))(t)
	// Each client fills the buffer and reads it, and must never see a mix of two fills.
	var both sync.WaitGroup
	for i, s := range []*lease.Session{one, two} {
		mine := buffer.Of(s)
		both.Go(func() {
			data := make([]byte, size)
			for range 50 {
				if err := errors.Join(mine.Set(ctx, 0, size, byte(i+1)), mine.Read(ctx, 0, data)); err != nil {
					t.Error(err)
					return
				}
				if at := bytes.IndexFunc(data, func(r rune) bool { return byte(r) != data[0] }); at >= 0 || data[0] != 1 && data[0] != 2 {
					t.Errorf("byte %d is %d, the first is %d", at, data[max(at, 0)], data[0])
					return
				}
			}
		})
	}
	both.Wait()
	ok(t, one.Close())
	if err := buffer.Of(two).Free(ctx); err != nil {
		t.Errorf("after its maker has gone: %v", err)
	}
}

func TestAClientThatReadsNothingDelaysNoOther(t *testing.T) {
	b := startBroker(t)
	s := b.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	buffer := must(s.Alloc(ctx, 16<<20))(t)
	deaf := rawStream(ctx, t, b)
	ok(t, deaf.Send(&leasepb.Requests{Requests: []*leasepb.Request{{Operation: &leasepb.Request_MemAlloc{MemAlloc: &leasepb.MemAlloc{Bytes: 16 << 20}}}}}))
	own := must(deaf.Recv())(t).GetReplies()[0].GetMemAlloc().GetHandle()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range uint64(1000) {
			if deaf.Send(&leasepb.Requests{Requests: []*leasepb.Request{{Sequence: i + 1, Operation: &leasepb.Request_MemRead{MemRead: &leasepb.MemRead{
				Handle: own, Destination: &leasepb.MemRead_Bytes{Bytes: 16 << 20},
			}}}}}) != nil {
				return
			}
		}
	}()
	for range 20 {
		ok(t, buffer.Set(ctx, 0, 16<<20, 1))
		ok(t, s.Sync(ctx))
	}
	cancel()
	<-sent
	for until := time.Now().Add(patience); must(s.Stats(t.Context()))(t).GetClients() != 1; {
		if time.Now().After(until) {
			t.Fatal("its place is not given back")
		}
	}
}

// rawStream is a client without the library's checks.
func rawStream(ctx context.Context, t *testing.T, b *broker) leasepb.Session_WorkClient {
	t.Helper()
	connection := must(grpc.NewClient(b.address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { _ = connection.Close() })
	token := must(os.ReadFile(b.tokenFile))(t)
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+strings.TrimSpace(string(token)))
	return must(leasepb.NewSessionClient(connection).Work(ctx))(t)
}

func TestInvalidRequestsAreAnswered(t *testing.T) {
	b := startBroker(t)
	stream := rawStream(t.Context(), t, b)
	ok(t, stream.Send(&leasepb.Requests{}))
	ok(t, stream.Send(&leasepb.Requests{Requests: []*leasepb.Request{{Sequence: 7}, {Sequence: 7, Operation: &leasepb.Request_Launch{}}, {Operation: &leasepb.Request_Sync{}}}}))
	ok(t, stream.CloseSend())
	var replies []*leasepb.Reply
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		ok(t, err)
		replies = append(replies, message.GetReplies()...)
	}
	if len(replies) != 3 || replies[0].GetFailure().GetCode() != lease.InvalidRequest || replies[1].GetFailure().GetCode() != lease.InvalidHandle ||
		replies[1].GetSequence() != 7 || replies[2].GetFailure().GetCode() != lease.InvalidHandle {
		t.Errorf("%v", replies)
	}
}

func TestSessionRequiresItsToken(t *testing.T) {
	b := startBroker(t, "--clients", "2")
	wrong := filepath.Join(t.TempDir(), "token")
	for _, text := range []string{"", "x", strings.Repeat("0", 64), strings.Repeat("0", 1<<16)} {
		ok(t, os.WriteFile(wrong, []byte(text), 0o600))
		_, err := lease.Open(t.Context(), b.address, wrong)
		if text != strings.Repeat("0", 1<<16) {
			refused(t, err, lease.Refused)
		} else if err == nil {
			t.Error("a token of 64 KiB opens it")
		}
	}
	connection := must(grpc.NewClient(b.address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer func() { _ = connection.Close() }()
	_, err := leasepb.NewSessionClient(connection).Stats(t.Context(), &leasepb.StatsRequest{})
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
	b.open(t)
	second := b.open(t)
	_, err = lease.Open(t.Context(), b.address, b.tokenFile)
	refused(t, err, lease.Refused)
	ok(t, second.Close())
	for until := time.Now().Add(patience); ; {
		s, err := lease.Open(t.Context(), b.address, b.tokenFile)
		if err == nil {
			ok(t, s.Close())
			break
		}
		if time.Now().After(until) {
			t.Fatalf("a place that is free again: %v", err)
		}
	}
}

func TestSilentConnectionsAreClosed(t *testing.T) {
	b := startBroker(t, "--clients", "2")
	s := b.open(t)
	var idle []net.Conn
	for range 300 {
		for _, name := range []string{"session.sock", "shared.sock"} {
			connection, err := net.Dial("unix", filepath.Join(filepath.Dir(b.tokenFile), name))
			if err == nil {
				idle = append(idle, connection)
			}
		}
	}
	ok(t, s.Sync(t.Context()))
	for _, connection := range idle {
		ok(t, connection.Close())
	}
	again := must(lease.Open(t.Context(), b.address, b.tokenFile))(t)
	ok(t, again.Close())
}

func TestSharedMemoryCarriesBytesWithoutMessages(t *testing.T) {
	b := startBroker(t, "--shared", "8M")
	s := b.open(t)
	ctx := t.Context()
	const size = 4 << 20
	shared := must(s.Share(ctx, size))(t)
	buffer := must(s.Alloc(ctx, size))(t)
	for i := range shared.Bytes() {
		shared.Bytes()[i] = byte(i * 7)
	}
	want := bytes.Clone(shared.Bytes())
	ok(t, buffer.WriteShared(ctx, 0, shared, 0, size))
	clear(shared.Bytes())
	ok(t, buffer.ReadShared(ctx, 0, shared, 0, size))
	if !bytes.Equal(shared.Bytes(), want) {
		t.Error("other bytes came back")
	}
	refused(t, buffer.ReadShared(ctx, 0, shared, 1, size), lease.InvalidHandle)
	refused(t, buffer.WriteShared(ctx, 0, shared, math.MaxUint64, 1), lease.InvalidHandle)
	for _, size := range []int{5 << 20, math.MaxInt64, 0, -1} {
		if _, err := s.Share(ctx, size); err == nil {
			t.Errorf("%d more bytes are shared", size)
		}
	}
	ok(t, shared.Close())
	for until := time.Now().Add(patience); must(s.Stats(ctx))(t).GetShared() != 0; {
		if time.Now().After(until) {
			t.Fatal("the memory is not given back")
		}
	}
	refused(t, buffer.WriteShared(ctx, 0, shared, 0, 1), lease.InvalidHandle)
	again := must(s.Share(ctx, 8<<20))(t)
	ok(t, again.Close())
}

// Long transfers use shared memory without a Share, and messages if there is none.
func TestLongWritesAndReadsGoThroughSharedMemoryByThemselves(t *testing.T) {
	for _, c := range []struct {
		bound  string
		shared uint64
	}{{"8M", 8 << 20}, {"4M", 0}} {
		b := startBroker(t, "--shared", c.bound)
		s := b.open(t)
		ctx := t.Context()
		buffer := must(s.Alloc(ctx, 21<<20))(t)
		data := make([]byte, 21<<20-3)
		for i := range data {
			data[i] = byte(rand.Uint32())
		}
		ok(t, buffer.Write(ctx, 3, data))
		got := make([]byte, len(data))
		if n, err := buffer.ReadAt(got, 3); n != len(got) || err != nil || !bytes.Equal(got, data) {
			t.Errorf("shared memory of %s: %d bytes, %v, equal: %v", c.bound, n, err, bytes.Equal(got, data))
		}
		if shared := must(s.Stats(ctx))(t).GetShared(); shared != c.shared {
			t.Errorf("of %s the session has %d", c.bound, shared)
		}
		refused(t, buffer.Write(ctx, 21<<20, data), lease.InvalidHandle)
		refused(t, buffer.Read(ctx, math.MaxUint64, got), lease.InvalidHandle)
		// A Share may take all of it.
		size := map[string]int{"8M": 8 << 20, "4M": 4 << 20}[c.bound]
		for range 3 {
			ok(t, buffer.Read(ctx, 3, got))
			mine := must(s.Share(ctx, size))(t)
			ok(t, buffer.Read(ctx, 3, got))
			ok(t, mine.Close())
			for until := time.Now().Add(patience); must(s.Stats(ctx))(t).GetShared() >= uint64(size); {
				if time.Now().After(until) {
					t.Fatal("the memory is not given back")
				}
			}
		}
		if !bytes.Equal(got, data) {
			t.Error("other bytes came back")
		}
	}
}

// Each transfer carries its own bytes, even if others are cancelled.
func TestLongTransfersAtOnceThatAreGivenUpAndClosed(t *testing.T) {
	b := startBroker(t)
	for range 3 {
		s := b.open(t)
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				ctx := t.Context()
				buffer, err := s.Alloc(ctx, 9<<20)
				if err != nil {
					t.Error(err)
					return
				}
				data, got := bytes.Repeat([]byte{byte(i + 1)}, 9<<20), make([]byte, 9<<20)
				for range 5 {
					soon, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(5000))*time.Microsecond)
					if err := buffer.Read(soon, 0, got); err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					cancel()
					if err := errors.Join(buffer.Write(ctx, 0, data), buffer.Read(ctx, 0, got)); err != nil || !bytes.Equal(got, data) {
						t.Errorf("%v; equal: %v", err, bytes.Equal(got, data))
					}
				}
				if err := buffer.Free(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		buffer := must(s.Alloc(t.Context(), 9<<20))(t)
		ended := make(chan error, 1)
		go func() {
			for {
				if err := buffer.Write(context.Background(), 0, make([]byte, 9<<20)); err != nil {
					ended <- err
					return
				}
			}
		}()
		ok(t, s.Close())
		if err := <-ended; !errors.Is(err, lease.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		other := b.open(t)
		ok(t, buffer.Of(other).Free(t.Context()))
	}
}

func TestClientsLearnTheReasonOfALeasesEnd(t *testing.T) {
	b := startBroker(t)
	s := b.open(t)
	ok(t, s.Sync(t.Context()))
	ok(t, b.command.Process.Signal(syscall.SIGTERM))
	b.exit(t)
	refused(t, s.Sync(t.Context()), lease.Expired)
	_, err := lease.Open(t.Context(), b.address, b.tokenFile)
	refused(t, err, lease.Expired)
}

func TestASessionEndsAfterItsLastConnection(t *testing.T) {
	b := startBroker(t, "--linger", "200ms")
	first, second := b.open(t), b.open(t)
	ok(t, first.Close())
	time.Sleep(400 * time.Millisecond)
	ok(t, second.Sync(t.Context()))
	ok(t, second.Close())
	if code := b.exit(t); code != 5 || !strings.Contains(b.stderr.String(), "last connection") {
		t.Errorf("exit %d: %s", code, b.stderr.String())
	}
}

func TestABrokerThatIsKilledFailsItsClients(t *testing.T) {
	b := startBroker(t)
	s := b.open(t)
	buffer := must(s.Alloc(t.Context(), 16<<20))(t)
	pid := brokerPID(t, b)
	failed := make(chan error, 1)
	data := make([]byte, 16<<20)
	go func() {
		for {
			if err := buffer.Write(context.Background(), 0, data); err != nil {
				failed <- err
				return
			}
		}
	}()
	ok(t, syscall.Kill(pid, syscall.SIGKILL))
	select {
	case err := <-failed:
		if e := refused(t, err, lease.Expired); !e.Lost {
			t.Errorf("its buffers are not said to be lost: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("a write to a killed broker does not end")
	}
	refused(t, s.Sync(t.Context()), lease.Expired)
}

func brokerPID(t *testing.T, b *broker) int {
	t.Helper()
	connection := must(net.Dial("unix", strings.TrimPrefix(b.address, "unix:")))(t)
	defer func() { _ = connection.Close() }()
	socket := must(connection.(*net.UnixConn).SyscallConn())(t)
	var who *unix.Ucred
	var err error
	ok(t, socket.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }))
	ok(t, err)
	return int(who.Pid)
}

func TestALaunchIsBeforeOtherClientsRequestsOnceItsClientHasWaited(t *testing.T) {
	b := startBroker(t)
	ctx := t.Context()
	one, two := b.open(t), b.open(t)
	buffer, other := must(one.Alloc(ctx, 4))(t), must(one.Alloc(ctx, 4))(t)
	kernels := must(one.Load(ctx, must(os.ReadFile("../test/lease/examples/kernels.ptx"))(t)))(t)
	waits := []func() error{
		func() error { return one.Sync(ctx) },
		func() error { return other.Read(ctx, 0, make([]byte, 4)) },
		func() error { return other.Set(ctx, 0, 4, 0) },
	}
	for i := range 200 {
		ok(t, kernels.Launch(ctx, "bias", lease.Shape{}, buffer, float32(1), uint32(1)))
		ok(t, waits[i%len(waits)]())
		number := make([]float32, 1)
		ok(t, buffer.Of(two).Read(ctx, 0, lease.Bytes(number)))
		if number[0] != float32(i+1) {
			t.Fatalf("another client reads %v after %d launches", number[0], i+1)
		}
	}
}

func TestAModulesVariablesAreBuffers(t *testing.T) {
	ctx := t.Context()
	s := startBroker(t).open(t)
	var major, minor int
	if n, err := fmt.Sscanf(s.ComputeCapability(), "%d.%d", &major, &minor); n != 2 || major == 0 {
		t.Errorf("compute capability %q: %v", s.ComputeCapability(), err)
	}
	m, data := must(s.Load(ctx, []byte(variables)))(t), must(s.Alloc(ctx, 4))(t)
	factor, count := must(m.Variable(ctx, "factor"))(t), must(m.Variable(ctx, "count"))(t)
	if factor.Size() != 4 || count.Size() != 16 || count.Address() == 0 {
		t.Errorf("%d and %d bytes at %#x", factor.Size(), count.Size(), count.Address())
	}
	number := []float32{3}
	ok(t, data.Write(ctx, 0, lease.Bytes(number)))
	ok(t, m.Launch(ctx, "scale", lease.Shape{}, data))
	ok(t, factor.Write(ctx, 0, lease.Bytes([]float32{10})))
	ok(t, m.Launch(ctx, "scale", lease.Shape{}, data))
	if ok(t, data.Read(ctx, 0, lease.Bytes(number))); number[0] != 60 {
		t.Errorf("3 times 2 times 10 is %v", number[0])
	}
	if ok(t, factor.Read(ctx, 0, lease.Bytes(number))); number[0] != 10 {
		t.Errorf("the factor is %v", number[0])
	}
	_, err := m.Variable(ctx, "none")
	refused(t, err, lease.NotFound)
	refused(t, factor.Free(ctx), lease.InvalidRequest)
	if stats := must(s.Stats(ctx))(t); stats.GetBuffers() != 1 || stats.GetPeak() != 4 {
		t.Errorf("%v", stats)
	}
	ok(t, m.Unload(ctx))
	refused(t, count.Set(ctx, 0, 16, 1), lease.InvalidHandle)
	_, err = m.Variable(ctx, "factor")
	refused(t, err, lease.InvalidHandle)
}

func TestANilBufferIsAnError(t *testing.T) {
	ctx := t.Context()
	s := startBroker(t).open(t)
	buffer, kernels := must(s.Alloc(ctx, 8))(t), must(s.Load(ctx, must(os.ReadFile("../test/lease/examples/kernels.ptx"))(t)))(t)
	for _, none := range []*lease.Buffer{nil, {}} {
		for _, size := range []int{0, 8, 4 << 20} {
			refused(t, none.Write(ctx, 0, make([]byte, size)), lease.InvalidHandle)
			refused(t, none.Read(ctx, 0, make([]byte, size)), lease.InvalidHandle)
		}
		_, err := none.ReadAt(make([]byte, 8), 0)
		refused(t, err, lease.InvalidHandle)
		_, err = none.WriteAt(make([]byte, 8), 0)
		refused(t, err, lease.InvalidHandle)
		refused(t, none.Set(ctx, 0, 8, 1), lease.InvalidHandle)
		refused(t, none.Copy(ctx, 0, buffer, 0, 8), lease.InvalidHandle)
		refused(t, buffer.Copy(ctx, 0, none, 0, 8), lease.InvalidHandle)
		refused(t, none.Of(s).Free(ctx), lease.InvalidHandle)
		refused(t, none.Free(ctx), lease.InvalidHandle)
		if none.Size() != 0 || none.Address() != 0 {
			t.Errorf("it has %d bytes at %#x", none.Size(), none.Address())
		}
		for _, argument := range []any{none, lease.Pointer{Buffer: none, Offset: 4}} {
			if err := kernels.Launch(ctx, "bias", lease.Shape{}, argument, float32(1), uint32(1)); err == nil || !strings.Contains(err.Error(), "argument 0 of bias is no buffer") {
				t.Errorf("%+v as an argument: %v", argument, err)
			}
		}
	}
	ok(t, s.Sync(ctx))
}

func TestABufferOfAnotherLeaseIsRefused(t *testing.T) {
	ctx := t.Context()
	s, other := startBroker(t).open(t), startBroker(t).open(t)
	own, theirs := must(s.Alloc(ctx, 8))(t), must(other.Alloc(ctx, 8))(t).Of(s)
	kernels := must(s.Load(ctx, must(os.ReadFile("../test/lease/examples/kernels.ptx"))(t)))(t)
	refused(t, own.Copy(ctx, 0, theirs, 0, 8), lease.InvalidHandle)
	refused(t, theirs.Write(ctx, 0, make([]byte, 8)), lease.InvalidHandle)
	refused(t, theirs.Free(ctx), lease.InvalidHandle)
	ok(t, kernels.Launch(ctx, "scale", lease.Shape{Block: lease.Dim{X: 2}}, theirs, float32(2), uint32(2)))
	refused(t, s.Sync(ctx), lease.InvalidHandle)
}

// SPDX-License-Identifier: Apache-2.0

package broker

import (
	gocontext "context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/test/await"
)

type serving struct {
	*Broker
	device *fakeDevice
	path   string
	code   chan int
}

func serve(t *testing.T, config Config) *serving {
	t.Helper()
	s := &serving{device: newFakeDevice(), path: filepath.Join(t.TempDir(), "s"), code: make(chan int, 1)}
	config.VRAM, config.Token = testVRAM, "token"
	var err error
	if s.Broker, err = New(config, func() (Device, error) { return s.device, nil }); err != nil {
		t.Fatal(err)
	}
	s.engine.last = 0 // requests name the handles of earlier ones in the same message
	s.closeTimeout = await.Patience
	sessions, err := net.Listen("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	shared, err := net.Listen("unix", s.path+"-shared")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		code, _ := s.Serve(sessions, shared)
		s.code <- code
	})
	t.Cleanup(func() {
		s.Stop()
		served.Wait()
	})
	return s
}

func (s *serving) connect(t *testing.T) leasepb.Session_WorkClient {
	t.Helper()
	connection, err := grpc.NewClient("unix:"+s.path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	stream, err := leasepb.NewSessionClient(connection).Work(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer token"))
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func send1(t *testing.T, stream leasepb.Session_WorkClient, operations ...any) {
	t.Helper()
	message := &leasepb.Requests{}
	for i, o := range operations {
		r := request(o)
		r.Sequence = uint64(i)
		message.Requests = append(message.Requests, r)
	}
	if err := stream.Send(message); err != nil {
		t.Fatal(err)
	}
}

func ends(stream leasepb.Session_WorkClient) leasepb.Code {
	for {
		if _, err := stream.Recv(); err != nil {
			for _, detail := range status.Convert(err).Details() {
				return detail.(*leasepb.Failure).GetCode()
			}
			return 0
		}
	}
}

func TestACompileThatDoesNotEndEndsTheSession(t *testing.T) {
	s := serve(t, Config{LoadTimeout: 20 * time.Millisecond})
	stream := s.connect(t)
	stuck := make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	wait := func() { <-stuck }
	s.device.during.Store(&wait)
	send1(t, stream, &leasepb.ModuleLoad{Image: []byte("ptx")})
	if code := ends(stream); code != leasepb.Code_LEASE_EXPIRED {
		t.Errorf("its client learns %v", code)
	}
	if code := <-s.code; code != ExitLoadTimeout {
		t.Errorf("exit code %d", code)
	}
}

func TestALeaseEndsWhileAKernelRuns(t *testing.T) {
	s := serve(t, Config{})
	stream, other := s.connect(t), s.connect(t)
	running, stuck := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	var once sync.Once
	wait := func() { once.Do(func() { close(running) }); <-stuck }
	s.device.during.Store(&wait)
	send1(t, stream, &leasepb.Sync{})
	<-running
	for range 100 { // requests behind the blocked one are not executed
		send1(t, other, &leasepb.MemAlloc{Bytes: 1})
	}
	s.Stop()
	for _, client := range []leasepb.Session_WorkClient{stream, other} {
		if code := ends(client); code != leasepb.Code_LEASE_EXPIRED {
			t.Errorf("a client learns %v", code)
		}
	}
	if code := <-s.code; code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// repliesInOrder reads to the stream's end, and returns the number of replies, none of which may have failed.
func repliesInOrder(t *testing.T, stream leasepb.Session_WorkClient, check func(n uint64, reply *leasepb.Reply)) (next uint64) {
	t.Helper()
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return next
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, reply := range message.GetReplies() {
			if reply.GetSequence() != next || reply.GetFailure() != nil {
				t.Fatalf("reply %d, not %d: %v", reply.GetSequence(), next, reply.GetFailure())
			}
			check(next, reply)
			next++
		}
	}
}

func TestAMessageOfManyRequestsIsAnsweredInParts(t *testing.T) {
	s := serve(t, Config{})
	stream := s.connect(t)
	operations := []any{&leasepb.MemAlloc{Bytes: testVRAM}}
	for range 300 { // 300 MiB of replies
		operations = append(operations, readInto(1, 0, testVRAM))
	}
	for range 20 * maxPart {
		operations = append(operations, &leasepb.MemSet{Handle: 1, Bytes: 1})
	}
	send1(t, stream, operations...)
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	next := repliesInOrder(t, stream, func(uint64, *leasepb.Reply) {})
	if next != uint64(len(operations)) {
		t.Errorf("%d replies to %d requests", next, len(operations))
	}
}

// Two goroutines serve each client; requests must still be executed and answered in order.
func TestMessagesAreCarriedOutInTheirOrder(t *testing.T) {
	s := serve(t, Config{})
	stream := s.connect(t)
	const messages = 2000
	send1(t, stream, &leasepb.MemAlloc{Bytes: 8})
	go func() {
		for i := range messages {
			r := request(writeFrom(1, 0, binary.LittleEndian.AppendUint64(nil, uint64(i))))
			again := request(readInto(1, 0, 8))
			r.Sequence, again.Sequence = uint64(2*i+1), uint64(2*i+2)
			if stream.Send(&leasepb.Requests{Requests: []*leasepb.Request{r, again}}) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	next := repliesInOrder(t, stream, func(n uint64, reply *leasepb.Reply) {
		if data := reply.GetMemRead().GetData(); data != nil && binary.LittleEndian.Uint64(data) != n/2-1 {
			t.Fatalf("read %d is of write %d", n/2-1, binary.LittleEndian.Uint64(data))
		}
	})
	if next != 2*messages+1 {
		t.Errorf("%d replies", next)
	}
}

// A quiet message gets replies only to failed launches and other requests, and at its end if the client asks for that.
func TestLaunchesOfAQuietMessageAreAnsweredTogether(t *testing.T) {
	s := serve(t, Config{})
	stream := s.connect(t)
	nothing, wrong := &leasepb.Launch{Module: 1, Kernel: "nothing"}, &leasepb.Launch{Module: 1, Kernel: "other"}
	for _, c := range []struct {
		last       bool
		operations []any
		answered   []uint64
	}{
		{true, []any{&leasepb.ModuleLoad{Image: []byte("ptx")}, nothing, nothing}, []uint64{0, 2}},
		{false, []any{nothing, nothing}, nil},
		{true, []any{nothing, nothing, &leasepb.Sync{}}, []uint64{2}},
		{true, []any{nothing, wrong, nothing, &leasepb.MemSet{}, nothing, nothing}, []uint64{1, 3, 5}},
		{false, []any{nothing, wrong, nothing, &leasepb.MemSet{}, nothing, nothing}, []uint64{1, 3}},
		{false, []any{wrong}, []uint64{0}},
	} {
		message := &leasepb.Requests{Quiet: true, AnswerLast: c.last}
		for i, o := range c.operations {
			r := request(o)
			r.Sequence = uint64(i)
			message.Requests = append(message.Requests, r)
		}
		if err := stream.Send(message); err != nil {
			t.Fatal(err)
		}
		var answered []uint64
		for len(answered) < len(c.answered) {
			replies, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			for _, reply := range replies.GetReplies() {
				answered = append(answered, reply.GetSequence())
			}
		}
		if !slices.Equal(answered, c.answered) {
			t.Errorf("%d requests: %v are answered, not %v", len(c.operations), answered, c.answered)
		}
	}
}

func TestBrokerWithoutADeviceReportsTheReason(t *testing.T) {
	why := errors.New("no card")
	if _, err := New(Config{}, func() (Device, error) { return nil, why }); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
}

func TestStatsDoNotWaitForTheSession(t *testing.T) {
	s := serve(t, Config{})
	stream := s.connect(t)
	running, stuck := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	wait := func() { close(running); <-stuck }
	s.device.during.Store(&wait)
	send1(t, stream, &leasepb.MemAlloc{Bytes: 7}, &leasepb.Sync{})
	<-running
	ctx := metadata.NewIncomingContext(gocontext.Background(), metadata.Pairs("authorization", "Bearer token"))
	stats, err := s.Stats(ctx, nil)
	if err != nil || stats.GetAllocated() != 7 || stats.GetClients() != 1 {
		t.Errorf("%v, %v", stats, err)
	}
}

// A client is notified of a kernel fault before the session ends.
func TestFaultIsReportedBeforeTheSessionEnds(t *testing.T) {
	for range 20 {
		s := serve(t, Config{})
		stream := s.connect(t)
		send1(t, stream, &leasepb.ModuleLoad{Image: []byte("ptx")}, &leasepb.Launch{Module: 1, Kernel: "fault"}, &leasepb.Sync{}, &leasepb.Sync{})
		var codes []leasepb.Code
		for {
			message, err := stream.Recv()
			if err != nil {
				break
			}
			for _, reply := range message.GetReplies() {
				codes = append(codes, reply.GetFailure().GetCode())
			}
		}
		if len(codes) < 3 || codes[1] != 0 || codes[2] != leasepb.Code_SYNC_FAILED {
			t.Fatalf("its client learns %v", codes)
		}
		if code := <-s.code; code != ExitContext {
			t.Fatalf("exit code %d", code)
		}
	}
}

// A broker with a successor announces that at the start and at the end. A broker that replaces another one starts its linger
// timer at once.
func TestClientsLearnThatAnotherBrokerFollows(t *testing.T) {
	s := serve(t, Config{Followed: true})
	stream := s.connect(t)
	header, err := stream.Header()
	if err != nil || len(header.Get(leasepb.FollowedHeader)) != 1 {
		t.Errorf("%v, %v", header, err)
	}
	s.stop(ExitLoadTimeout, "it took long")
	if _, err = stream.Recv(); !strings.Contains(err.Error(), "it took long; the session continues under the same lease") {
		t.Error(err)
	}
	for _, code := range []int{0, ExitLinger} {
		s := serve(t, Config{Followed: true})
		stream := s.connect(t)
		s.stop(code, "that is all")
		if _, err := stream.Recv(); !strings.Contains(err.Error(), "the session has ended: that is all") {
			t.Error(err)
		}
	}
}

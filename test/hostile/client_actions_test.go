//go:build hostile

// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// clientActions are those of a limited user, as a client of the lease service and of sessions.
func clientActions(v victims) []action {
	c := &leaseClient{victims: v, service: lease.Service{Socket: v.Leases}}
	return []action{
		{name: "acquires leases until they are refused, truncates their files, and drops them", atLeast: 3, pause: 2 * time.Second, do: c.acquireAll},
		{name: "acquires a lease and launches a kernel that faults, which takes its broker", atLeast: 3, pause: time.Second, do: c.faults},
		{name: "opens 100 connections to each socket of their session, and sends nothing or garbage", atLeast: 30, pause: 50 * time.Millisecond, do: c.crowds},
		{name: "opens 100 connections to the address for other machines, without a certificate", atLeast: 30, pause: 10 * time.Millisecond, do: c.crowdAddress},
		{name: "sends 100 requests at random", atLeast: 15, do: c.sendAtRandom},
		{name: "asks for 200 MiB, and reads nothing", atLeast: 6, do: c.readNothing},
		{name: "cuts streams in the middle of a message", atLeast: 9, do: c.cutStreams},
		{name: "shows wrong tokens", atLeast: 15, do: c.sendWrongTokens},
		{name: "names, renews, drops and opens what is another's", atLeast: 15, do: c.nameOthers},
		{name: "truncates and writes over shared memory", atLeast: 30, do: c.truncateShared},
		{name: "takes shared memory, keeps its descriptor, hangs up and writes", atLeast: 15, do: c.keepShared},
		{name: "has a lease on its token's file (F_SETLEASE), and renews and drops what it is for", atLeast: 3, pause: time.Second, do: c.leaseTokenFile},
		{name: "acquires leases of nothing, 64 at once", atLeast: 3, pause: 3 * time.Second, do: c.acquireNothing},
		{name: "sends descriptors to the sockets of their session", atLeast: 15, do: c.sendDescriptors},
		{name: "loads garbage as code, and launches what does not fit", atLeast: 6, do: c.loadGarbage},
	}
}

// visitorActions are those of a user without a limit.
func visitorActions(v victims) []action {
	c := &leaseClient{victims: v, service: lease.Service{Socket: v.Leases}}
	return []action{
		{name: "acquires leases, 64 at once", atLeast: 3, do: c.acquireNothing},
		{name: "opens 100 connections to the lease service, and sends nothing or garbage", atLeast: 60, pause: 10 * time.Millisecond, do: c.crowdService},
		{name: "sends descriptors to the lease service", atLeast: 15, do: func() error { return floodWithDescriptors(c.Leases) }},
	}
}

// acquireNothing asks for what is never granted: no memory, or more than a user may have.
func (c *leaseClient) acquireNothing() error {
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	var all sync.WaitGroup
	failures := make([]error, 64)
	for i := range failures {
		all.Go(func() {
			l, err := c.service.Acquire(ctx, lease.Request{VRAM: uint64(i%2) << 40})
			if err == nil {
				_, _ = c.service.Drop(ctx, l.ID)
				failures[i] = harmf("a lease of %d TiB is granted", i%2)
			} else if !isCode(err, lease.Refused) && !isCode(err, lease.InvalidRequest) {
				failures[i] = err
			}
		})
	}
	all.Wait()
	var h harm
	if err := errors.Join(failures...); errors.As(err, &h) || !slices.Contains(failures, nil) {
		return err
	}
	return nil // others found no place for a connection
}

func (c *leaseClient) leaseTokenFile() error {
	l, err := c.service.Acquire(context.Background(), lease.Request{VRAM: 1 << 20})
	for ; isCode(err, lease.Refused); l, err = c.service.Acquire(context.Background(), lease.Request{VRAM: 1 << 20}) {
		time.Sleep(50 * time.Millisecond) // other actions use up the user's pace
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	dropped := false
	defer func() {
		if !dropped {
			_, _ = c.service.Drop(context.Background(), l.ID)
		}
	}()
	file, err := os.OpenFile(l.TokenFile, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close() // ends the lease
	signal.Ignore(unix.SIGIO)
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return err
	}
	_, listed := c.service.List(ctx)
	_, shown := c.service.Show(ctx, l.ID)
	_, renewed := c.service.Renew(ctx, l.ID, time.Minute)
	_, err = c.service.Drop(ctx, l.ID)
	dropped = err == nil
	if isCode(renewed, lease.Refused) {
		renewed = nil // by the same pace
	}
	err = errors.Join(listed, shown, renewed, err)
	if ctx.Err() != nil {
		return harmf("the lease service waits for a file: %v", err)
	}
	return err
}

func (c *leaseClient) sendDescriptors() error {
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	l, err := c.lease(ctx)
	if err != nil {
		return err
	}
	session := strings.TrimPrefix(l.Address, "unix:")
	return errors.Join(floodWithDescriptors(session), floodWithDescriptors(filepath.Join(filepath.Dir(session), "shared.sock")))
}

const (
	clientTimeout = 10 * time.Second
	together      = 100
	faulting      = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry f()\n{\n\ttrap;\n\tret;\n}\n"
)

type leaseClient struct {
	victims
	service lease.Service

	mu  sync.Mutex
	own *lease.Lease // long-lived; replaced when it ends

	kept []int // descriptors of shared memory
}

func (c *leaseClient) lease(ctx context.Context) (*lease.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own != nil {
		if _, err := os.Stat(c.own.TokenFile); err == nil {
			return c.own, nil
		}
	}
	own, err := c.service.Acquire(ctx, lease.Request{VRAM: 256 << 20})
	if err == nil {
		c.own = own
	}
	return own, err
}

func (c *leaseClient) in(do func(context.Context, *lease.Lease, *lease.Session) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	l, err := c.lease(ctx)
	if err != nil {
		return err
	}
	s, err := lease.Open(ctx, l.Address, l.TokenFile)
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, l, s), s.Close())
}

func isCode(err error, code lease.Code) bool {
	var e *lease.Error
	return errors.As(err, &e) && e.Code == code
}

func (c *leaseClient) acquireAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	var all []*lease.Lease
	var err error
	for range 10 {
		var l *lease.Lease
		if l, err = c.service.Acquire(ctx, lease.Request{VRAM: 64 << 20}); err != nil {
			break
		}
		all = append(all, l)
	}
	if err == nil {
		err = harmf("the user has %d leases more, and may have 4", len(all))
	} else if isCode(err, lease.Refused) {
		err = nil
	}
	for _, l := range all {
		dir := filepath.Dir(l.TokenFile)
		_ = os.Truncate(l.TokenFile, 0)
		for _, name := range []string{"token", "session.sock", "shared.sock", "lease.json"} {
			if os.Remove(filepath.Join(dir, name)) == nil || os.Rename(filepath.Join(dir, name), filepath.Join(dir, "x")) == nil {
				err = harmf("the user removes %s of a lease", name)
			}
		}
		if os.WriteFile(filepath.Join(dir, "lease.json"), nil, 0) == nil {
			err = harmf("the user writes the record of a lease")
		}
		if _, dropErr := c.service.Drop(ctx, l.ID); dropErr != nil && err == nil {
			err = dropErr
		}
	}
	if err == nil && len(all) == 0 {
		return errors.New("no lease was to be had")
	}
	return err
}

func (c *leaseClient) faults() error {
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	l, err := c.service.Acquire(ctx, lease.Request{VRAM: 1 << 20})
	if err != nil {
		return err
	}
	defer func() { _, _ = c.service.Drop(ctx, l.ID) }()
	s, err := lease.Open(ctx, l.Address, l.TokenFile)
	if err != nil {
		return err
	}
	defer s.Close()
	m, err := s.Load(ctx, []byte(faulting))
	if err != nil {
		return err
	}
	if err := m.Launch(ctx, "f", lease.Shape{}); err != nil {
		return err
	}
	if err := s.Sync(ctx); err == nil {
		return harmf("a fault is not told")
	}
	return nil
}

func open(network, address string) error {
	var all []net.Conn
	defer func() {
		for _, conn := range all {
			conn.Close()
		}
	}()
	var err error
	for i := range together {
		var conn net.Conn
		if conn, err = net.DialTimeout(network, address, time.Second); err != nil {
			continue
		}
		all = append(all, conn)
		if i%2 == 0 {
			garbage := make([]byte, 64+i)
			_, _ = rand.Read(garbage)
			if i%4 == 0 {
				copy(garbage, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
			}
			_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = conn.Write(garbage)
		}
	}
	if len(all) < together/10 {
		return fmt.Errorf("%d connections of %d: %w", len(all), together, err)
	}
	return nil
}

func (c *leaseClient) crowds() error {
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	l, err := c.lease(ctx)
	if err != nil {
		return err
	}
	session := strings.TrimPrefix(l.Address, "unix:")
	return errors.Join(open("unix", session), open("unix", filepath.Join(filepath.Dir(session), "shared.sock")))
}

func (c *leaseClient) crowdService() error { return open("unix", c.Leases) }
func (c *leaseClient) crowdAddress() error { return open("tcp", c.Remote) }

func (c *leaseClient) raw(ctx context.Context) (stream leasepb.Session_WorkClient, stop func(), err error) {
	l, err := c.lease(ctx)
	if err != nil {
		return nil, nil, err
	}
	token, err := os.ReadFile(l.TokenFile)
	if err != nil {
		return nil, nil, err
	}
	conn, err := grpc.NewClient(l.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	stream, err = leasepb.NewSessionClient(conn).Work(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+strings.TrimSpace(string(token))))
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return stream, func() { conn.Close() }, nil
}

func atRandom() *leasepb.Request {
	number := func() uint64 {
		return []uint64{mathrand.Uint64() | 1<<40, ^uint64(0) - mathrand.Uint64N(8), 1<<63 + mathrand.Uint64N(8)}[mathrand.IntN(3)]
	}
	switch mathrand.IntN(6) {
	case 0:
		return &leasepb.Request{Operation: &leasepb.Request_MemFree{MemFree: &leasepb.MemFree{Handle: number()}}}
	case 1:
		return &leasepb.Request{Operation: &leasepb.Request_MemRead{MemRead: &leasepb.MemRead{Handle: number(), Offset: number(), Destination: &leasepb.MemRead_Bytes{Bytes: number()}}}}
	case 2:
		return &leasepb.Request{Operation: &leasepb.Request_MemWrite{MemWrite: &leasepb.MemWrite{Handle: number(), Offset: number(), Source: &leasepb.MemWrite_Data{Data: make([]byte, 100)}}}}
	case 3:
		return &leasepb.Request{Operation: &leasepb.Request_MemAlloc{MemAlloc: &leasepb.MemAlloc{Bytes: number()}}}
	case 4:
		return &leasepb.Request{Operation: &leasepb.Request_MemCopy{MemCopy: &leasepb.MemCopy{To: number(), From: number(), ToOffset: number(), FromOffset: number(), Bytes: number()}}}
	}
	return &leasepb.Request{Operation: &leasepb.Request_Launch{Launch: &leasepb.Launch{Module: number(), Kernel: "x", Grid: &leasepb.Dim{X: ^uint32(0)}}}}
}

func (c *leaseClient) sendAtRandom() error {
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	stream, stop, err := c.raw(ctx)
	if err != nil {
		return err
	}
	defer stop()
	all := make([]*leasepb.Request, together)
	for i := range all {
		all[i] = atRandom()
	}
	if err := stream.Send(&leasepb.Requests{Requests: all}); err != nil {
		return err
	}
	for answered := 0; answered < len(all); {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, reply := range message.GetReplies() {
			if reply.GetFailure() == nil {
				return harmf("%v is granted", all[answered])
			}
			answered++
		}
	}
	return nil
}

func (c *leaseClient) readNothing() error {
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	stream, stop, err := c.raw(ctx)
	if err != nil {
		return err
	}
	defer stop()
	ask := func(r *leasepb.Request) error { return stream.Send(&leasepb.Requests{Requests: []*leasepb.Request{r}}) }
	if err := ask(&leasepb.Request{Operation: &leasepb.Request_MemAlloc{MemAlloc: &leasepb.MemAlloc{Bytes: 1 << 20}}}); err != nil {
		return err
	}
	message, err := stream.Recv()
	if err != nil {
		return err
	}
	handle := message.GetReplies()[0].GetMemAlloc().GetHandle()
	if handle == 0 {
		return fmt.Errorf("%v", message.GetReplies()[0].GetFailure())
	}
	for range 200 {
		if err := ask(&leasepb.Request{Operation: &leasepb.Request_MemRead{MemRead: &leasepb.MemRead{Handle: handle, Destination: &leasepb.MemRead_Bytes{Bytes: 1 << 20}}}}); err != nil {
			return err
		}
	}
	pause(ctx, 200*time.Millisecond)
	other, stopOther, err := c.raw(ctx)
	if err != nil {
		return err
	}
	defer stopOther()
	err = other.Send(&leasepb.Requests{Requests: []*leasepb.Request{{Operation: &leasepb.Request_MemFree{MemFree: &leasepb.MemFree{Handle: handle}}}}})
	if err == nil {
		_, err = other.Recv()
	}
	return err
}

func (c *leaseClient) cutStreams() error {
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	l, err := c.lease(ctx)
	if err != nil {
		return err
	}
	// Sends a frame that is shorter than its header says, and an 8 MiB message on a stream that ends early.
	conn, err := net.Dial("unix", strings.TrimPrefix(l.Address, "unix:"))
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x40\x00\x01\x04\x00\x00\x00\x01half"))
	conn.Close()
	if err != nil {
		return err
	}
	stream, stop, err := c.raw(ctx)
	if err != nil {
		return err
	}
	time.AfterFunc(5*time.Millisecond, cancel)
	_ = stream.Send(&leasepb.Requests{Requests: []*leasepb.Request{{Operation: &leasepb.Request_MemWrite{MemWrite: &leasepb.MemWrite{
		Handle: 1, Source: &leasepb.MemWrite_Data{Data: make([]byte, 8<<20)}}}}}})
	stop()
	return nil
}

func (c *leaseClient) sendWrongTokens() error {
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	l, err := c.lease(ctx)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp("", "token-")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = fmt.Fprintf(file, "%064x", mathrand.Uint64())
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	s, err := lease.Open(ctx, l.Address, file.Name())
	if err == nil {
		s.Close()
		return harmf("a wrong token opens a session")
	}
	if !isCode(err, lease.Refused) && !isCode(err, lease.InvalidRequest) {
		return err
	}
	return nil
}

func (c *leaseClient) nameOthers() error {
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	dir := filepath.Join(filepath.Dir(c.Leases), "leases", c.Lease)
	if _, err := os.ReadFile(filepath.Join(dir, "token")); err == nil {
		return harmf("the user reads another's token")
	}
	for _, name := range []string{"session.sock", "shared.sock"} {
		if conn, err := net.Dial("unix", filepath.Join(dir, name)); err == nil {
			conn.Close()
			return harmf("the user connects to another's %s", name)
		}
	}
	if _, err := os.ReadDir(filepath.Dir(dir)); err == nil {
		return harmf("the user lists the leases")
	}
	_, shown := c.service.Show(ctx, c.Lease)
	_, renewed := c.service.Renew(ctx, c.Lease, time.Minute)
	_, dropped := c.service.Drop(ctx, c.Lease)
	for _, err := range []error{shown, renewed, dropped} {
		if err == nil {
			return harmf("the user has another's lease")
		}
		if !isCode(err, lease.NotFound) {
			return err
		}
	}
	return nil
}

// shared obtains 1 MiB of memory that the broker has pinned, until hangUp.
func (c *leaseClient) shared() (fd int, hangUp func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	l, err := c.lease(ctx)
	if err != nil {
		return -1, nil, err
	}
	token, err := os.ReadFile(l.TokenFile)
	if err != nil {
		return -1, nil, err
	}
	conn, err := net.Dial("unix", filepath.Join(filepath.Dir(l.TokenFile), "shared.sock"))
	if err != nil {
		return -1, nil, err
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	_ = conn.SetDeadline(time.Now().Add(clientTimeout))
	if _, err := fmt.Fprintf(conn, "%s %d\n", strings.TrimSpace(string(token)), 1<<20); err != nil {
		return -1, nil, err
	}
	line, control := make([]byte, 512), make([]byte, unix.CmsgSpace(4))
	n, controlled, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(line, control)
	if err != nil || n == 0 {
		return -1, nil, errors.Join(err, io.ErrUnexpectedEOF)
	}
	messages, err := unix.ParseSocketControlMessage(control[:controlled])
	if err != nil || len(messages) != 1 {
		return -1, nil, fmt.Errorf("it is refused: %q", line[:n])
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, nil, errors.Join(err, errors.New("no memory came"))
	}
	return fds[0], func() { conn.Close() }, nil
}

// keepShared keeps the last 64 descriptors.
func (c *leaseClient) keepShared() error {
	fd, hangUp, err := c.shared()
	if err != nil {
		return err
	}
	hangUp()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept = append(c.kept, fd); len(c.kept) > 64 {
		unix.Close(c.kept[0])
		c.kept = c.kept[1:]
	}
	_, err = unix.Pwrite(fd, make([]byte, 1<<20), 0)
	return err
}

func (c *leaseClient) truncateShared() error {
	fd, hangUp, err := c.shared()
	if err != nil {
		return err
	}
	defer hangUp()
	defer unix.Close(fd)
	for _, size := range []int64{0, 4096, 1 << 30} {
		if unix.Ftruncate(fd, size) == nil {
			return harmf("shared memory is %d bytes now", size)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil {
		return harmf("the broker cannot write what it shares any more")
	}
	return nil
}

func (c *leaseClient) loadGarbage() error {
	return c.in(func(ctx context.Context, _ *lease.Lease, s *lease.Session) error {
		garbage := make([]byte, 1<<20)
		_, _ = rand.Read(garbage)
		if m, err := s.Load(ctx, garbage); err == nil {
			return harmf("garbage is loaded: %v", m)
		}
		m, err := s.Load(ctx, []byte(strings.ReplaceAll(faulting, "trap;", "")))
		if err != nil {
			return err
		}
		if err := m.Launch(ctx, "f", lease.Shape{Block: lease.Dim{X: 1 << 20}}, uint32(1), uint32(2)); err != nil {
			return err
		}
		if s.Sync(ctx) == nil {
			return harmf("a launch that does not fit is carried out")
		}
		return m.Unload(ctx)
	})
}

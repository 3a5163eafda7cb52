// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpuslice/gpuslice/enforcer/session"
	leases "github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// pair returns both ends of a connection within this process.
func pair(t *testing.T) (server, client net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close(); client.Close() })
	return server, client
}

func TestALeasesUserIsThePeerOfTheSocket(t *testing.T) {
	k := newKernel(&session.HostUsers{})
	server, _ := pair(t)
	_, info, err := k.ServerHandshake(server)
	if err != nil {
		t.Fatal(err)
	}
	who := info.(Peer)
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if int(who.UID) != os.Geteuid() || int(who.Groups[0]) != os.Getegid() || len(who.Groups) != len(groups)+1 || who.refusal != nil {
		t.Errorf("the user is %+v, the groups are %v", who, groups)
	}
	if other, _ := net.Pipe(); second2(k.ServerHandshake(other)) == nil {
		t.Error("what is no Unix socket is accepted")
	}
}

func dialAs(t *testing.T, uid uint32, path string) net.Conn {
	t.Helper()
	needs.Root(t)
	type dialed struct {
		net.Conn
		err error
	}
	done := make(chan dialed)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the user id
		var d dialed
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
			d.err = e
		} else {
			d.Conn, d.err = net.Dial("unix", path)
		}
		done <- d
	}()
	d := <-done
	if d.err != nil {
		t.Fatal(d.err)
	}
	t.Cleanup(func() { d.Close() })
	return d.Conn
}

// A user can make a program setuid to each of their subordinate uids, and run it in the host's user namespace.
func TestUIDOfNoHostUserHasNoLease(t *testing.T) {
	const nobody, subordinate, unknown = 65534, 3_000_000_007, 3_000_100_000
	dir := t.TempDir()
	subuid := filepath.Join(dir, "subuid")
	if err := os.WriteFile(subuid, []byte("nobody:3000000000:65536\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := shortSocket(t)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	k := newKernel(&session.HostUsers{Subuid: subuid})
	for _, c := range []struct {
		uid, counts uint32
		refusal     string
	}{{nobody, nobody, ""}, {subordinate, nobody, "subordinate uid of nobody"}, {unknown, session.NoUser, "does not know it"}} {
		dialAs(t, c.uid, path)
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		before := k.by[c.counts]
		_, info, err := k.ServerHandshake(conn)
		if err != nil || k.by[c.counts] != before+1 {
			t.Fatalf("uid %d: %v, %v", c.uid, k.by, err)
		}
		who, err := peerOf(peer.NewContext(context.Background(), &peer.Peer{AuthInfo: info}))
		if who.UID != c.uid || (err == nil) != (c.refusal == "") || err != nil && (codeOf(err) != leasepb.Code_REFUSED || !strings.Contains(err.Error(), c.refusal)) {
			t.Errorf("uid %d: %+v, %v", c.uid, who, err)
		}
	}
}

func shortSocket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "gs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "s")
}

func second2[A, B any](_ A, _ B, err error) error { return err }

func TestAUsersConnectionsAreBounded(t *testing.T) {
	k := newKernel(nil)
	for range maxOfUser {
		if err := k.addConnection(alice); err != nil {
			t.Fatal(err)
		}
	}
	if k.addConnection(alice) == nil {
		t.Error("one more than a user may have")
	}
	if err := k.addConnection(bob); err != nil {
		t.Errorf("another user: %v", err)
	}
	k.removeConnection(alice)
	if err := k.addConnection(alice); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
	for uid := uint32(6000); k.all < maxConnections; uid++ {
		if err := k.addConnection(uid); err != nil {
			t.Fatal(err)
		}
	}
	if k.addConnection(7000) == nil {
		t.Error("one more than all users may have")
	}
	for uid, n := range k.by {
		for range n {
			k.removeConnection(uid)
		}
	}
	if k.all != 0 || len(k.by) != 0 {
		t.Errorf("%d, %v", k.all, k.by)
	}
}

func TestAUsersConnectionsHaveAPace(t *testing.T) {
	const nobody, more = 65534, 32
	path := shortSocket(t)
	l := must.Get(net.Listen("unix", path))(t)
	defer l.Close()
	must.Do(t, os.Chmod(path, 0o666))
	k, begun := newKernel(&session.HostUsers{}), time.Now()
	for range burstOfUser + more {
		dialAs(t, nobody, path)
		conn, _, err := k.ServerHandshake(must.Get(l.Accept())(t))
		must.Do(t, err)
		conn.Close()
	}
	if took := time.Since(begun); took < time.Second*more/connectionsPerSecond {
		t.Errorf("%d connections were served in %v", burstOfUser+more, took)
	}
}

func TestAUsersCallsHaveAPace(t *testing.T) { synctest.Test(t, aUsersCallsHaveAPace) }

func aUsersCallsHaveAPace(t *testing.T) {
	s := &Service{calls: newCalls()}
	calls := func(uid uint32, n int) time.Duration {
		begun := time.Now()
		ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: Peer{UID: uid, counts: uid}})
		for range n {
			_, err := s.waitsForCall(ctx, nil)
			must.Do(t, err)
		}
		return time.Since(begun)
	}
	expect.Equal(t, calls(alice, burstOfUser), 0)
	expect.Equal(t, calls(alice, callsPerSecond), time.Second)
	expect.Equal(t, calls(bob, burstOfUser), 0, "another user")
	expect.Equal(t, calls(0, 10*burstOfUser), 0, "root")
	ctx, giveUp := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{AuthInfo: Peer{UID: alice, counts: alice}}))
	giveUp()
	_, err := s.waitsForCall(ctx, nil)
	expect.Equal(t, status.Code(err), codes.Canceled)
}

func startService(t *testing.T, how string) (*bench, leases.Service) {
	t.Helper()
	b := newBench(t, how)
	path := filepath.Join(filepath.Dir(b.Dir), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return b, leases.Service{Socket: path}
}

func TestAClientGetsWhatTheServiceAnswers(t *testing.T) {
	b, client := startService(t, "")
	ctx := context.Background()
	minute := time.Minute
	l, err := client.Acquire(ctx, leases.Request{VRAM: 1 << 20, TTL: time.Hour, Device: "GPU-a", Tenant: "t", Linger: &minute, Clients: 3})
	if err != nil {
		t.Fatal(err)
	}
	if l.Address != "unix:"+filepath.Join(b.dirOf(l.ID), sessionName) || l.TokenFile != filepath.Join(b.dirOf(l.ID), tokenName) || l.Device != "GPU-a" ||
		l.DeviceName != "A" || l.VRAM != 1<<20 || l.Overhead != 532<<20 || l.Tenant != "t" || l.UID != 0 || l.State != leases.Active || l.Expires == nil {
		t.Errorf("%+v", l)
	}
	if c := b.configOf(l.ID); c.Clients != 3 || c.Linger != minute {
		t.Errorf("%+v", c)
	}
	var refused *leases.Error
	if l, err := client.Acquire(ctx, leases.Request{VRAM: 1 << 20, Clients: -1}); !errors.As(err, &refused) || refused.Code != leases.InvalidRequest ||
		!strings.Contains(err.Error(), "-1 clients") {
		t.Errorf("-1 clients: %+v, %v", l, err)
	}
	if all, err := client.List(ctx); err != nil || len(all) != 1 || all[0].ID != l.ID || all[0].Address != l.Address {
		t.Errorf("%v, %v", all, err)
	}
	if l, err := client.Renew(ctx, l.ID, 2*time.Hour); err != nil || time.Until(*l.Expires) < time.Hour {
		t.Errorf("%+v, %v", l, err)
	}
	if l, err := client.Drop(ctx, l.ID); err != nil || l.State != leases.Ended || l.Reason != reasonDropped || l.Address != "" {
		t.Errorf("%+v, %v", l, err)
	}
	if l, err := client.Show(ctx, l.ID); err != nil || l.State != leases.Ended {
		t.Errorf("%+v, %v", l, err)
	}
	if all, err := client.List(ctx); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
}

// Requests that the library's client never sends.
func FuzzAcquire(f *testing.F) {
	f.Add(uint64(1), int64(1), int32(0), "", "", int64(0), int32(0), uint32(0))
	f.Add(^uint64(0), int64(-1), int32(-1), "*", "\x00", int64(1)<<62, int32(1<<30), ^uint32(0))
	s := &Service{Options: Options{MaxClients: 16}}
	f.Fuzz(func(t *testing.T, vram uint64, seconds int64, nanos int32, device, tenant string, linger int64, lingerNanos int32, clients uint32) {
		r := &leasepb.AcquireRequest{
			Vram: vram, Ttl: &durationpb.Duration{Seconds: seconds, Nanos: nanos}, Device: device, Tenant: tenant,
			Linger: &durationpb.Duration{Seconds: linger, Nanos: lingerNanos}, Clients: clients,
		}
		err := s.checkRequest(r)
		if err != nil && codeOf(err) != leasepb.Code_INVALID_REQUEST {
			t.Error(err)
		}
		if err == nil && (vram == 0 || clients > 16 || r.GetTtl().AsDuration() < time.Second || r.GetLinger().AsDuration() < 0) {
			t.Errorf("accepted: %v", r)
		}
	})
}

func TestAServiceThatStopsEndsItsConnections(t *testing.T) {
	_, client := startService(t, "")
	conn, err := grpc.NewClient("unix:"+client.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := leasepb.NewLeasesClient(conn).List(context.Background(), &leasepb.ListRequest{}); err != nil {
		t.Error(err)
	} // and the cleanup waits for no client
}

func TestALeaseIsKeptAliveUntilTheContextOrTheLeaseEnds(t *testing.T) {
	b, client := startService(t, "")
	l := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20, Ttl: durationpb.New(time.Hour)})
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- client.KeepAlive(ctx, l.GetId(), 2*time.Hour) }()
	await.That(t, "it is renewed", func() bool { return testutil.ToFloat64(b.counts.renewals) > 0 })
	cancel()
	expect.NoError(t, await.Value(t, "the end of the context", kept))
	must.Get(client.Drop(t.Context(), l.GetId()))(t)
	var ended *leases.Error
	if err := client.KeepAlive(t.Context(), l.GetId(), time.Hour); !errors.As(err, &ended) || ended.Code != leases.Expired {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/user"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	leases "github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/testhost"
)

func TestAClientOnAnotherMachineIsTheUserOfItsCertificate(t *testing.T) {
	a := newAuthority(t)
	b := newBench(t, "")
	b.stop()
	files := a.host("host")
	b.options.TLS = &files
	b.start()
	h := serveRemote(t, b.Service, a)
	ctx := context.Background()
	client := func(name string) leases.Service {
		return leases.Service{Address: "tls:" + h.address, TLS: a.client(name)}
	}
	mine, other := client(one1), client(two2)
	l, err := mine.Acquire(ctx, leases.Request{VRAM: 64 << 20, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	u, err := user.Lookup(one1)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.enforcer.requests[0].For; u.Uid != itoa(l.UID) || got.UID != l.UID || u.Gid != itoa(got.Groups[0]) || !strings.HasPrefix(got.Remote, "127.0.0.1:") && !strings.HasPrefix(got.Remote, "[::1]:") {
		t.Errorf("the lease is uid %d's, but was registered for %+v", l.UID, got)
	}
	if want := "tls:" + h.address + "/" + l.ID; l.Address != want || l.RemoteAddress != want || l.TokenFile != "" || l.Token != b.configOf(l.ID).Token {
		t.Errorf("%+v", l)
	}
	if again, err := mine.Renew(ctx, l.ID, 2*time.Hour); err != nil || again.Token != l.Token {
		t.Errorf("%+v, %v", again, err)
	}
	if all, err := mine.List(ctx); err != nil || len(all) != 1 || all[0].ID != l.ID {
		t.Errorf("%v, %v", all, err)
	}
	if all, err := other.List(ctx); err != nil || len(all) != 0 {
		t.Errorf("another user sees %v, %v", all, err)
	}
	var refused *leases.Error
	if _, err := other.Drop(ctx, l.ID); !errors.As(err, &refused) || refused.Code != leases.NotFound {
		t.Errorf("another user drops it: %v", err)
	}
	// A local client of that user sees the lease with its local address.
	local, err := (&server{service: b.Service}).addressed(as(l.UID), b.leases[l.ID].toMessage(), nil)
	if err != nil || !strings.HasPrefix(local.GetAddress(), "unix:") || local.GetRemoteAddress() != l.Address || local.GetToken() != "" {
		t.Errorf("%v, %v", local, err)
	}
	if _, err := mine.Drop(ctx, l.ID); err != nil {
		t.Error(err)
	}
	if gone, err := mine.Show(ctx, l.ID); err != nil || gone.State != leases.Ended || gone.Token != "" || gone.Address != "" {
		t.Errorf("%+v, %v", gone, err)
	}
}

func itoa(n uint32) string { return big.NewInt(int64(n)).String() }

func TestAClientWithoutAnAcceptedCertificateIsRejected(t *testing.T) {
	h, _ := withSessions(t)
	stranger := newAuthority(t)
	good := h.config(h.client(one1))
	variant := func(change func(*tls.Config)) *tls.Config {
		c := good.Clone()
		change(c)
		return c
	}
	h.sign("expired", x509.Certificate{Subject: pkix.Name{CommonName: one1}, NotAfter: time.Now().Add(-time.Minute)}, h.dir)
	h.sign("server", x509.Certificate{Subject: pkix.Name{CommonName: one1}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, h.dir)
	signed := func(name string) leases.TLS {
		return leases.TLS{Certificate: h.path(name + ".pem"), Key: h.path(name + ".key")}
	}
	n := 0.0
	for what, c := range map[string]struct {
		config *tls.Config
		says   string
	}{
		"without a certificate":           {variant(func(c *tls.Config) { c.Certificates = nil }), "certificate required"},
		"with another CA's":               {variant(func(c *tls.Config) { c.Certificates = stranger.config(stranger.client(one1)).Certificates }), "unknown certificate authority"},
		"with one that is over":           {h.config(signed("expired")), "expired"},
		"with one that is for servers":    {h.config(signed("server")), "bad certificate"},
		"with TLS 1.2":                    {variant(func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }), "protocol version"},
		"with another protocol within it": {variant(func(c *tls.Config) { c.NextProtos = []string{"imap"} }), "no application protocol"},
	} {
		conn, err := net.Dial("tcp", h.address)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(await.Patience))
		client := tls.Client(conn, c.config)
		err = client.Handshake()
		if err == nil { // in TLS 1.3 the server's alert comes after the handshake
			_, _ = client.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
			_, err = client.Read(make([]byte, 1))
		}
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", what, err, c.says)
		}
		conn.Close()
		n++
		eventually(t, what+" it is counted", func() bool { return h.refusals(refusedHandshake) == n })
	}

	// Without TLS.
	conn, err := net.Dial("tcp", h.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(await.Patience))
	if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); len(got) > 7 || errors.Is(err, os.ErrDeadlineExceeded) { // a TLS alert
		t.Errorf("plain TCP gets %q, %v", got, err)
	}
	// Only gRPC is served.
	web := h.raw(h.client(one1))
	_ = web.SetDeadline(time.Now().Add(await.Patience))
	if _, err := web.Write([]byte("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(web); bytes.Contains(got, []byte("200 OK")) || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("HTTP/1.1 gets %q, %v", got, err)
	}
	// A client rejects a host certificate of another CA.
	wrong := h.client(one1)
	wrong.CA = stranger.path("ca.pem")
	if _, err := h.open(wrong, "lease-1", "token"); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a client of another CA: %v", err)
	}
	// A valid certificate without a user of this host is refused with the reason.
	for _, name := range []string{"root", "", "no.such-user", one1 + "\x00x", one1 + "/../" + two2, "0", "-x", strings.Repeat("a", 64)} {
		var refused *leases.Error
		if _, err := h.open(h.client(name), "lease-1", "token"); !errors.As(err, &refused) || refused.Code != leases.Refused || !strings.Contains(err.Error(), "common name") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if h.refusals(refusedUser) != 8 {
		t.Errorf("%v are counted as nobody", h.refusals(refusedUser))
	}
}

func TestASessionIsWorkedInFromAnotherMachine(t *testing.T) {
	h, kill := withSessions(t)
	of := h.client(one1)
	for what, c := range map[string]struct {
		id, token string
		code      leases.Code
	}{
		"a wrong token":        {"lease-1", "tokem", leases.Refused},
		"another user's lease": {"lease-2", "token", leases.NotFound},
		"none's":               {"lease-3", "token", leases.NotFound},
		"a path":               {"..", "token", leases.NotFound},
	} {
		var refused *leases.Error
		if _, err := h.open(of, c.id, c.token); !errors.As(err, &refused) || refused.Code != c.code {
			t.Errorf("%s: %v", what, err)
		}
	}
	s, err := h.open(of, "lease-1", "token")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 100 {
		if err := s.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if stats, err := s.Stats(t.Context()); err != nil || stats.GetVram() != 64<<20 || s.ComputeCapability() != "9.0" {
		t.Errorf("%v, %v", stats, err)
	}
	if _, err := s.Share(t.Context(), 4096); err == nil || !strings.Contains(err.Error(), "another host") {
		t.Errorf("shared memory: %v", err)
	}
	if got := h.remote.Load().connections(); got[one1] < 1 {
		t.Errorf("connections: %v", got)
	}
	kill("lease-1")
	var lost *leases.Error
	if err := s.Sync(t.Context()); !errors.As(err, &lost) || lost.Code != leases.SyncFailed || !lost.Lost {
		t.Errorf("after its broker was killed: %v", err)
	}
	if _, err := h.open(of, "lease-1", "token"); !errors.As(err, &lost) || lost.Code != leases.SyncFailed {
		t.Errorf("and then: %v", err)
	}
	if s, err := h.open(h.client(two2), "lease-2", "token"); err != nil {
		t.Errorf("the other lease: %v", err)
	} else if err := errors.Join(s.Sync(t.Context()), s.Close()); err != nil {
		t.Errorf("the other lease: %v", err)
	}
	eventually(t, "its connections are gone", func() bool { return s.Close() != nil && len(h.remote.Load().connections()) == 0 })
}

// raw is a connection of HTTP/2 that a test speaks by hand: a client that reads nothing.
func (h *remoteHost) raw(of leases.TLS) net.Conn {
	h.t.Helper()
	conn, err := tls.Dial("tcp", h.address, h.config(of))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { conn.Close() })
	return conn
}

func TestAUserOnOtherMachinesHasAShareOfTheConnections(t *testing.T) {
	h, _ := withSessions(t)
	of := h.client(one1)
	for range maxRemoteOfUser { // sessions: a connection without a request is closed after a while
		s, err := h.open(of, "lease-1", "token")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
	}
	eventually(t, "the user has all allowed connections", func() bool { return h.remote.Load().connections()[one1] == maxRemoteOfUser })
	if _, err := h.open(of, "lease-1", "token"); err == nil {
		t.Error("one more than a user may have")
	}
	eventually(t, "the metric counts it", func() bool { return h.refusals(refusedPlaces) > 0 })
	s, err := h.open(h.client(two2), "lease-2", "token")
	if err != nil {
		t.Fatalf("another user: %v", err)
	}
	_ = s.Close()
}

func TestARemoteClientThatReadsNothingDelaysNoOther(t *testing.T) {
	h, _ := withSessions(t)
	of := h.client(one1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 3 {
		conn, err := grpc.NewClient("dns:///"+h.address, grpc.WithTransportCredentials(credentials.NewTLS(h.config(of))))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		stream, err := leasepb.NewSessionClient(conn).Work(metadata.AppendToOutgoingContext(ctx, "lease", "lease-1", "authorization", "Bearer token"))
		if err != nil {
			t.Fatal(err)
		}
		read := &leasepb.Requests{Requests: []*leasepb.Request{{Operation: &leasepb.Request_MemRead{MemRead: &leasepb.MemRead{Destination: &leasepb.MemRead_Bytes{Bytes: 1 << 20}}}}}}
		var sent atomic.Int64
		go func() {
			for stream.Send(read) == nil {
				sent.Add(1)
			}
		}()
		eventually(t, "it has asked for more than anybody keeps", func() bool { return sent.Load() > 20 })
	}
	s, err := h.open(of, "lease-1", "token")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := s.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestTenThousandUnauthenticatedConnectionsBlockNoUser(t *testing.T) {
	h, _ := withSessions(t)
	_, port, _ := net.SplitHostPort(h.address)
	flood := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 7)}}
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for i := range 10000 {
		c, err := flood.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			continue
		}
		if open = append(open, c); len(open) > 500 { // most are closed by the server already
			open[0].Close()
			open = open[1:]
		}
		if i%2500 != 0 {
			continue
		}
		s, err := h.open(h.client(one1), "lease-1", "token")
		if err != nil {
			t.Fatalf("after %d of them: %v", i, err)
		}
		if err := errors.Join(s.Sync(t.Context()), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "most are refused", func() bool { return h.refusals(refusedPlaces) > 9000 })
	d := h.remote.Load()
	eventually(t, "the connections are closed", func() bool {
		for _, c := range open {
			c.Close()
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.handshakes == 0 && len(d.of) == 0 && d.all == 0
	})
}

func TestHandshakesHaveAShareForEachAddress(t *testing.T) {
	d := newRemoteListener(nil, nil, nil, nil, nil)
	at := func(text string) netip.Prefix {
		return network(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(text)))
	}
	for range maxHandshakesOfOne {
		if !d.begin(at("[2001:db8::1]:1")) {
			t.Fatal("a place is missing")
		}
	}
	if d.begin(at("[2001:db8::2]:2")) {
		t.Error("another address of the same network has places of its own")
	}
	if !d.begin(at("[2001:db8:0:1::1]:1")) || !d.begin(at("192.0.2.1:1")) {
		t.Error("another network has no place")
	}
	if at("192.0.2.1:1") == at("192.0.2.2:1") || at("192.0.2.1:1") != at("[::ffff:192.0.2.1]:9") {
		t.Error("an address of IPv4 is one")
	}
	for i := 0; d.handshakes < maxHandshakes; i++ {
		if !d.begin(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)) {
			t.Fatal("a place is missing")
		}
	}
	if d.begin(at("192.0.2.9:1")) {
		t.Error("more than all may have")
	}
	d.end(at("192.0.2.1:1"))
	if !d.begin(at("192.0.2.9:1")) {
		t.Error("no place after one has ended")
	}
}

func TestAConnectionEndsWithItsCertificate(t *testing.T) {
	h, _ := withSessions(t)
	h.sign("short", x509.Certificate{Subject: pkix.Name{CommonName: one1}, NotAfter: time.Now().Add(2 * time.Second)}, h.dir)
	s, err := h.open(leases.TLS{Certificate: h.path("short.pem"), Key: h.path("short.key"), CA: h.path("ca.pem")}, "lease-1", "token")
	if err != nil {
		t.Skipf("this machine is too busy for a certificate of two seconds: %v", err)
	}
	defer s.Close()
	eventually(t, "the session is over", func() bool { return s.Sync(t.Context()) != nil })
}

func TestCertificatesAreReadAgain(t *testing.T) {
	a := newAuthority(t)
	files := a.host("host")
	c, err := openCertificates(files, slog.New(slog.NewTextHandler(testhost.Log(t), nil)))
	if err != nil {
		t.Fatal(err)
	}
	first, host := c.current()
	if host != "localhost" {
		t.Errorf("it is for %q", host)
	}
	if again, _ := c.current(); again != first {
		t.Error("files that stay are read again")
	}
	a.sign("other", x509.Certificate{IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}}, a.dir)
	replace := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	replace(a.path("other.pem"), files.Certificate) // does not match the old key
	if between, _ := c.current(); between != first {
		t.Error("a certificate without its key is used")
	}
	replace(a.path("other.key"), files.Key)
	if second, host := c.current(); second == first || host != "192.0.2.1" {
		t.Errorf("the new one is not used: it is for %q", host)
	}
}

func TestFilesThatCannotBeUsedAreOneSentence(t *testing.T) {
	a := newAuthority(t)
	files := a.host("host")
	a.sign("nameless", x509.Certificate{Subject: pkix.Name{CommonName: "gpu1"}}, a.dir)
	write := func(name, text string, mode os.FileMode) string {
		if err := os.WriteFile(a.path(name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return a.path(name)
	}
	text, err := os.ReadFile(files.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		files TLSFiles
		says  []string
	}{
		{TLSFiles{"/none", files.Key, files.ClientCA}, []string{"leases.tls_certificate", "no such file"}},
		{TLSFiles{files.Certificate, "/none", files.ClientCA}, []string{"leases.tls_key", "no such file"}},
		{TLSFiles{files.Certificate, files.Key, "/none"}, []string{"leases.tls_client_ca", "no such file"}},
		{TLSFiles{files.Certificate, a.path("ca.key"), files.ClientCA}, []string{"does not match"}},
		{TLSFiles{files.Certificate, write("open.key", string(text), 0o644), files.ClientCA}, []string{"mode 0644", "chmod 600"}},
		{TLSFiles{files.Certificate, files.Key, write("empty", "nothing", 0o600)}, []string{"leases.tls_client_ca", "PEM"}},
		{TLSFiles{a.path("nameless.pem"), a.path("nameless.key"), files.ClientCA}, []string{"names no host", "alternative name"}},
	} {
		_, err := openCertificates(c.files, nil)
		for _, says := range c.says {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%+v: %v, want %q", c.files, err, says)
			}
		}
	}
}

func FuzzRemoteCall(f *testing.F) {
	f.Add(leasepb.Session_Work_FullMethodName, "lease-1", "Bearer x", []byte{0, 0, 0, 0, 0}, "application/grpc")
	f.Add(leasepb.Leases_Acquire_FullMethodName, "", "", []byte{0, 0, 0, 0, 2, 8, 1}, "application/grpc+proto")
	f.Add("/../..", "..", "\x00", []byte{}, "")
	s := &Service{Options: Options{Dir: f.TempDir(), Log: slog.New(slog.DiscardHandler), Enforcer: &fakeEnforcer{}}, counts: newCounts(), calls: newCalls(), leases: make(map[string]*lease)}
	s.leases["lease-1"] = &lease{record: record{ID: "lease-1", UID: alice}, serving: true} // its broker is gone
	s.leases["lease-2"] = &lease{record: record{ID: "lease-2", UID: bob}, serving: true}
	calls := grpc.NewServer(grpc.MaxRecvMsgSize(maxCall), grpc.UnaryInterceptor(s.answer))
	leasepb.RegisterLeasesServer(calls, &server{service: s})
	f.Fuzz(func(t *testing.T, path, lease, authorization string, body []byte, kind string) {
		from := &remote{who: as(alice)}
		from.who.remote = "192.0.2.1:1"
		r := httptest.NewRequest(http.MethodPost, "http://host/", bytes.NewReader(body))
		r.URL = &url.URL{Path: path}
		r.ProtoMajor, r.ProtoMinor, r.Proto = 2, 0, "HTTP/2.0"
		r.Header = http.Header{"Lease": {lease}, "Authorization": {authorization}, "Content-Type": {kind}, "Te": {"trailers"}}
		w := httptest.NewRecorder()
		s.remoteCall(calls, w, r.WithContext(context.WithValue(t.Context(), remoteKey{}, from)))
		response := w.Result()
		status := response.Header.Get("Grpc-Status") + response.Trailer.Get("Grpc-Status")
		if response.StatusCode == http.StatusOK && (status == "" || status == "0" && !strings.HasSuffix(path, "/List")) {
			t.Errorf("%s of %q is answered with status %q", path, lease, status)
		}
	})
}

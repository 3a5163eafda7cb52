// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	leases "github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// Users besides root that every host has.
const (
	one1 = "daemon"
	two2 = "bin"
)

type authority struct {
	t           *testing.T
	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.certificate, a.key = a.sign("ca", x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, a.dir)
	return a
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// sign writes NAME.pem and NAME.key.
func (a *authority) sign(name string, c x509.Certificate, dir string) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	c.NotBefore = c.NotAfter.Add(-24 * time.Hour)
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = &c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, &c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{".pem": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(filepath.Join(dir, name+file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return signed, key
}

// host signs a certificate for this host; client signs one for a user.
func (a *authority) host(name string) TLSFiles {
	a.sign(name, x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{"*.example.org", "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, a.dir)
	return TLSFiles{Certificate: a.path(name + ".pem"), Key: a.path(name + ".key"), ClientCA: a.path("ca.pem")}
}

func (a *authority) client(name string) leases.TLS {
	file := strings.Map(func(r rune) rune {
		if r < ' ' || r == '/' {
			return '_'
		}
		return r
	}, name)
	a.sign("of-"+file, x509.Certificate{Subject: pkix.Name{CommonName: name}}, a.dir)
	return leases.TLS{Certificate: a.path("of-" + file + ".pem"), Key: a.path("of-" + file + ".key"), CA: a.path("ca.pem")}
}

func (a *authority) config(of leases.TLS) *tls.Config {
	a.t.Helper()
	cas := x509.NewCertPool()
	cas.AddCert(a.certificate)
	c := &tls.Config{RootCAs: cas, ServerName: "localhost", NextProtos: []string{"h2"}}
	if of.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(of.Certificate, of.Key)
		if err != nil {
			a.t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

// remoteHost serves other machines, of which the client is one.
type remoteHost struct {
	*Service
	*authority
	address string // HOST:PORT
}

func serveRemote(t *testing.T, s *Service, a *authority) *remoteHost {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.ServeRemote(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(await.Patience):
			t.Error("it still serves other machines")
		}
	})
	eventually(t, "other machines are served", func() bool { return s.remote.Load() != nil })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return &remoteHost{Service: s, authority: a, address: "localhost:" + port}
}

// workingSession answers each request with its sequence number. It requires the token.
type workingSession struct {
	leasepb.UnimplementedSessionServer
}

func (workingSession) Work(stream leasepb.Session_WorkServer) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	if got := md.Get("authorization"); len(got) != 1 || got[0] != "Bearer token" || len(md.Get("lease")) != 0 {
		return failed(leasepb.Code_REFUSED, "", "that is not this lease's token").(*failure).Status(16)
	}
	if err := stream.SendHeader(metadata.Pairs(leasepb.CapabilityHeader, "9.0")); err != nil {
		return err
	}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		reply := &leasepb.Replies{}
		for _, r := range message.GetRequests() {
			answer := &leasepb.Reply{Sequence: r.GetSequence()}
			if read := r.GetMemRead(); read != nil {
				answer.Result = &leasepb.Reply_MemRead{MemRead: &leasepb.MemReadReply{Data: bytes.Repeat([]byte{7}, int(read.GetBytes()))}}
			}
			reply.Replies = append(reply.Replies, answer)
		}
		if err := stream.Send(reply); err != nil {
			return err
		}
	}
}

func (workingSession) Stats(context.Context, *leasepb.StatsRequest) (*leasepb.StatsReply, error) {
	return &leasepb.StatsReply{Vram: 64 << 20}, nil
}

// withSessions returns a service with leases of two users. Their brokers run in this process; stop ends one.
func withSessions(t *testing.T) (h *remoteHost, stop func(id string)) {
	t.Helper()
	a := newAuthority(t)
	dir, err := os.MkdirTemp("/tmp", "gs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	files := a.host("host")
	log := slog.New(slog.NewTextHandler(testhost.Log(t), nil))
	certificates, err := openCertificates(files, log)
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{Options: Options{Dir: dir, Log: log}, certificates: certificates, counts: newCounts(), calls: newCalls(), leases: make(map[string]*lease)}
	brokers := make(map[string]*grpc.Server)
	for id, of := range map[string]string{"lease-1": one1, "lease-2": two2} {
		if err := os.Mkdir(s.dirOf(id), 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", filepath.Join(s.dirOf(id), sessionName))
		if err != nil {
			t.Fatal(err)
		}
		broker := grpc.NewServer()
		leasepb.RegisterSessionServer(broker, workingSession{})
		go func() { _ = broker.Serve(l) }()
		t.Cleanup(broker.Stop)
		brokers[id] = broker
		who, err := userOf(of)
		if err != nil {
			t.Fatal(err)
		}
		s.leases[id] = &lease{record: record{ID: id, UID: who.UID}, serving: true}
	}
	return serveRemote(t, s, a), func(id string) { brokers[id].Stop() }
}

func (h *remoteHost) open(of leases.TLS, id, token string) (*leases.Session, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), await.Patience)
	defer cancel()
	return leases.OpenTLS(ctx, "tls:"+h.address+"/"+id, token, of)
}

func (h *remoteHost) refusals(cause string) float64 {
	return testutil.ToFloat64(h.counts.remote.WithLabelValues(cause))
}

// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gpuslice/gpuslice/enforcer/report/lines"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

const (
	// leaseHeader is the metadata that selects the lease of a call from another machine.
	leaseHeader = "Lease"

	remoteIdleTimeout    = time.Minute
	remotePingTimeout    = 15 * time.Second
	maxRemoteStreams     = 20
	maxRemoteHeader      = 16 << 10
	maxRemoteStreamBytes = 512 << 10 // received and not yet forwarded, per call and direction
	maxRemoteBytes       = 1 << 20   // the same per connection
)

type remoteKey struct{}

// ServeRemote serves clients on other machines on l until ctx ends. Each is the user of this host named by its certificate.
// Calls to a session are forwarded to the lease's broker.
func (s *Service) ServeRemote(ctx context.Context, l net.Listener) error {
	d := newRemoteListener(l, s.certificates, &s.users, lines.Bound(s.Log), s.counts.refuseRemote)
	s.remote.Store(d)
	defer s.remote.Store(nil)
	calls := grpc.NewServer(grpc.MaxRecvMsgSize(maxCall), grpc.UnaryInterceptor(s.answer))
	defer calls.Stop()
	leasepb.RegisterLeasesServer(calls, &server{service: s})
	h := &http.Server{
		Handler:        http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.remoteCall(calls, w, r) }),
		Protocols:      plainHTTP2(), // the door terminates TLS
		MaxHeaderBytes: maxRemoteHeader, ReadHeaderTimeout: handshakeTimeout, IdleTimeout: remoteIdleTimeout,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxRemoteStreams, MaxReceiveBufferPerStream: maxRemoteStreamBytes, MaxReceiveBufferPerConnection: maxRemoteBytes,
			SendPingTimeout: remotePingTimeout, PingTimeout: remotePingTimeout,
		},
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, remoteKey{}, conn)
		},
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	defer context.AfterFunc(ctx, func() { _ = h.Close() })()
	served := make(chan error, 1)
	go func() { served <- h.Serve(d) }() // until the door is closed
	err := d.run(ctx)
	return errors.Join(err, closing(h.Close()), closing(<-served))
}

// closing returns err, or nil if it only reports that a server was closed.
func closing(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// remoteAddress returns the session's address for clients on other machines, or "" if they are not served.
func (s *Service) remoteAddress(id string) string {
	d := s.remote.Load()
	if d == nil {
		return ""
	}
	_, host := d.certificates.current()
	_, port, err := net.SplitHostPort(d.Addr().String())
	if err != nil {
		return ""
	}
	return "tls:" + net.JoinHostPort(host, port) + "/" + id
}

func plainHTTP2() *http.Protocols {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &p
}

func (s *Service) remoteCall(leases http.Handler, w http.ResponseWriter, r *http.Request) {
	from := r.Context().Value(remoteKey{}).(*remote)
	switch path := r.URL.Path; {
	case from.refusal != nil:
		refuseCall(w, from.refusal)
	case strings.HasPrefix(path, "/"+leasepb.Leases_ServiceDesc.ServiceName+"/"):
		if err := s.calls.Of(from.who.UID).Wait(r.Context()); err != nil {
			refuseCall(w, status.FromContextError(err).Err())
			return
		}
		leases.ServeHTTP(w, r)
	case path == leasepb.Session_Work_FullMethodName || path == leasepb.Session_Stats_FullMethodName:
		s.relay(from, w, r)
	default:
		refuseCall(w, status.Errorf(codes.Unimplemented, "there is no call %.80q", path))
	}
}

// relay forwards a call to the broker of the user's lease. The broker checks the token.
func (s *Service) relay(from *remote, w http.ResponseWriter, r *http.Request) {
	ids := r.Header.Values(leaseHeader)
	if len(ids) != 1 {
		refuseCall(w, invalid("the call names %d leases: one is accepted, as the metadata `lease`", len(ids)))
		return
	}
	l, err := s.ownLease(from.who, ids[0])
	if err != nil {
		refuseCall(w, err)
		return
	}
	if r.URL.Path == leasepb.Session_Work_FullMethodName {
		s.logOf(from.who.UID).Info("session opened from another machine", "lease", l.ID, "uid", from.who.UID, "remote", from.who.remote)
	}
	proxy := httputil.ReverseProxy{
		Transport: from.to(l.ID, filepath.Join(s.dirOf(l.ID), sessionName)),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: l.ID})
			p.Out.Header.Del(leaseHeader)
		},
		ModifyResponse: func(response *http.Response) error {
			response.Body = &relayed{response.Body, response, noAnswer(l.ID, true)}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { refuseCall(w, noAnswer(l.ID, false)) },
		ErrorLog:     slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	proxy.ServeHTTP(w, r)
}

// noAnswer is the failure of a call to a broker, which has ended during the call if lost is set.
func noAnswer(id string, lost bool) error {
	f := &failure{status: codes.FailedPrecondition}
	f.Code, f.Message, f.Lost = leasepb.Code_SYNC_FAILED, fmt.Sprintf("the broker of lease %s does not answer", id), lost
	f.Advice = "connect again: if it has ended, another one is started"
	return f
}

// to returns this client's transport to a broker. Clients share none, so that one that does not read blocks no other.
func (r *remote) to(id, socket string) *http.Transport {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.relays[id]; t != nil {
		return t
	}
	t := &http.Transport{
		Protocols: plainHTTP2(), DisableCompression: true, IdleConnTimeout: remotePingTimeout, MaxResponseHeaderBytes: maxCall,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: maxRemoteStreamBytes, MaxReceiveBufferPerConnection: maxRemoteBytes},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", socket)
		},
	}
	if r.relays == nil {
		r.relays = make(map[string]*http.Transport)
	}
	r.relays[id] = t
	return t
}

// relayed is a broker's response. If the broker ends in the middle, the call ends with a failure.
type relayed struct {
	io.ReadCloser
	response     *http.Response
	ifBrokerEnds error
}

func (b *relayed) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && b.response.Request.Context().Err() == nil {
		b.response.Trailer = trailers(b.ifBrokerEnds)
		err = io.EOF
	}
	return n, err
}

func refuseCall(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "application/grpc")
	for name, values := range trailers(err) {
		w.Header()[name] = values
	}
	w.WriteHeader(http.StatusOK)
}

// trailers returns an error as gRPC trailers.
func trailers(err error) http.Header {
	var f *failure
	if errors.As(err, &f) {
		err = f.Status(f.status)
	}
	of := status.Convert(err).Proto()
	details, _ := proto.Marshal(of) // cannot fail: it was a message before
	h := http.Header{}
	h.Set("Grpc-Status", strconv.Itoa(int(of.GetCode())))
	h.Set("Grpc-Message", url.PathEscape(of.GetMessage()))
	h.Set("Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(details))
	return h
}

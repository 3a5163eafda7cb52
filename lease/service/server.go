// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// drainTimeout limits how long a stopping service waits for calls in progress.
const drainTimeout = 5 * time.Second

// maxCall is the maximum size of a message, and of its headers, in bytes.
const maxCall = 64 << 10

// Serve serves the API on l until ctx ends.
func (s *Service) Serve(ctx context.Context, l net.Listener) error {
	const maxStreams = 64
	g := grpc.NewServer(grpc.Creds(newKernel(&s.users)), grpc.InTapHandle(s.waitsForCall), grpc.MaxRecvMsgSize(maxCall), grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(2*time.Second), grpc.UnaryInterceptor(s.answer),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: time.Minute}))
	leasepb.RegisterLeasesServer(g, &server{service: s})
	stop := context.AfterFunc(ctx, func() {
		stopped := time.AfterFunc(drainTimeout, g.Stop)
		g.GracefulStop()
		stopped.Stop()
	})
	defer stop()
	err := g.Serve(l)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// answer puts a Failure into the details of each error.
func (s *Service) answer(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (reply any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.Log.Error("a call made the service panic", "err", p, "stack", string(debug.Stack()))
			reply, err = nil, status.Error(codes.Internal, "the lease service failed: its log says why")
		}
	}()
	reply, err = handle(ctx, request)
	var f *failure
	if errors.As(err, &f) {
		return nil, f.Status(f.status)
	}
	return reply, err
}

type server struct {
	leasepb.UnimplementedLeasesServer
	service *Service
}

// addressed adds the addresses of an active lease. A client on another machine also gets the token, as it cannot read the
// file.
func (s *server) addressed(who Peer, l *leasepb.Lease, err error) (*leasepb.Lease, error) {
	if err != nil || l.GetState() != leasepb.Lease_ACTIVE {
		return l, err
	}
	dir := s.service.dirOf(l.GetId())
	l.RemoteAddress = s.service.remoteAddress(l.GetId())
	if who.remote == "" {
		l.Address, l.TokenFile = "unix:"+filepath.Join(dir, sessionName), filepath.Join(dir, tokenName)
		return l, nil
	}
	l.Address, l.Token = l.GetRemoteAddress(), s.service.tokenOf(l.GetId())
	return l, nil
}

func (s *server) Acquire(ctx context.Context, r *leasepb.AcquireRequest) (*leasepb.Lease, error) {
	who, err := peerOf(ctx)
	if err != nil {
		return nil, err
	}
	l, err := s.service.Acquire(ctx, who, r)
	return s.addressed(who, l, err)
}

func (s *server) Renew(ctx context.Context, r *leasepb.RenewRequest) (*leasepb.Lease, error) {
	who, err := peerOf(ctx)
	if err != nil {
		return nil, err
	}
	l, err := s.service.Renew(ctx, who, r)
	return s.addressed(who, l, err)
}

func (s *server) Drop(ctx context.Context, r *leasepb.DropRequest) (*leasepb.Lease, error) {
	who, err := peerOf(ctx)
	if err != nil {
		return nil, err
	}
	return s.service.Drop(ctx, who, r)
}

func (s *server) List(ctx context.Context, r *leasepb.ListRequest) (*leasepb.ListReply, error) {
	who, err := peerOf(ctx)
	if err != nil {
		return nil, err
	}
	reply := &leasepb.ListReply{Leases: s.service.List(ctx, who, r.GetEnded())}
	for _, l := range reply.GetLeases() {
		_, _ = s.addressed(who, l, nil)
	}
	return reply, nil
}

func (s *server) Show(ctx context.Context, r *leasepb.ShowRequest) (*leasepb.Lease, error) {
	who, err := peerOf(ctx)
	if err != nil {
		return nil, err
	}
	l, err := s.service.Show(ctx, who, r.GetId())
	return s.addressed(who, l, err)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

const (
	leaseOne, leaseTwo = "lease-9f3c5e2a9b8d7614", "lease-9f3d000000000000"
	leaseEnded         = "lease-9fff000000000000"
)

// leaseLister is a lease service with two leases of its caller, and a third that has ended.
type leaseLister struct {
	leasepb.UnimplementedLeasesServer
	dropped []string
}

func (*leaseLister) of(id string) (*leasepb.Lease, error) {
	switch id {
	case leaseOne, leaseTwo:
		return &leasepb.Lease{Id: id, State: leasepb.Lease_ACTIVE, Overhead: 550 << 20}, nil
	case leaseEnded:
		return &leasepb.Lease{Id: id, State: leasepb.Lease_ENDED, Reason: "it expired", Overhead: 550 << 20}, nil
	}
	return nil, (&leasepb.Failure{Code: leasepb.Code_NOT_FOUND, Message: "you have no lease " + id}).Status(codes.NotFound)
}

func (s *leaseLister) Show(_ context.Context, r *leasepb.ShowRequest) (*leasepb.Lease, error) {
	return s.of(r.GetId())
}

func (s *leaseLister) Renew(_ context.Context, r *leasepb.RenewRequest) (*leasepb.Lease, error) {
	return s.of(r.GetId())
}

func (s *leaseLister) Drop(_ context.Context, r *leasepb.DropRequest) (*leasepb.Lease, error) {
	l, err := s.of(r.GetId())
	if err == nil {
		s.dropped = append(s.dropped, l.GetId())
	}
	return l, err
}

func (s *leaseLister) List(_ context.Context, r *leasepb.ListRequest) (*leasepb.ListReply, error) {
	reply := &leasepb.ListReply{}
	for _, id := range []string{leaseOne, leaseTwo, leaseEnded} {
		if l, _ := s.of(id); r.GetEnded() || l.GetState() == leasepb.Lease_ACTIVE {
			reply.Leases = append(reply.Leases, l)
		}
	}
	return reply, nil
}

func serveLeases(t *testing.T) (socket string, service *leaseLister) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gs") // t.TempDir is too long for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "leases.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	service = &leaseLister{}
	leasepb.RegisterLeasesServer(server, service)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return socket, service
}

func TestALeaseIsNamedByTheBeginningOfItsID(t *testing.T) {
	socket, service := serveLeases(t)
	for _, c := range []struct {
		args string
		want string // on standard output, or the error
		fail bool
	}{
		{"show lease-9f3c", `"id": "` + leaseOne, false},
		{"show 9f3d", `"id": "` + leaseTwo, false},
		{"show " + leaseOne + " 9f3d", `"id": "` + leaseTwo, false},
		{"show 9ff", `"reason": "it expired"`, false},
		{"show 9f", `"9f" names 2 slices (` + leaseOne + ", " + leaseTwo + "): give more of it", true},
		{"show lease-", "you have no lease lease-", true},
		{"show 3c5e", "you have no lease 3c5e", true},
		{"renew 9f3c 2h", leaseOne, false},
		{"renew lease-9f3 2h", "names 2 slices", true},
		{"drop --json lease-9f3c", `"id": "` + leaseOne, false},
		{"rm 9f3d lease-none", "you have no lease lease-none", true},
		{"list -q", leaseTwo + "\n", false},
		{"list -q --all", leaseEnded + "\n", false},
	} {
		out, said, code := cliRun(append([]string{"lease", "--lease-socket", socket}, strings.Fields(c.args)...)...)
		if got := map[bool]string{false: out, true: said}[c.fail]; (code != 0) != c.fail || !strings.Contains(got, c.want) {
			t.Errorf("%s: %d, %s%s", c.args, code, out, said)
		}
	}
	if want := []string{leaseOne, leaseTwo}; !slices.Equal(service.dropped, want) {
		t.Errorf("dropped are %v", service.dropped)
	}
	if out, _, _ := cliRun("lease", "--lease-socket", socket, "list", "-q"); strings.Contains(out, leaseEnded) {
		t.Errorf("without --all:\n%s", out)
	}
}

type leaseRuns struct{ lists }

func (leaseRuns) History(context.Context) ([]api.Run, error) {
	return []api.Run{
		{Slice: leaseEnded, Devices: []api.RunUse{{Device: cardA, Limit: 7<<30 + 550<<20, Peak: 3<<30 + 550<<20}}},
		{Slice: "run-1", Devices: []api.RunUse{{Device: cardA, Limit: 4 << 30, Peak: 3 << 30}}},
	}, nil
}

func TestAQuotaIsSuggestedForALeaseWithoutItsOverhead(t *testing.T) {
	leases, _ := serveLeases(t)
	socket := listen(t, leaseRuns{})
	out, said, code := cliRun("--socket", socket, "recommend", "--lease-socket", leases, "--sort", "of", "--format", "{{.Of}} {{.Suggested}}")
	if want := leaseEnded + " 3G\nrun-1 3G\n"; code != 0 || out != want || said != "" {
		t.Errorf("%d, %q%s", code, out, said)
	}
	out, said, code = cliRun("--socket", socket, "recommend", "--lease-socket", leases+".none", "9fff", "--format", "{{.Suggested}}")
	if code != 0 || out != "3648M\n" || !strings.Contains(said, "contains their overhead") {
		t.Errorf("without the lease service: %d, %q%s", code, out, said)
	}
}

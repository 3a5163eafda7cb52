// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gpuslice/gpuslice/lease/broker"
	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/test/await"
)

// countingSession is a broker's session that requires the token, and returns fixed counts or never answers.
type countingSession struct {
	leasepb.UnimplementedSessionServer
	token  string
	silent bool
}

func (c *countingSession) Stats(ctx context.Context, _ *leasepb.StatsRequest) (*leasepb.StatsReply, error) {
	if c.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	md, _ := metadata.FromIncomingContext(ctx)
	if got := md.Get("authorization"); len(got) != 1 || got[0] != "Bearer "+c.token {
		return nil, errors.New("that is not the token")
	}
	return &leasepb.StatsReply{Allocated: 1, Clients: 2, Requests: 3, Failures: 4, Launches: 5, LaunchFailures: 6, Syncs: 7, SyncFailures: 8, FreesRefused: 9, Written: 10, Read: 11, Peak: 12}, nil
}

func TestSessionsShowTheirBrokersCounters(t *testing.T) {
	s := &Service{Options: Options{Dir: t.TempDir()}, leases: make(map[string]*lease)}
	for id, session := range map[string]*countingSession{"works": {token: strings.Repeat("ab", tokenBytes)}, "hangs": {silent: true}, "refuses": {token: "other"}} {
		dir := s.dirOf(id)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		// Opening it blocks. A user can cause that with a file lease (fcntl(2), F_SETLEASE).
		if err := unix.Mkfifo(filepath.Join(dir, tokenName), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", filepath.Join(dir, sessionName))
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		leasepb.RegisterSessionServer(server, session)
		go func() { _ = server.Serve(l) }()
		t.Cleanup(server.Stop)
		s.leases[id] = &lease{serving: true, record: record{Session: broker.Config{Token: strings.Repeat("ab", tokenBytes)}}}
	}
	s.leases["begins"] = &lease{}            // no socket yet
	s.leases["gone"] = &lease{serving: true} // no socket any more
	var want strings.Builder
	for i, name := range []string{"allocated_bytes", "clients", "requests_total", "failures_total", "launches_total", "launch_failures_total", "syncs_total",
		"sync_failures_total", "frees_refused_total", "written_bytes_total", "read_bytes_total", "peak_bytes"} {
		m := sessionMetrics[i]
		kind := map[bool]string{true: "counter", false: "gauge"}[strings.HasSuffix(name, "_total")]
		help := strings.Split(strings.Split(m.desc.String(), `help: "`)[1], `"`)[0]
		fmt.Fprintf(&want, "# HELP gpuslice_lease_session_%s %s\n# TYPE gpuslice_lease_session_%s %s\ngpuslice_lease_session_%s{lease=\"works\"} %d\n", name, help, name, kind, name, i+1)
	}
	ask := func(ctx context.Context, id string) (*leasepb.StatsReply, error) {
		if id != "hangs" { // the timeout of the scrape has to end the request to "hangs" only
			ctx = context.WithoutCancel(ctx)
		}
		return s.stats(ctx, id)
	}
	collected := make(chan error, 1)
	go func() {
		collected <- testutil.CollectAndCompare(&sessions{s.active, ask}, strings.NewReader(want.String()))
	}()
	if err := await.Value(t, "a broker that hangs is waited for no longer", collected); err != nil {
		t.Error(err)
	}
}

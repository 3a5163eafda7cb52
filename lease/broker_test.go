// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/test/needs"
	"github.com/gpuslice/gpuslice/test/simulated"
)

// host is the lease service of the examples.
var host lease.Service

func TestMain(m *testing.M) { os.Exit(withHost(m)) }

func withHost(m *testing.M) int {
	flag.Parse()
	dir, err := os.MkdirTemp("/tmp", "lease-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	host.Socket = filepath.Join(dir, "leases.sock")
	listener, err := net.Listen("unix", host.Socket)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	server := grpc.NewServer()
	leasepb.RegisterLeasesServer(server, &leaser{brokers: map[string]*broker{}})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	if missing() != "" || os.Geteuid() != 0 { // an example cannot skip itself
		if err := flag.Set("test.skip", "^Example"); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	return m.Run()
}

// leaser is a lease service that only starts and stops brokers.
type leaser struct {
	leasepb.UnimplementedLeasesServer
	mutex   sync.Mutex
	brokers map[string]*broker
}

func (s *leaser) Acquire(_ context.Context, r *leasepb.AcquireRequest) (*leasepb.Lease, error) {
	b, err := beginBroker("--vram", fmt.Sprint(r.GetVram()))
	if err != nil {
		return nil, err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.brokers[b.dir] = b
	return &leasepb.Lease{Id: b.dir, Address: b.address, TokenFile: b.tokenFile, Vram: r.GetVram(), State: leasepb.Lease_ACTIVE}, nil
}

func (s *leaser) Drop(_ context.Context, r *leasepb.DropRequest) (*leasepb.Lease, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	b := s.brokers[r.GetId()]
	if b == nil {
		return nil, errors.New("there is no such lease")
	}
	delete(s.brokers, r.GetId())
	b.stop()
	return &leasepb.Lease{Id: r.GetId(), State: leasepb.Lease_ENDED}, nil
}

// broker is a broker in a slice, on the simulated driver.
type broker struct {
	dir                string
	address, tokenFile string
	command            *exec.Cmd
	exited             chan struct{}
	stderr             bytes.Buffer
}

var bin, _ = filepath.Abs("../bin")

func missing() string {
	for _, needed := range []string{"gpuslice", "gpuslice-broker", "libgpuslice.so", "fakecuda/libcuda.so.1"} {
		if _, err := os.Stat(filepath.Join(bin, needed)); err != nil {
			return needed
		}
	}
	return ""
}

// startBroker requires root: a broker is not dumpable, so an enforcer of the same user could not read its mappings.
func startBroker(t *testing.T, flags ...string) *broker {
	t.Helper()
	needs.Root(t)
	if needed := missing(); needed != "" {
		t.Skipf("requires bin/%s (make test-programs)", needed)
	}
	b, err := beginBroker(flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.stop)
	return b
}

func beginBroker(flags ...string) (*broker, error) {
	// A short path: the name of a socket is limited to 107 bytes.
	dir, err := os.MkdirTemp("/tmp", "lease-")
	if err != nil {
		return nil, err
	}
	session := filepath.Join(dir, "s")
	b := &broker{dir: dir, address: "unix:" + filepath.Join(session, "session.sock"), tokenFile: filepath.Join(session, "token"), exited: make(chan struct{})}
	b.command = exec.Command(filepath.Join(bin, "gpuslice"), append([]string{
		"run", "--vram", "1G", "--", filepath.Join(bin, "gpuslice-broker"), "--directory", session, "--vram", fmt.Sprint(vram),
	}, flags...)...)
	if os.Getenv(simulated.OnCard) == "" {
		b.command.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(bin, "fakecuda"), "FAKECUDA_STATE="+filepath.Join(dir, "machine"))
	}
	b.command.Stderr = &b.stderr
	stdout, err := b.command.StdoutPipe()
	if err == nil {
		err = b.command.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	lines := bufio.NewScanner(stdout)
	for range 2 {
		if !lines.Scan() {
			break
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, stdout)
		_ = b.command.Wait()
		close(b.exited)
	}()
	if _, err := os.Stat(b.tokenFile); err != nil || !strings.HasPrefix(lines.Text(), "token file") {
		b.stop()
		return nil, fmt.Errorf("the broker does not serve: %s", b.stderr.String())
	}
	return b, nil
}

func (b *broker) stop() {
	_ = b.command.Process.Signal(syscall.SIGTERM)
	<-b.exited
	_ = os.RemoveAll(b.dir)
}

func (b *broker) open(t *testing.T) *lease.Session {
	t.Helper()
	s, err := lease.Open(t.Context(), b.address, b.tokenFile)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (b *broker) exit(t *testing.T) int {
	t.Helper()
	select {
	case <-b.exited:
	case <-time.After(patience):
		t.Fatal("the broker does not end")
	}
	return b.command.ProcessState.ExitCode()
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t *testing.T, err error, code lease.Code) *lease.Error {
	t.Helper()
	var e *lease.Error
	if !errors.As(err, &e) || e.Code != code || e.Message == "" {
		t.Errorf("%v, not %v", err, code)
		return &lease.Error{}
	}
	return e
}

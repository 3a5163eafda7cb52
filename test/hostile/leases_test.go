//go:build hostile

// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// Bounds of the lease service. Times and CPU are the promised ones; as above, the test allows more.
const (
	mostLeasedBytes = 256 << 20
	mostLeasedCPU   = 50 // percent of a core
)

type leases struct {
	*host
	lease.Service
	daemon *exec.Cmd
	said   testhost.Output
	remote string
}

func (h *host) newLeases() *leases {
	h.T.Helper()
	l := &leases{host: h, Service: lease.Service{Socket: filepath.Join(h.Dir, "run", "leases.sock")}}
	bin := filepath.Join(programs, "bin") // accessible to all users
	h.Must(os.MkdirAll(bin, 0o755))
	for _, name := range []string{"gpuslice-leased", "gpuslice-broker", api.LibraryName, "fakecuda"} {
		h.Must(exec.Command("cp", "-r", filepath.Join(h.Bin, name), bin).Run())
	}
	made := exec.Command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-subj", "/CN=localhost",
		"-addext", "subjectAltName=DNS:localhost", "-keyout", filepath.Join(h.Dir, "key"), "-out", filepath.Join(h.Dir, "certificate"))
	if out, err := made.CombinedOutput(); err != nil {
		h.T.Fatalf("%v: %s", err, out)
	}
	free := must.Get(net.Listen("tcp", "127.0.0.1:0"))(h.T)
	l.remote = free.Addr().String()
	h.Must(free.Close())
	file, err := os.OpenFile(h.Config(), os.O_APPEND|os.O_WRONLY, 0)
	h.Must(err)
	_, err = fmt.Fprintf(file, "\n[leases]\nsocket = %q\ndir = %q\ncgroup = %q\ncpus = %v\nmemory_max = \"1GiB\"\ntls_address = %q\ntls_certificate = %q\ntls_key = %q\ntls_client_ca = %q\n",
		l.Socket, filepath.Join(h.Dir, "run", "leases"), filepath.Base(h.Dir)+"-leases", float64(cpuPercent)/100, l.remote,
		filepath.Join(h.Dir, "certificate"), filepath.Join(h.Dir, "key"), filepath.Join(h.Dir, "certificate"))
	h.Must(err)
	h.Must(file.Close())
	h.Must(os.Chmod(filepath.Join(h.Dir, "fake", "state"), 0o666))
	l.daemon = exec.Command(filepath.Join(bin, "gpuslice-leased"), "--config", h.Config())
	l.daemon.Env = append(h.Env(), "LD_LIBRARY_PATH="+filepath.Join(bin, "fakecuda"))
	l.daemon.Stdout, l.daemon.Stderr = &l.said, &l.said
	h.Must(l.daemon.Start())
	h.T.Cleanup(func() {
		if all, err := l.List(context.Background()); err == nil {
			for _, one := range all {
				_, _ = l.Drop(context.Background(), one.ID)
			}
		}
		_ = l.daemon.Process.Signal(unix.SIGTERM)
		_, _ = l.daemon.Process.Wait() // cmd.Wait would block on a remaining broker
		if h.T.Failed() {
			h.T.Logf("the lease service said:\n%s", linesOf(l.said.String()))
		}
		for _, dir := range h.Cgroups(filepath.Base(h.Dir) + "-leases") {
			h.Must(os.Remove(dir)) // fails unless empty: no lease is left
		}
	})
	h.Eventually("the lease service answers", func() bool {
		_, err := l.List(context.Background())
		return err == nil
	})
	return l
}

// worksFor acts as a well-behaved lease client until ctx ends, and checks its data and results.
func (l *leases) worksFor(ctx context.Context, s *lease.Session, cycles, lists *latencies) error {
	ptx, err := os.ReadFile("../lease/examples/kernels.ptx")
	if err != nil {
		return err
	}
	background := context.Background()
	module, err := s.Load(background, ptx)
	if err != nil {
		return err
	}
	const size = 1 << 20
	var zero [size]byte
	for n := byte(1); ctx.Err() == nil; n++ {
		want, got := bytes.Repeat([]byte{0, 0, 0x80, 0x3f}, size/4), make([]byte, size) // 1.0
		err := cycles.time(func() error {
			b, err := s.Alloc(background, size)
			if err != nil {
				return err
			}
			if err := b.Read(background, 0, got); err != nil {
				return err
			}
			if !bytes.Equal(got, zero[:]) {
				return fmt.Errorf("new memory is not zero")
			}
			if err := b.Write(background, 0, want); err != nil {
				return err
			}
			if err := module.Launch(background, "scale", lease.Shape{Block: lease.Dim{X: 3}}, b, float32(2), uint32(3)); err != nil {
				return err
			}
			if err := s.Sync(background); err != nil {
				return err
			}
			if err := b.Read(background, 0, got); err != nil {
				return err
			}
			return b.Free(background)
		})
		if err != nil {
			return err
		}
		for i := range 3 {
			copy(want[4*i:], []byte{0, 0, 0, 0x40}) // 2.0
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("other bytes came back: %x", got[:16])
		}
		if err := lists.time(func() error { _, err := l.List(background); return err }); err != nil {
			return err
		}
		pause(ctx, 20*time.Millisecond)
	}
	return nil
}

func TestAHostileLeaseClientHarmsNoOther(t *testing.T) {
	if *only != "" && !slices.Contains(strings.Split(*only, ","), "client") {
		t.Skip("it does not act")
	}
	h := newHost(t, "")
	h.lasts = *duration / 4
	l := h.newLeases()
	good := must.Get(l.Acquire(context.Background(), lease.Request{VRAM: 64 * mib}))(h.T)
	s := must.Get(lease.Open(context.Background(), good.Address, good.TokenFile))(h.T)
	defer func() { _ = s.Close() }()
	client := h.begin("client", victims{Leases: l.Socket, Remote: l.remote, Lease: good.ID})
	visitor := h.begin("visitor", victims{Leases: l.Socket})
	client.waitBegun(h)
	visitor.waitBegun(h)
	before, enforcer, begin := h.costOf(l.daemon.Process.Pid), h.cost(), time.Now()
	working, rest := context.WithTimeout(context.Background(), h.lasts)
	defer rest()
	var cycles, lists latencies
	expect.NoError(t, l.worksFor(working, s, &cycles, &lists), "the well-behaved client")
	after, enforcerAfter, took := h.costOf(l.daemon.Process.Pid), h.cost(), time.Since(begin)
	client.report(h)
	visitor.report(h)
	for what, of := range map[string]*latencies{"the well-behaved client's work on 1 MiB": &cycles, "the list of leases": &lists} {
		if len(of.took) == 0 {
			t.Errorf("%s never came about", what)
			continue
		}
		t.Logf("%s: %v (promised: %v at p99)", what, of, slowest)
		if quick := of.at(5); quick > allowedTime {
			t.Errorf("%s takes %v or longer 19 times of 20, want at most %v", what, quick, allowedTime)
		}
	}
	cpu := func(before, after cost) float64 { return 100 * float64(after.cpu-before.cpu) / float64(took) }
	t.Logf("the lease service: %d MiB resident at most, %.1f%% of a core (promised: %d%%), %d lines in its log; the enforcer: %d MiB, %.1f%%",
		after.peak>>20, cpu(before, after), mostLeasedCPU, strings.Count(l.said.String(), "\n"), enforcerAfter.peak>>20, cpu(enforcer, enforcerAfter))
	expect.True(t, after.peak <= mostLeasedBytes, "the lease service had", after.peak, "bytes resident, want at most", mostLeasedBytes)
	expect.True(t, enforcerAfter.peak <= mostBytes, "the enforcer had", enforcerAfter.peak, "bytes resident, want at most", mostBytes)
	if got := cpu(before, after); got > 3*mostLeasedCPU {
		t.Errorf("the lease service took %.1f%% of a core, want at most %d%%", got, 3*mostLeasedCPU)
	}
	if n := h.descriptors(l.daemon.Process.Pid); n > mostFiles {
		t.Errorf("the lease service has %d files open, want at most %d", n, mostFiles)
	}
	// After its leases are dropped, nothing of the hostile client is left.
	for _, one := range must.Get(l.List(context.Background()))(h.T) {
		if one.ID != good.ID {
			_, err := l.Drop(context.Background(), one.ID)
			h.Must(err)
		}
	}
	h.Eventually("the good lease alone is left", func() bool {
		slices := h.Slices()
		return len(slices) == 1 && slices[0].ID == good.ID
	})
	expect.NoError(t, s.Sync(context.Background()), "the well-behaved client's session")
}

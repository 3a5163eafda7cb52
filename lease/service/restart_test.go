// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/test/await"
)

// recordOf returns the record that the next service would read.
func (b *bench) recordOf(id string) record {
	b.t.Helper()
	r, err := readRecord(b.dirOf(id))
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *bench) tokenOf(id string) string {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.dirOf(id), tokenName))
	if err != nil {
		b.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func (b *bench) kill(pid int) {
	b.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) connects(id string) bool {
	conn, err := net.Dial("unix", filepath.Join(b.dirOf(id), sessionName))
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// serves reports whether the lease's latest broker serves.
func (b *bench) serves(id string) bool {
	r := b.recordOf(id)
	return syscall.Kill(r.PID, 0) == nil && b.show(id).GetRestarts() == r.Session.Number && b.connects(id)
}

func (b *bench) show(id string) *leasepb.Lease {
	b.t.Helper()
	l, err := b.Show(context.Background(), as(alice), id)
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

func (b *bench) drop(id string) time.Duration {
	b.t.Helper()
	begin := time.Now()
	if _, err := b.Drop(context.Background(), as(alice), &leasepb.DropRequest{Id: id}); err != nil {
		b.t.Fatal(err)
	}
	return time.Since(begin)
}

func TestExitedBrokerIsReplacedInTheSameLease(t *testing.T) {
	for name, c := range map[string]struct {
		how, reason string // how is of the stand-in for a broker in bench_test.go: it exits at its first connection
		end         func(b *bench, id string)
	}{
		"killed":             {"", "signal: killed", func(b *bench, id string) { b.kill(b.recordOf(id).PID) }},
		"stopped by SIGTERM": {"", "signal: terminated", func(b *bench, id string) { _ = syscall.Kill(b.recordOf(id).PID, syscall.SIGTERM) }},
		"a fault":            {"faults", "a device fault destroyed its context", func(b *bench, id string) { b.connects(id) }},
		"a long load":        {"loads", "a module took longer to load than load_timeout (1s)", func(b *bench, id string) { b.connects(id) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.how)
			id, other := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20}).GetId(), b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20}).GetId()
			before, others := b.recordOf(id), b.recordOf(other)
			slice := b.enforcer.slices[id].Generation
			c.end(b, id)
			eventually(t, "another broker was started", func() bool { return b.show(id).GetRestarts() == 1 })
			after := b.recordOf(id)
			if l := b.show(id); l.GetState() != leasepb.Lease_ACTIVE || l.GetRestartReason() != c.reason || l.GetReason() != "" {
				t.Errorf("%v", l)
			}
			want := before.Session
			want.Number, want.Before = 1, c.reason
			if got := after.Session; got.Number != want.Number || got.Before != want.Before || got.Token != want.Token || got.VRAM != want.VRAM || !got.Followed {
				t.Errorf("the new broker received %+v, the former one %+v", got, before.Session)
			}
			if after.PID == before.PID || after.BrokerUID != before.BrokerUID || after.Generation != slice || len(b.enforcer.requests) != 2 {
				t.Errorf("the lease is %+v: want %+v as before", after, before)
			}
			in, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(after.PID), "cgroup"))
			if err != nil || !strings.Contains(string(in), b.Cgroup+"/"+id) {
				t.Errorf("%s, %v", in, err)
			}
			if b.recordOf(other).identity != others.identity {
				t.Error("the other lease has another broker")
			}
		})
	}
}

// atOnce is the longest time for a drop, which takes about half a second. A drop that waited for another broker would take
// restartInterval.
const atOnce = restartInterval / 2

func TestALeaseThatFaultsInALoopIsRestartedAtABoundedRate(t *testing.T) {
	await.Once(t, "a drop", atOnce, func() time.Duration {
		b := newBench(t, "faults")
		id, other := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20}).GetId(), b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20}).GetId()
		others := b.recordOf(other)
		begin := time.Now()
		for range restartsAtOnce {
			n := b.show(id).GetRestarts()
			eventually(t, "it has faulted", func() bool { b.connects(id); return b.show(id).GetRestarts() > n })
		}
		for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			b.connects(id)
		}
		if n := b.show(id).GetRestarts(); float64(n) > restartsAtOnce+time.Since(begin).Seconds()/restartInterval.Seconds() {
			t.Errorf("%d brokers in %v", n, time.Since(begin))
		}
		if b.recordOf(other).identity != others.identity || b.show(other).GetRestarts() != 0 {
			t.Error("the other lease has another broker")
		}
		return b.drop(id)
	})
}

func TestLeaseCanBeDroppedWhileItsBrokerCannotRestart(t *testing.T) {
	for how, want := range map[string]string{
		"later refuses": "starting another broker failed, trying again: its broker failed to start: there is no GPU",
		"later mute":    "signal: killed",
	} {
		await.Once(t, how+": a drop", atOnce, func() time.Duration {
			b := newBench(t, how)
			id := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20}).GetId()
			b.kill(b.recordOf(id).PID)
			eventually(t, "the restart has its reason", func() bool { return b.show(id).GetRestartReason() == want && b.recordOf(id).Session.Number > 0 })
			if l := b.show(id); l.GetState() != leasepb.Lease_ACTIVE {
				t.Errorf("%v", l)
			}
			took := b.drop(id)
			b.nothingIsLeft()
			return took
		})
	}
}

func TestLeaseWithoutASliceGetsNoNewBroker(t *testing.T) {
	b := newBench(t, "")
	id := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20}).GetId()
	b.enforcer.set(func() { b.enforcer.refuse = api.ErrUnreachable })
	b.kill(b.recordOf(id).PID)
	eventually(t, "the restart has its reason", func() bool { return b.show(id).GetRestartReason() == "signal: killed" })
	b.enforcer.set(func() { b.enforcer.refuse = nil; delete(b.enforcer.slices, id) })
	eventually(t, "the lease has ended", func() bool { return b.show(id).GetState() != leasepb.Lease_ACTIVE })
	if l := b.show(id); l.GetReason() != "its slice was released" || l.GetRestarts() != 0 {
		t.Errorf("%v", l)
	}
	b.nothingIsLeft()
}

func TestRestartedServiceFinishesAnEnd(t *testing.T) {
	b := newBench(t, "")
	id := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20}).GetId()
	b.stop()
	// The service was killed after it had ended the broker.
	l := b.leases[id]
	b.mark(l, reasonDropped)
	b.kill(l.PID)
	<-l.exited
	b.start()
	b.nothingIsLeft()
	if shown := b.show(id); shown.GetState() != leasepb.Lease_ENDED || shown.GetReason() != reasonDropped {
		t.Errorf("%v", shown)
	}
}

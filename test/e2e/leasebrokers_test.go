// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// restarted waits until the lease counts so many restarts: a broker works before it is counted.
func (h *leaseHost) restarted(id string, times uint64) (l *lease.Lease) {
	h.T.Helper()
	h.Eventually(fmt.Sprint("the lease has restarted ", times, " times"), func() bool {
		l = must.Get(h.Show(context.Background(), id))(h.T)
		return l.Restarts == times
	})
	return l
}

func TestABrokerThatIsKilledIsFollowedByAnotherInItsLease(t *testing.T) {
	h := newLeaseHost(t)
	ctx, cancel := context.WithTimeout(context.Background(), testhost.Patience)
	defer cancel()
	one, other := h.acquire(lease.Request{VRAM: 64 * mib, TTL: time.Hour}), h.acquire(lease.Request{VRAM: 64 * mib})
	s, still := h.open(one), h.open(other)
	old := must.Get(s.Alloc(ctx, 64*mib))(h.T)
	kept, err := still.Alloc(ctx, 64*mib)
	h.Must(err)
	before := h.slice(one.ID)
	// Kill the broker during a write: the client must report it.
	writing := make(chan error, 1)
	go func() {
		data := make([]byte, 8*mib)
		for {
			if err := old.Write(ctx, 0, data); err != nil {
				writing <- err
				return
			}
		}
	}()
	h.Must(syscall.Kill(h.brokerOf(one.ID), syscall.SIGKILL))
	var lost *lease.Error
	if err := <-writing; !errors.As(err, &lost) || lost.Code != lease.SyncFailed && lost.Code != lease.InvalidHandle || lost.Advice == "" || lost.Lost != (lost.Code == lease.SyncFailed) {
		t.Errorf("a write to a broker that is killed: %v", err)
	}
	if err := old.Write(ctx, 0, []byte("x")); !errors.As(err, &lost) || lost.Code != lease.InvalidHandle || !strings.Contains(err.Error(), "former broker: signal: killed") {
		t.Errorf("a buffer of before: %v", err)
	}
	expect.NoError(t, works(s, 64*mib), "the same session, the same lease")
	if l := h.restarted(one.ID, 1); l.State != lease.Active || l.RestartReason != "signal: killed" || l.Address != one.Address || !l.Expires.Equal(*one.Expires) {
		t.Errorf("%+v", l)
	}
	if after := h.slice(one.ID); after.Generation != before.Generation || after.Quotas[0] != before.Quotas[0] || after.Remaining > before.Remaining {
		t.Errorf("the lease is %+v: want %+v as before", after, before)
	}
	expect.NoError(t, kept.Free(ctx), "another lease")
	_, err = h.Drop(ctx, one.ID)
	h.Must(err)
	_, err = h.Drop(ctx, other.ID)
	h.Must(err)
	h.nothingIsLeft()
}

func TestALeaseThatFaultsRepeatedlyDisturbsNoOther(t *testing.T) {
	h := newLeaseHost(t)
	ctx, cancel := context.WithTimeout(context.Background(), testhost.Patience)
	defer cancel()
	bad := h.acquire(lease.Request{VRAM: 16 * mib})
	s := h.open(bad)
	type neighbour struct {
		id     string
		broker int
		buffer *lease.Buffer
		module *lease.Module
		s      *lease.Session
	}
	var others []neighbour
	for range 2 {
		l := h.acquire(lease.Request{VRAM: 16 * mib})
		n := neighbour{id: l.ID, broker: h.brokerOf(l.ID), s: h.open(l)}
		var err error
		n.buffer, err = n.s.Alloc(ctx, 4)
		h.Must(err)
		n.module, err = n.s.Load(ctx, []byte(kernels))
		h.Must(err)
		others = append(others, n)
	}
	for i := range uint32(4) {
		buffer := must.Get(s.Alloc(ctx, mib))(h.T)
		module := must.Get(s.Load(ctx, []byte(kernels)))(h.T)
		h.Must(module.Launch(ctx, "store", lease.Shape{}, uint64(0x10), i))
		var fault *lease.Error
		if err := s.Sync(ctx); !errors.As(err, &fault) || fault.Code != lease.SyncFailed || !strings.Contains(err.Error(), "ILLEGAL_ADDRESS") || !strings.Contains(fault.Message, "same lease") {
			t.Fatalf("fault %d: %v", i, err)
		}
		if err := buffer.Write(ctx, 0, []byte("x")); !errors.As(err, &fault) || fault.Code != lease.InvalidHandle && fault.Code != lease.SyncFailed {
			t.Errorf("a buffer of before: %v", err)
		}
		for _, n := range others {
			h.Must(n.module.Launch(ctx, "store", lease.Shape{}, n.buffer, 100+i))
			h.Must(n.s.Sync(ctx))
			var got [4]byte
			h.Must(n.buffer.Read(ctx, 0, got[:]))
			if got != [4]byte{byte(100 + i)} || h.brokerOf(n.id) != n.broker {
				t.Errorf("after fault %d another lease has %v and broker %d, which was %d", i, got, h.brokerOf(n.id), n.broker)
			}
		}
	}
	expect.NoError(t, works(s, 16*mib))
	expect.Equal(t, h.restarted(bad.ID, 4).RestartReason, "a device fault destroyed its context")
}

func TestABrokerOutlivesBothDaemons(t *testing.T) {
	h := newLeaseHost(t)
	l := h.acquire(lease.Request{VRAM: 64 * mib, TTL: time.Hour})
	dropped := h.acquire(lease.Request{VRAM: 64 * mib})
	s := h.open(l)
	keep, err := s.Alloc(context.Background(), 16*mib)
	h.Must(err)
	h.stop(unix.SIGKILL)
	expect.NoError(t, works(s, mib), "without the lease service")
	h.Stop(unix.SIGKILL)
	expect.NoError(t, works(s, mib), "without either")
	h.Must(syscall.Kill(h.brokerOf(dropped.ID), syscall.SIGKILL))
	h.start()
	h.Start()
	h.Eventually("both leases are restored, and the one without a broker gets another", func() bool {
		all, err := h.List(context.Background())
		return err == nil && len(all) == 2 && all[0].Restarts+all[1].Restarts == 1
	})
	expect.NoError(t, works(h.open(dropped), 64*mib), "with another broker")
	_, err = h.Drop(context.Background(), dropped.ID)
	h.Must(err)
	expect.NoError(t, works(s, mib), "with both")
	if shown, err := h.Show(context.Background(), l.ID); err != nil || shown.State != lease.Active || shown.Expires == nil || shown.Charged < keep.Size() {
		t.Errorf("%+v, %v", shown, err)
	}
	// Drop the lease while the enforcer is down; the next enforcer finds it gone.
	h.Stop(unix.SIGKILL)
	expect.NoError(t, must.Err(h.Drop(context.Background(), l.ID)))
	h.Start()
	h.Eventually("its slice is gone", h.IsGone(l.ID))
	h.nothingIsLeft()
}

func TestABrokerHasNoRightsAndIsBounded(t *testing.T) {
	h := newLeaseHost(t)
	l := h.acquire(lease.Request{VRAM: 64 * mib})
	pid := h.brokerOf(l.ID)
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(h.T)
	for _, want := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		expect.Contains(t, string(text), "\n"+want+"\n")
	}
	// The files of a non-dumpable process belong to root.
	info := must.Get(os.Stat(fmt.Sprintf("/proc/%d/environ", pid)))(h.T)
	expect.Equal(t, info.Sys().(*syscall.Stat_t).Uid, 0, "it is dumpable: its files belong to uid")
	bounds := 0
	in := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)))(h.T)
	for _, place := range []string{"", "unified/", "memory/", "pids/", "cpu/", "cpu,cpuacct/"} {
		for file, want := range map[string]string{"memory.max": "4294967296", "memory.limit_in_bytes": "4294967296", "pids.max": "256"} {
			bound, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", place, h.cgroup, l.ID, file))
			if err != nil {
				continue
			}
			if bounds++; strings.TrimSpace(string(bound)) != want {
				t.Errorf("%s%s: %s", place, file, bound)
			}
		}
	}
	// A host with cgroup v2 only may delegate no controller to bound it with.
	controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if has := strings.Fields(string(controllers)); bounds == 0 && (err != nil || slices.Contains(has, "memory") || slices.Contains(has, "pids")) {
		t.Errorf("nothing bounds it: %s", in)
	}
}

func TestALeaseEndsWithItsTimeWhileItsKernelNeverEnds(t *testing.T) {
	h := newLeaseHost(t)
	ctx, cancel := context.WithTimeout(context.Background(), testhost.Patience)
	defer cancel()
	l, other := h.acquire(lease.Request{VRAM: 64 * mib}), h.acquire(lease.Request{VRAM: 64 * mib})
	s, still := h.open(l), h.open(other)
	module, err := s.Load(ctx, []byte(".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry endless()\n{\nAGAIN:\n\tbra AGAIN;\n}\n"))
	h.Must(err)
	h.Must(module.Launch(ctx, "endless", lease.Shape{}))
	must.Get(h.Renew(ctx, l.ID, time.Second))(t)
	var refusal *lease.Error
	if err := s.Sync(ctx); !errors.As(err, &refusal) || refusal.Code != lease.Expired { // waits for the kernel
		t.Errorf("the error at the end: %v", err)
	}
	if ended := h.ended(l.ID); ended.State != lease.Ended || ended.Reason != "it expired" {
		t.Errorf("%+v", ended)
	}
	expect.NoError(t, works(still, 64*mib), "another lease")
	_, err = h.Drop(ctx, other.ID)
	h.Must(err)
	h.nothingIsLeft()
}

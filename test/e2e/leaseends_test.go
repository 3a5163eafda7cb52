// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

func TestALeaseEndsWhenItsTimeIsOver(t *testing.T) {
	h := newLeaseHost(t)
	l := h.acquire(lease.Request{VRAM: 64 * mib, TTL: time.Second})
	s := h.open(l)
	if _, err := s.Alloc(context.Background(), 32*mib); err != nil {
		t.Log(err) // on a busy machine the lease may have expired
	}
	if ended := h.ended(l.ID); ended.State != lease.Ended || ended.Reason != "its time was over" {
		t.Errorf("%+v", ended)
	}
	h.Eventually("its slice is gone", h.IsGone(l.ID))
	h.nothingIsLeft()
}

func TestALeaseEndsWithItsTimeWhileItsKernelNeverEnds(t *testing.T) {
	h := newLeaseHost(t)
	ctx, cancel := context.WithTimeout(context.Background(), testhost.Patience)
	defer cancel()
	l, other := h.acquire(lease.Request{VRAM: 64 * mib, TTL: 3 * time.Second}), h.acquire(lease.Request{VRAM: 64 * mib})
	s, still := h.open(l), h.open(other)
	module, err := s.Load(ctx, []byte(".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry endless()\n{\nAGAIN:\n\tbra AGAIN;\n}\n"))
	h.Must(err)
	h.Must(module.Launch(ctx, "endless", lease.Shape{}))
	var refusal *lease.Error
	if err := s.Sync(ctx); !errors.As(err, &refusal) || refusal.Code != lease.Expired { // waits for the kernel
		t.Errorf("the end is told as %v", err)
	}
	if ended := h.ended(l.ID); ended.State != lease.Ended || ended.Reason != "its time was over" {
		t.Errorf("%+v", ended)
	}
	expect.NoError(t, works(still, 64*mib), "another lease")
	_, err = h.Drop(ctx, other.ID)
	h.Must(err)
	h.nothingIsLeft()
}

func TestALeaseThatLingersEndsWithItsLastClient(t *testing.T) {
	h := newLeaseHost(t)
	linger := 50 * time.Millisecond
	l := h.acquire(lease.Request{VRAM: 64 * mib, Linger: &linger})
	s := h.open(l)
	expect.NoError(t, works(s, mib))
	h.Must(s.Close())
	if ended := h.ended(l.ID); ended.State != lease.Ended || ended.Reason != "nobody was connected any more" {
		t.Errorf("%+v", ended)
	}
	h.nothingIsLeft()
}

func TestALeaseWhoseSliceIsReleasedHasEnded(t *testing.T) {
	h := newLeaseHost(t)
	l := h.acquire(lease.Request{VRAM: 64 * mib})
	_, err := h.Client.Release(context.Background(), l.ID, 0, true)
	h.Must(err)
	if ended := h.ended(l.ID); ended.State != lease.Ended || ended.Reason != "its slice was released" {
		t.Errorf("%+v", ended)
	}
	h.nothingIsLeft()
}

func TestManySmallLeasesEndAsFastAsOne(t *testing.T) {
	h := newLeaseHost(t)
	var all []*lease.Lease
	for range 8 {
		all = append(all, h.acquire(lease.Request{VRAM: 8 * mib}))
	}
	drop := func(l *lease.Lease) time.Duration {
		begin := time.Now()
		expect.NoError(t, must.Err(h.Drop(context.Background(), l.ID)))
		return time.Since(begin)
	}
	await.Once(t, "a drop beside others", time.Second, func() time.Duration { // ten times the usual duration
		return drop(h.acquire(lease.Request{VRAM: 8 * mib}))
	})
	for _, l := range all {
		t.Logf("dropped in %v", drop(l))
	}
	h.nothingIsLeft()
}

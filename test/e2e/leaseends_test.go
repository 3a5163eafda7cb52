// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/testhost"
)

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

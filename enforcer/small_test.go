// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// A program's first allocation on a device is a context.
func TestAQuotaInWhichNothingCouldRunIsRefused(t *testing.T) {
	for _, c := range []struct {
		name              string
		shows             uint64 // observed size of a first context
		small, sufficient uint64
	}{
		{name: "below what a context costs", shows: 400 * mib, small: 400*mib - 1, sufficient: 400 * mib},
		{name: "what a process shows counts up to what the operator expects", shows: 3 * gib, small: 512*mib - 1, sufficient: 512 * mib},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := context.Background()
			h, truth := newTruthHost(t)
			h.stop()
			h.options.ContextBytes = 512 * mib
			h.start()
			if _, err := h.CreatePool(ctx, "early", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 100)}}); err != nil {
				t.Fatalf("what a context costs is not known yet: %v", err)
			}
			p, _ := h.session("first", on(gpu0, 4*gib))
			p.must("attach")
			asked := p.must("cost 0")
			p.must("charge 0 %d", asked)
			p.must("context 0 %d", asked)
			truth.set(gpu0, p.pid(), c.shows)
			p.must("truth 0")
			eventually(t, "it is learned", func() bool { return h.device(gpu0).Context == c.shows })
			p.kill()
			eventually(t, "the process has ended", func() bool { _, err := h.Slice(ctx, "first"); return err != nil })
			h.give("first", on(gpu0, 4*gib))
			refused := func(what string, err error) {
				t.Helper()
				expect.ErrorContains(t, err, "on device 0 ("+gpu0+"), where a CUDA context alone takes "+api.FormatSize(c.shows), what)
			}
			pool := func(do func(context.Context, string, api.PoolRequest) (api.Pool, error), name string, bytes uint64) error {
				return must.Err(do(ctx, name, api.PoolRequest{Quotas: []api.Quota{on(gpu0, bytes)}}))
			}
			register := func(id string, bytes uint64, mode api.Mode) error {
				return must.Err(h.ask(id, func(r *api.RegisterRequest) { r.Mode = mode }, on(gpu0, bytes)))
			}
			refused("register", register("a", c.small, api.Enforce))
			_, err := h.set("first", on(gpu0, c.small))
			refused("set", err)
			refused("create a pool", pool(h.CreatePool, "p", c.small))
			expect.NoError(t, must.Err(h.set("first", on(gpu0, c.sufficient))))
			expect.NoError(t, pool(h.CreatePool, "p", c.sufficient))
			refused("set a pool", pool(h.SetPool, "p", c.small))
			expect.NoError(t, register("b", c.sufficient, api.Enforce))
			expect.NoError(t, register("c", c.small, api.Record), "nothing is refused to a slice that records")
			h.stop()
			h.start()
			if d := h.see("first").Devices; len(d) == 0 || d[0].Limit != c.sufficient {
				t.Errorf("%+v", d)
			}
		})
	}
}

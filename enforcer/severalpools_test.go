// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

var both = api.PoolNames{"b", "a"}

// twoPools creates pool a, with 6 GiB of device 0, and pool b, with 2 GiB of device 1.
func (h *host) twoPools() {
	h.t.Helper()
	h.pool("a", on(gpu0, 6*gib))
	h.pool("b", on(gpu1, 2*gib))
}

func (p *proc) usesBoth() *proc {
	p.t.Helper()
	p.uses()
	p.must("device %s %d", hex1, 80*gib)
	return p
}

func TestASliceDrawsOnADevicesPoolThere(t *testing.T) {
	for name, truth := range map[string]*fakeTruth{"NVML": {}, "no NVML": nil} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, nil)
			if truth != nil {
				h = newHost(t, truth)
			}
			h.twoPools()
			s, other := h.memberOf("s", both, on(gpu0, 4*gib), on(gpu1, 8*gib)).usesBoth(), h.member("other", "a").uses()
			none := h.memberOf("none", both).usesBoth()
			s.must("charge 0 %d", 4*gib)
			s.expect("refused", "charge 0 1") // by its own quota
			s.must("charge 1 %d", gib)
			none.must("charge 1 %d", gib)
			s.expect("refused", "charge 1 1")
			other.must("charge 0 %d", 2*gib)
			none.expect("refused", "charge 0 1")
			other.expect("status 5", "device %s %d", hex1, 80*gib)
			figures := func() string {
				a, b := h.seePool("a"), h.seePool("b")
				return fmt.Sprint(a.Members, a.Devices[0].Used/gib, a.ProcessCount, b.Members, b.Devices[0].Used/gib, b.ProcessCount)
			}
			must.Equal(t, figures(), "[none other s] 6 3 [none s] 2 2")
			if d := h.see("none").Devices; len(d) != 2 || d[0].Pool != "a" || d[0].Limit != 6*gib || d[1].Pool != "b" || d[1].Limit != 2*gib {
				t.Fatalf("%+v", d)
			}
			must.Equal(t, h.seePool("b").Devices[0].Refusals, 1, "b has refused")
			h.restart()
			must.Equal(t, figures(), "[none other s] 6 3 [none s] 2 2", "after a restart")
			s.tell("exec")
			s.usesBoth()
			eventually(t, "memory held before the exec is released in both ledgers", func() bool { return figures() == "[none other s] 2 3 [none s] 1 2" })
			none.must("charge 0 %d", 4*gib)
			none.kill()
			eventually(t, "a death gives back in both", func() bool { return figures() == "[other s] 2 2 [s] 0 1" })
			s.must("charge 1 %d", 2*gib)
			s.expect("refused", "charge 1 1")
		})
	}
}

func TestOverheadIsChargedToTheDevicesPool(t *testing.T) {
	h, truth := newTruthHost(t)
	h.twoPools()
	s := h.memberOf("s", both).usesBoth()
	s.must("charge 0 %d", gib)
	truth.set(gpu0, s.pid(), 3*gib)
	truth.set(gpu1, s.pid(), gib)
	eventually(t, "it counts in the pools", func() bool { return h.pooled("a") == 3*gib && h.pooled("b") == gib })
	s.must("half 1 %d", gib/2)
	truth.set(gpu1, s.pid(), 3*gib/2)
	eventually(t, "and so does what was charged to the slice only", func() bool { return h.pooled("a") == 3*gib && h.pooled("b") == 3*gib/2 })
}

func TestTwoPoolsOfOneDeviceAreRefused(t *testing.T) {
	ctx := context.Background()
	h := newHost(t, &fakeTruth{})
	h.twoPools()
	h.pool("a2", on(gpu0, gib))
	h.pool("all", on(api.AllDevices, gib))
	h.pool("every", on(api.AllDevices, gib))
	p := start(t, "/nowhere", "")
	for want, pools := range map[string]api.PoolNames{
		"pools a and a2 both have a quota on device 0 (" + gpu0 + "): slice s can be in one of them": {"a2", "b", "a"},
		"pools a and all both have a quota on device 0 (" + gpu0 + ")":                               {"all", "a"},
		"pools all and every both have a quota on device all devices":                                {"all", "every"},
		"there is no pool nobody": {"a", "nobody"},
	} {
		_, err := h.Register(ctx, api.RegisterRequest{ID: "s", Session: true, PID: p.pid(), UID: uint32(os.Geteuid()), Pools: pools})
		expect.ErrorSays(t, err, api.ErrBadRequest, want, pools)
	}
	must.Len(t, h.seePool("a").Members, 0, "what was refused is a member")
	s := h.memberOf("s", both)
	extend := func(name string, quota api.Quota) error {
		return must.Err(h.SetPool(ctx, name, api.PoolRequest{Quotas: []api.Quota{quota}}))
	}
	for _, quota := range []api.Quota{on(gpu1, gib), on(api.AllDevices, gib)} {
		expect.ErrorSays(t, extend("a", quota), api.ErrBadRequest, "pool a has a member that is in other pools, too (s)")
	}
	must.Do(t, extend("a", on(gpu0, 7*gib)))
	s.kill()
	eventually(t, "the pool can be extended once the member has ended", func() bool { return extend("a", on(gpu1, gib)) == nil })
}

// Pools change while slices join them: a slice never has two pools on one device.
func TestSlicesJoinPoolsWhileTheseAreExtended(t *testing.T) {
	ctx := context.Background()
	h := newHost(t, &fakeTruth{})
	for round := range 15 {
		h.twoPools()
		p := start(t, "/nowhere", "")
		var all sync.WaitGroup
		var joined, extended error
		all.Go(func() {
			_, joined = h.Register(ctx, api.RegisterRequest{ID: "s", Session: true, PID: p.pid(), UID: uint32(os.Geteuid()), Pools: both})
		})
		all.Go(func() { _, extended = h.SetPool(ctx, "a", api.PoolRequest{Quotas: []api.Quota{on(gpu1, gib)}}) })
		all.Wait()
		must.True(t, (joined == nil) != (extended == nil), "round", round, "joined", joined, "extended", extended)
		p.kill()
		for _, name := range both {
			eventually(t, "it is deleted", func() bool {
				_, err := h.DeletePool(ctx, name)
				return err == nil
			})
		}
	}
}

// A process that one damaged pool refuses gets a lane in no other pool.
func TestProcessRefusedByADamagedPoolHasNoLaneInOthers(t *testing.T) {
	h := newHost(t, nil)
	h.twoPools()
	b := h.member("in-b", "b")
	b.must("attach")
	b.must("device %s %d", hex1, 80*gib)
	b.expect("ok", "pokepool 144 %d", 100*gib)
	eventually(t, "the pool is damaged", func() bool { return h.seePool("b").State == api.Damaged })
	s := h.memberOf("s", both)
	for range 3 {
		s.expect("status 3", "attach")
	}
	must.Equal(t, h.seePool("a").ProcessCount, 0, "processes have a place in a")
	h.member("in-a", "a").uses().must("charge 0 %d", 6*gib)
}

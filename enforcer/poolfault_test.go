// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"os"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/must"
)

var poolPoints = []string{
	"pool.ledger", "pool.stored", "pool.set.stored", "pool.set.written", "pool.device", "pool.deleted",
	"attach.pool.assigned", "attach.pool.live", "attach.pool.settled", "death.pool.seen", "death.pool.settled",
}

func TestAnEnforcerKilledAtAnyPointOfAPoolLosesNothingAndLeaksNothing(t *testing.T) {
	for _, point := range poolPoints {
		t.Run(point, func(t *testing.T) { poolKilledAt(t, point, api.AllDevices, "keep") })
		t.Run(point+" of two pools", func(t *testing.T) { poolKilledAt(t, point, gpu0, "beside", "keep") })
	}
}

func (d *daemon) registerIn(c *container, id string, pools ...string) error {
	request := c.request(id)
	request.Pools, request.Quotas = pools, nil
	return d.registerAs(c, request)
}

func (d *daemon) pools() map[string]api.Pool {
	d.t.Helper()
	all, err := d.Pools(context.Background())
	if err != nil {
		d.t.Fatalf("%v\n%s", err, d.log())
	}
	byName := make(map[string]api.Pool)
	for _, p := range all {
		byName[p.Name] = p
	}
	return byName
}

// poolKilledAt kills the enforcer at a point of the life of pool keep, which has a quota on device. Each slice is a member of all of the pools.
func poolKilledAt(t *testing.T, point, device string, pools ...string) {
	if cgroup := newCgroup(t); cgroup != "" { // or skip, before anything is built
		_ = os.Remove(cgroup)
	}
	ctx, all := context.Background(), func(bytes uint64) api.PoolRequest {
		return api.PoolRequest{Quotas: []api.Quota{on(device, bytes)}}
	}
	d := newDaemon(t)
	d.start("")
	keep, other := newContainer(t, d, "k"), newContainer(t, d, "o")
	must.Get(d.CreatePool(ctx, "keep", all(4*gib)))(t)
	must.Get(d.CreatePool(ctx, "beside", api.PoolRequest{Quotas: []api.Quota{on(gpu1, 2*gib)}}))(t)
	must.Do(t, d.registerIn(keep, "keep", pools...))
	k, o := keep.init, other.init
	attach(k)
	d.kill()

	// One death in the life of a pool; what was confirmed before it holds.
	d.start(point)
	alive := func() bool {
		select {
		case <-d.done:
			return false
		default:
			return true
		}
	}
	limit := 4 * gib
	registered, changed, deleting := false, false, false
	var second *proc
	for _, step := range []func(){
		func() { k.ask("attach") }, // again, as after an exec
		func() { k.ask("device %s %d", hex0, 80*gib) },
		func() { _, _ = d.CreatePool(ctx, "other", all(gib)) },
		func() { registered = d.registerIn(other, "other", pools...) == nil },
		func() {
			o.ask("attach")
			o.ask("device %s %d", hex0, 80*gib)
			o.ask("charge 0 %d", gib)
		},
		func() {
			second = start(t, other.link, other.cgroup)
			second.ask("attach")
			second.ask("charge 0 %d", gib)
			second.kill()
			eventually(t, "it is settled, or the enforcer is dead", func() bool {
				p, err := d.Pool(ctx, "keep")
				return err != nil || p.ProcessCount == 2
			})
		},
		func() {
			_, err := d.SetPool(ctx, "keep", all(6*gib))
			changed = err == nil
		},
		func() { deleting = true; _, _ = d.DeletePool(ctx, "other") },
	} {
		if alive() {
			step()
		}
	}
	d.died(point)

	if !d.start("") {
		t.Fatalf("it does not start again\n%s", d.log())
	}
	known := d.pools()
	p, there := known["keep"]
	if !there || p.State != api.Active {
		t.Fatalf("the pool is %+v\n%s", p, d.log())
	}
	if limit = p.Quotas[0].Bytes; limit != 6*gib && (changed || limit != 4*gib) {
		t.Fatalf("it was changed: %t, and has %d\n%s", changed, limit, d.log())
	}
	if _, there := known["other"]; there && deleting && point == "pool.deleted" {
		t.Fatalf("what was deleted is back\n%s", d.log())
	}
	attach(k)
	k.must("device %s %d", hex0, 80*gib)
	held := uint64(0)
	if registered {
		attach(o)
		o.must("device %s %d", hex0, 80*gib)
		o.must("charge 0 %d", gib)
		held = gib
	}
	eventually(t, "only what the living hold is charged", func() bool {
		p := d.pools()["keep"]
		return len(p.Devices) == 1 && p.Devices[0].Used == held && p.Devices[0].Limit == limit && p.State == api.Active
	})
	k.must("charge 0 %d", limit-held)
	k.expect("refused", "charge 0 1")
	if len(pools) > 1 {
		k.must("device %s %d", hex1, 80*gib)
		k.must("charge 1 %d", 2*gib)
		k.expect("refused", "charge 1 1")
	}
	for id, s := range d.ids() {
		if s.State != api.Active {
			t.Fatalf("%s is %s: %s", id, s.State, s.Reason)
		}
	}
	d.nothingLeft()
	if second != nil {
		second.kill()
	}
	o.kill()
	k.kill()
	eventually(t, "all can be deleted", func() bool {
		for name := range d.pools() {
			if _, err := d.DeletePool(ctx, name); err != nil {
				return false
			}
		}
		return true
	})
}

func TestAnEnforcerKilledWhileItTakesUpAPoolTakesItUp(t *testing.T) {
	if cgroup := newCgroup(t); cgroup != "" {
		_ = os.Remove(cgroup)
	}
	d := newDaemon(t)
	d.start("")
	must.Get(d.CreatePool(context.Background(), "llm", api.PoolRequest{Quotas: []api.Quota{on(api.AllDevices, 4*gib)}}))(t)
	c := newContainer(t, d, "k")
	must.Do(t, d.registerIn(c, "keep", "llm"))
	diesAsItComesBack(t, d, c, []string{"restore.pool.settled", "restore.pool", "restore.ledger"}, func(after string) {
		if p := d.pools()["llm"]; p.State != api.Active || p.Devices[0].Used != gib || p.ProcessCount != 1 {
			t.Fatalf("after a death at %s: %+v\n%s", after, p, d.log())
		}
	})
}

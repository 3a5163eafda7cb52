// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/must"
)

func (h *host) elasticPool(name string, priority int, quotas ...api.Quota) {
	h.t.Helper()
	must.Get(h.CreatePool(context.Background(), name, api.PoolRequest{Quotas: quotas, Elastic: true, Priority: priority}))(h.t)
}

func TestAnElasticPoolCountsWhileOneOfItsMembersIsOnTheDevice(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	h.elasticPool("llm", 0, on(gpu0, 45*gib))
	a, b, x := h.member("a", "llm"), h.member("b", "llm"), h.elastic("x", 45*gib, 0)
	if s, p := h.see("a"), h.seePool("llm"); s.State != api.Evicted || p.State != api.Evicted || !p.Elastic || h.granted(t) != 0 {
		t.Fatalf("it begins as %+v in %+v, %d bytes given", s, p, h.granted(t))
	}
	a.works(truth, 10*gib)
	b.works(truth, 20*gib)
	if p := h.seePool("llm"); p.State != api.Active || h.granted(t) != 45*gib {
		t.Fatalf("%+v, %d given", p, h.granted(t))
	}
	x.works(truth, 40*gib)
	if p := h.seePool("llm"); p.State != api.Evicted || h.see("a").State != api.Evicted || h.see("b").State != api.Evicted || h.granted(t) != 45*gib {
		t.Fatalf("%+v, %+v, %+v, %d given", p, h.see("a"), h.see("b"), h.granted(t))
	}
	a.returns()
	h.becomes("x", api.Evicted)
	if s := h.see("b"); s.State != api.Evicted || h.granted(t) != 45*gib {
		t.Fatalf("%+v, %d given", s, h.granted(t))
	}
	// The pool counts what its member b has in host memory.
	a.takes(truth, 15*gib)
	a.expect("refused", "charge 0 1")
	must.Equal(t, h.pooled("llm"), 45*gib, "bytes held")
	b.returns()
	if s := h.see("b"); s.Devices[0].Used != 20*gib || h.see("a").Elastic.Evictions != 1 || h.granted(t) != 45*gib {
		t.Fatalf("%+v, a evicted %d times, %d given", s, h.see("a").Elastic.Evictions, h.granted(t))
	}
	for _, p := range []*proc{a, b} {
		p.kill()
		truth.set(gpu0, p.pid(), 0)
	}
	eventually(t, "a pool without members counts for nothing", func() bool { return h.granted(t) == 0 })
	x.returns()
}

func TestDeviceShowsPromisedAndIdleBytes(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	enforcer.IdleAfter(time.Millisecond)
	t.Cleanup(func() { enforcer.IdleAfter(0) })
	h.elasticPool("llm", 0, on(gpu0, 30*gib))
	h.elasticPool("idle", 0, on(gpu0, 10*gib))
	a, b, c := h.member("a", "llm"), h.member("b", "llm"), h.elastic("c", 20*gib, 0)
	for _, p := range []*proc{a, b, c} {
		p.works(truth, gib)
	}
	says := func(want api.ElasticDevice) bool {
		devices, err := h.Devices(context.Background())
		if err != nil || devices[0].Elastic == nil {
			t.Fatalf("%+v, %v", devices, err)
		}
		return reflect.DeepEqual(*devices[0].Elastic, want)
	}
	want := api.ElasticDevice{Promised: 60 * gib, Free: 260 * gib, Most: 80 * gib, Pools: map[string]uint64{"llm": 30 * gib, "idle": 10 * gib}}
	b.expect("ok 1", "enter") // a call that does not return
	want.Idle = 20 * gib
	eventually(t, "c is idle", func() bool { return says(want) })
	b.must("leave")
	want.Idle = 50 * gib
	eventually(t, "the pool is idle, too", func() bool { return says(want) })
}

func TestAnElasticPoolStaysWhileOneOfItsMembersWorks(t *testing.T) {
	h, truth, f := elastics(t, quick)
	h.elasticPool("llm", 0, on(gpu0, 60*gib))
	a, b, x := h.member("a", "llm"), h.member("b", "llm"), h.elastic("x", 60*gib, 0)
	a.works(truth, 10*gib)
	b.works(truth, 20*gib)
	b.expect("ok 1", "enter") // a call that does not return
	await.That(t, "the holder of the room is named", func() bool {
		x.expect(statusAway, "return")
		return strings.Contains(h.see("x").Elastic.Obstacle, "pool llm has 60GiB")
	})
	if h.see("a").State != api.Active || f.states()[a.pid()] != checkpoint.Running {
		t.Fatalf("a %+v, %v", h.see("a"), f.states())
	}
	b.must("leave")
	x.returns()
	h.becomes("a", api.Evicted)
	h.becomes("b", api.Evicted)
}

func TestPriorityIsThePools(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	h.elasticPool("low", -1, on(gpu0, 30*gib))
	low, mid := h.member("m", "low").works(truth, gib), h.elastic("mid", 30*gib, 0)
	mid.works(truth, gib)
	h.idle("mid")
	low.expect("ok 1", "enter") // mid has been idle for longest
	low.must("leave")
	h.idle("m", "mid")
	h.elastic("x", 30*gib, 0).works(truth, gib)
	if h.see("m").State != api.Evicted || h.see("mid").State != api.Active || h.see("m").Elastic.Priority != -1 {
		t.Fatalf("%+v, %+v", h.see("m"), h.see("mid"))
	}
}

func TestAnElasticPoolOutlivesTheEnforcer(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	h.elasticPool("llm", 0, on(gpu0, 45*gib))
	h.elasticPool("empty", 0, on(gpu0, 60*gib))
	a, b, x := h.member("a", "llm"), h.member("b", "llm"), h.elastic("x", 45*gib, 0)
	a.works(truth, 10*gib)
	b.works(truth, 20*gib)
	h.restart()
	if p := h.seePool("llm"); p.State != api.Active || h.granted(t) != 45*gib {
		t.Fatalf("%+v, %d given", p, h.granted(t))
	}
	x.works(truth, 40*gib)
	h.restart()
	if p := h.seePool("llm"); p.State != api.Evicted || h.granted(t) != 45*gib || !p.Elastic {
		t.Fatalf("%+v, %d given", p, h.granted(t))
	}
	// Up to 320 GiB may be promised, and 150 GiB are.
	must.Get(h.CreatePool(context.Background(), "more", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 80*gib)}, Elastic: true}))(t)
	must.Get(h.CreatePool(context.Background(), "much", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 80*gib)}, Elastic: true}))(t)
	_, err := h.CreatePool(context.Background(), "most", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 80*gib)}, Elastic: true})
	refusedWith(t, err, api.CodeQuotaExceeded, "were promised 310GiB")
	b.returns()
	a.returns()
	h.becomes("x", api.Evicted)
}

func TestTheQuotaOfAnElasticPoolIsChanged(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	h.elasticPool("llm", 0, on(gpu0, 30*gib))
	set := func(bytes uint64) error {
		return must.Err(h.SetPool(context.Background(), "llm", api.PoolRequest{Quotas: []api.Quota{on(gpu0, bytes)}}))
	}
	check := func(err error) {
		t.Helper()
		must.Do(t, err)
	}
	check(set(40 * gib))
	a := h.member("a", "llm").works(truth, 35*gib)
	must.Equal(t, h.granted(t), 40*gib, "given")
	check(set(50 * gib))
	must.Equal(t, h.granted(t), 50*gib, "given")
	x := h.elastic("x", 60*gib, 0).works(truth, gib)
	must.Equal(t, h.granted(t), 60*gib, "given")
	check(set(20 * gib)) // a needs more when it returns, so no other holder gets it
	must.Equal(t, h.granted(t), 60*gib, "given")
	a.returns()
	h.becomes("x", api.Evicted)
	must.Equal(t, h.granted(t), 35*gib, "given")
	a.expect("refused", "charge 0 1")
	x.returns()
}

func TestASliceIsInElasticPoolsOfTwoDevices(t *testing.T) {
	h, truth, _ := elastics(t, quick)
	h.elasticPool("a", 0, on(gpu0, 60*gib))
	h.elasticPool("b", 0, on(gpu1, 60*gib))
	s, alone, x := h.memberOf("s", both), h.member("alone", "b"), h.elastic("x", 60*gib, 0)
	given := func() string {
		devices := must.Get(h.Devices(context.Background()))(t)
		return fmt.Sprint(devices[0].Quotas/gib, devices[1].Quotas/gib)
	}
	s.returns().usesBoth()
	s.must("gate")
	s.takes(truth, 10*gib)
	must.Equal(t, given(), "60 60")
	x.works(truth, gib)
	if got := given(); got != "60 0" || h.see("s").State != api.Evicted {
		t.Fatalf("%s, %+v", got, h.see("s"))
	}
	alone.returns()
	if got := given(); got != "60 60" || h.see("s").State != api.Evicted {
		t.Fatalf("%s, %+v", got, h.see("s"))
	}
	s.returns()
	if got := given(); got != "60 60" || h.see("x").State != api.Evicted {
		t.Fatalf("%s, %+v", got, h.see("x"))
	}
}

func TestUnsupportedElasticPoolMemberIsRefusedWithAReason(t *testing.T) {
	h, _, _ := elastics(t, quick)
	h.elasticPool("e", 3, on(gpu0, 45*gib))
	h.pool("p", on(gpu1, gib))
	p := h.member("m", "e")
	for words, r := range map[string]api.RegisterRequest{
		"all pools of a slice are elastic, or none is": {Pools: api.PoolNames{"e", "p"}},
		"is elastic if the pool is":                    {Pools: api.PoolNames{"e"}, Elastic: true},
		"only records cannot be in pool e":             {Pools: api.PoolNames{"e"}, Mode: api.Record},
	} {
		r.ID, r.Session, r.PID = "x", true, p.pid()
		_, err := h.Register(context.Background(), r)
		refusedWith(t, err, api.CodeBadRequest, words)
	}
	_, err := h.CreatePool(context.Background(), "x", api.PoolRequest{Quotas: []api.Quota{on(gpu0, gib)}, Priority: 1})
	refusedWith(t, err, api.CodeBadRequest, "priority 1 is given for a slice or pool that is not elastic")
	_, err = h.CreatePool(context.Background(), "e", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 45*gib)}, Elastic: true, Priority: 4})
	refusedWith(t, err, api.CodeExists, "differs in priority")
	_, err = h.SetPool(context.Background(), "e", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 45*gib)}, Elastic: true})
	refusedWith(t, err, api.CodeBadRequest, "nothing else about it")
}

// At random: slices are created, resized, moved and ended, and the enforcer restarted. The bytes granted are always those of the resident
// holders, and never exceed the device.
func TestGrantedBytesCountOnlyResidentMembers(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h, truth, _ := elastics(t, enforcer.Elastic{Overcommit: 8000, MinResident: time.Millisecond, Quantum: time.Hour})
			random := rand.New(rand.NewPCG(seed, 0))
			quota := map[string]uint64{"p": 30 * gib, "q": 40 * gib, "r": 50 * gib, "ordinary": 10 * gib}
			elasticPools := []string{"p", "q", "r"}
			for _, name := range elasticPools {
				h.elasticPool(name, 0, on(gpu0, quota[name]))
			}
			h.pool("ordinary", on(gpu0, quota["ordinary"]))
			procs := make(map[string]*proc)
			begin := func(id string) {
				switch name, _, _ := strings.Cut(id, "-"); {
				case strings.HasPrefix(id, "x"):
					quota[id] = 35 * gib
					procs[id] = h.elastic(id, quota[id], 0)
					procs[id].works(truth, gib)
				case name == "ordinary":
					procs[id] = h.member(id, name)
					procs[id].uses().takes(truth, gib)
				default:
					procs[id] = h.member(id, name)
					procs[id].works(truth, gib)
				}
			}
			ids := []string{"p-1", "p-2", "q-1", "q-2", "r-1", "r-2", "ordinary-1", "x1", "x2"}
			for _, id := range ids {
				begin(id)
			}
			check := func(after string) {
				t.Helper()
				expected := func() (sum uint64) {
					sum = quota["ordinary"]
					there := make(map[string]bool)
					for _, s := range must.Get(h.Slices(context.Background()))(t) {
						name, _, _ := strings.Cut(s.ID, "-")
						if s.State == api.Active && name != "ordinary" {
							there[name] = true
						}
					}
					for name := range there {
						sum += quota[name]
					}
					return sum
				}
				eventually(t, "the sum is right after "+after, func() bool { return h.granted(t) == expected() })
				if given := h.granted(t); given > 80*gib {
					t.Fatalf("after %s %d GiB are given", after, given/gib)
				}
			}
			check("the beginning")
			for range 40 {
				id := ids[random.IntN(len(ids))]
				name, _, _ := strings.Cut(id, "-")
				switch n := random.IntN(10); {
				case n < 6 && name != "ordinary":
					procs[id].returns()
					check(id + "'s return")
				case n < 7:
					procs[id].kill()
					truth.set(gpu0, procs[id].pid(), 0)
					h.wantGone(id)
					check(id + "'s end")
					begin(id)
					check(id + "'s beginning")
				case n < 8 && slices.Contains(elasticPools, name):
					bytes := uint64(20+random.IntN(30)) * gib
					_, err := h.SetPool(context.Background(), name, api.PoolRequest{Quotas: []api.Quota{on(gpu0, bytes)}})
					if err == nil {
						quota[name] = bytes
					} else if !errors.Is(err, &api.Error{Code: api.CodeBusy}) {
						t.Fatal(err)
					}
					time.Sleep(20 * time.Millisecond) // lets evictions for it happen
					check(fmt.Sprintf("%s has %d", name, quota[name]/gib))
				case n < 9 && name != "ordinary":
					if err := h.suspend(id); err == nil {
						check(id + " is suspended")
						if err := h.resume(id); err != nil {
							if !errors.Is(err, &api.Error{Code: api.CodeBusy}) {
								refusedWith(t, err, api.CodeQuotaExceeded)
							}
							procs[id].kill()
							truth.set(gpu0, procs[id].pid(), 0)
							h.wantGone(id)
							begin(id)
						}
						check(id + " is resumed")
					}
				case n == 9:
					h.restart()
					check("a restart")
				}
			}
		})
	}
}

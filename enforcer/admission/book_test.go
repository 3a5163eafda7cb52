// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"errors"
	"maps"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

const (
	gib        = 1 << 30
	gpu0, gpu1 = "GPU-0", "GPU-1"
)

func newBook(l Limits) *Book {
	return New(l, []Device{{UUID: gpu0, Shown: "0 (GPU-0)", Total: 80 * gib}, {UUID: gpu1, Shown: "1 (GPU-1)", Total: 80 * gib}}, 1000)
}

func (b *Book) give(t *testing.T, h *Holder, uuid string, bytes uint64) (undo func()) {
	t.Helper()
	return must.Get(b.Admit(h, map[string]uint64{uuid: bytes}))(t)
}

func (b *Book) given(t *testing.T, uuid string, bytes, free uint64, holders int) {
	t.Helper()
	if g := b.Granted(uuid); g.Bytes != bytes || g.Free == nil || *g.Free != free || g.Holders != holders {
		t.Errorf("%s: %+v, want %d granted to %d and %d free", uuid, g, bytes, holders, free)
	}
}

func refused(t *testing.T, err error, words ...string) *api.Error {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeQuotaExceeded {
		t.Fatalf("%v, want a refusal", err)
	}
	for _, w := range words {
		expect.Contains(t, e.Message, w)
	}
	return e
}

func TestARefusalSaysWhatIsLeftAndWhoHasTheRest(t *testing.T) {
	b := newBook(Limits{})
	for i := range 7 {
		b.give(t, &Holder{Name: "s" + strconv.Itoa(i)}, gpu0, uint64(8+i)*gib)
	}
	_, err := b.Admit(&Holder{Name: "late"}, map[string]uint64{gpu0: 4 * gib})
	e := refused(t, err, "late asks for 4GiB on device 0 (GPU-0)", "3GiB are left of the 80GiB", "(s6 has 14GiB, s5 has 13GiB, s4 has 12GiB, and 4 others 38GiB)")
	if e.Device != gpu0 || e.Requested != 4*gib || e.Limit != 80*gib || e.Current != 77*gib {
		t.Errorf("%+v", e)
	}
	_, err = b.Admit(&Holder{Name: "late"}, map[string]uint64{gpu0: 3*gib + 1})
	refused(t, err, "asks for 3221225473B", "3221225472B are left") // rounded sizes would look the same
}

func TestAUsersRefusalNamesHisOwnSessionsOnly(t *testing.T) {
	alice, bob, root := uint32(5001), uint32(5002), uint32(0)
	b := newBook(Limits{})
	b.give(t, &Holder{Name: "his", UID: &alice}, gpu0, 20*gib)
	b.give(t, &Holder{Name: "secret", UID: &bob}, gpu0, 30*gib)
	b.give(t, &Holder{Name: "container"}, gpu0, 29*gib)
	b.give(t, &Holder{Name: "pool x", Pool: "x"}, gpu0, gib/2)
	for _, c := range []struct {
		uid  *uint32
		says string
	}{
		{&alice, "(his has 20GiB, others 59.5GiB): ask"},
		{new(uint32(5003)), "(others 79.5GiB): ask"},
		{&root, "(secret has 30GiB, container has 29GiB, his has 20GiB, and 1 others 512MiB)"},
		{nil, "(secret has 30GiB, container has 29GiB, his has 20GiB, and 1 others 512MiB)"},
	} {
		_, err := b.Admit(&Holder{Name: "late", UID: c.uid}, map[string]uint64{gpu0: gib})
		refused(t, err, c.says)
	}
}

func TestAPrivateHolderIsNeitherNamedNorToldOfOthers(t *testing.T) {
	b := newBook(Limits{})
	b.give(t, &Holder{Name: "claim", Private: true}, gpu0, 50*gib)
	b.give(t, &Holder{Name: "container"}, gpu0, 20*gib)
	_, err := b.Admit(&Holder{Name: "late"}, map[string]uint64{gpu0: 40 * gib})
	refused(t, err, "(container has 20GiB, others 50GiB)")
	_, err = b.Admit(&Holder{Name: "late", Private: true}, map[string]uint64{gpu0: 40 * gib})
	refused(t, err, "(others 70GiB): ask for less")
}

func TestAllDevicesAreGrantedOrNone(t *testing.T) {
	b := newBook(Limits{})
	b.give(t, &Holder{Name: "a"}, gpu1, 79*gib)
	h := &Holder{Name: "b"}
	_, err := b.Admit(h, map[string]uint64{gpu0: 2 * gib, gpu1: 2 * gib})
	refused(t, err, "device 1 (GPU-1)")
	b.given(t, gpu0, 0, 80*gib, 0)
	must.Len(t, b.Has(h), 0, "it")
}

func TestWhatWasGrantedIsKeptUntilItIsSet(t *testing.T) {
	b := newBook(Limits{})
	h := &Holder{Name: "a"}
	b.give(t, h, gpu0, 40*gib)
	b.give(t, h, gpu0, 10*gib) // the lower limit is not in force yet
	b.given(t, gpu0, 40*gib, 40*gib, 1)
	b.Set(h, map[string]uint64{gpu0: 30 * gib, gpu1: gib}) // 10 GiB, and 30 are used
	undo := b.give(t, h, gpu0, 50*gib)
	b.give(t, h, gpu1, 2*gib)
	undo()
	if has := b.Has(h); !maps.Equal(has, map[string]uint64{gpu0: 30 * gib, gpu1: 2 * gib}) {
		t.Errorf("after an undo it has %v", has)
	}
	b.Set(h, map[string]uint64{gpu1: gib})
	b.given(t, gpu0, 0, 80*gib, 0)
	b.Drop(h)
	b.given(t, gpu1, 0, 80*gib, 0)
}

// Undo restores the book, for devices that the holder had and for new ones.
func TestAnUndoLeavesNothingOfWhatWasGranted(t *testing.T) {
	for name, had := range map[string]map[string]uint64{
		"it had nothing":    {},
		"it had one device": {gpu0: 5 * gib},
		"it had both":       {gpu0: 5 * gib, gpu1: gib},
		"it had more":       {gpu0: 50 * gib},
	} {
		for kind, h := range map[string]*Holder{"a slice": {Name: "a", Tenant: "physics"}, "a pool": {Name: "p", Pool: "p"}, "of no tenant": {Name: "n"}} {
			b := newBook(Limits{Tenants: map[string]api.Share{"physics": {Bytes: 60 * gib}}})
			b.Set(h, had)
			undo := must.Get(b.Admit(h, map[string]uint64{gpu0: 10 * gib, gpu1: 20 * gib}))(t)
			undo()
			if has := b.Has(h); !maps.Equal(has, had) {
				t.Errorf("%s, %s: it has %v after the undo, %v before", kind, name, has, had)
			}
			holders := 0
			if had[gpu1] > 0 {
				holders = 1
			}
			b.given(t, gpu1, had[gpu1], 80*gib-had[gpu1], holders)
			b.Drop(h)
			b.give(t, &Holder{Name: "other", Tenant: "physics"}, gpu0, 60*gib) // all of the tenant's bound
			b.give(t, &Holder{Name: "last"}, gpu1, 80*gib)
		}
	}
}

// A refusal on the last device takes nothing on those before it.
func TestARefusalLeavesTheBookAsItWas(t *testing.T) {
	uid := uint32(5001)
	b := newBook(Limits{})
	b.give(t, &Holder{Name: "a"}, gpu1, 79*gib)
	wants := map[string]uint64{gpu0: 2 * gib, gpu1: 2 * gib}
	h := &Holder{Name: "b", UID: &uid}
	limit := &User{UID: uid, MaxVRAM: api.Share{Percent: 100}, MaxSessions: 1}
	for range 2 { // a refused session does not count for its user
		refused(t, b.Begin(Ask{Holder: h, Bytes: wants, User: limit}), "device 1 (GPU-1)")
		h = &Holder{Name: "c", UID: &uid}
	}
	refused(t, b.Promise(Ask{Holder: h, Bytes: map[string]uint64{gpu0: gib, gpu1: 81 * gib}}), "device 1 (GPU-1)")
	if d := b.Promised(gpu0); d.Promised != 0 || d.Free != 80*gib {
		t.Errorf("%+v", d)
	}
	b.given(t, gpu0, 0, 80*gib, 0)
	expect.NoError(t, b.Begin(Ask{Holder: h, Bytes: map[string]uint64{gpu0: 2 * gib}, User: limit}))
}

func TestLimitsBoundWhatMayBeGranted(t *testing.T) {
	physics, none, pool := &Holder{Name: "p", Tenant: "physics"}, &Holder{Name: "n"}, &Holder{Name: "pool x", Pool: "x"}
	tenants := map[string]api.Share{"physics": {Bytes: 30 * gib}, refusal.DefaultTenant: {Percent: 25}, "free": {}}
	for name, c := range map[string]struct {
		limits Limits
		h      *Holder
		most   uint64
		says   string
	}{
		"the device":   {Limits{}, none, 80 * gib, "85899345920B are left of the 85899345920B that may be given: ask for less"},
		"reserve":      {Limits{Reserve: 2 * gib}, none, 78 * gib, "are left of"},
		"overcommit":   {Limits{Reserve: 2 * gib, Overcommit: 1500}, none, 117 * gib, "are left of"},
		"max_vram":     {Limits{MaxVRAM: api.Share{Percent: 25}}, none, 20 * gib, "at most (max_vram)"},
		"tenant":       {Limits{Tenants: tenants}, physics, 30 * gib, "tenant physics has"},
		"default":      {Limits{Tenants: tenants}, none, 20 * gib, "slices without a tenant together have"},
		"free":         {Limits{Tenants: tenants}, &Holder{Name: "f", Tenant: "free"}, 80 * gib, "are left of"},
		"a tenant's":   {Limits{Tenants: tenants, MaxVRAM: api.Share{Bytes: gib}}, &Holder{Name: "pool y", Pool: "y", Tenant: "physics"}, 30 * gib, "tenant physics has"},
		"a pool":       {Limits{Tenants: tenants, MaxVRAM: api.Share{Bytes: gib}}, pool, 80 * gib, "are left of"},
		"huge":         {Limits{Overcommit: ^uint64(0)}, none, ^uint64(0), ""},
		"all reserved": {Limits{Reserve: 100 * gib}, none, 0, "0B are left"},
	} {
		b := newBook(c.limits)
		expect.NoError(t, must.Err(b.Admit(c.h, map[string]uint64{gpu0: c.most})), name)
		if c.says == "" {
			continue
		}
		b.Drop(c.h)
		_, err := b.Admit(c.h, map[string]uint64{gpu0: c.most + 1})
		refused(t, err, c.says)
	}
	b := newBook(Limits{Tenants: tenants})
	b.give(t, pool, gpu0, 10*gib)
	b.give(t, physics, gpu0, 20*gib)
	_, err := b.Admit(&Holder{Name: "q", Tenant: "physics"}, map[string]uint64{gpu0: 11 * gib})
	refused(t, err, "tenant physics has 10GiB left of 30GiB (p has 20GiB)")
	for tenant, want := range map[string]uint64{"physics": 30 * gib, "": 20 * gib, "free": 0} {
		if bounds := b.TenantBounds(tenant); bounds[gpu1] != want || want == 0 && len(bounds) > 0 {
			t.Errorf("tenant %q is bounded by %v", tenant, bounds)
		}
	}
}

func TestAUsersSessionsAreBoundedTogether(t *testing.T) {
	uid := uint32(5001)
	session := func(name string) *Holder { return &Holder{Name: name, UID: &uid} }
	limit := &User{UID: uid, MaxVRAM: api.Share{Bytes: 10 * gib}, MaxSessions: 3}
	b := newBook(Limits{})
	begin := func(h *Holder, bytes uint64) error {
		return b.Begin(Ask{Holder: h, Bytes: map[string]uint64{gpu0: bytes}, Quotas: []api.Quota{{Device: gpu0, Bytes: bytes}}, User: limit})
	}
	b.Set(session("before"), map[string]uint64{gpu0: gib}) // a container does not count among its user's sessions
	a := session("a")
	must.Do(t, begin(a, 6*gib))
	e := refused(t, begin(session("b"), 5*gib), "uid 5001's sessions may have 10GiB together (max_vram) and have 6GiB")
	if e.Limit != 10*gib || e.Current != 6*gib {
		t.Errorf("%+v", e)
	}
	// Concurrent requests are not granted more than fits.
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() { _ = begin(session("c"), 4*gib) })
	}
	all.Wait()
	b.given(t, gpu0, 11*gib, 69*gib, 3)
	must.Do(t, begin(session("d"), 0))
	refused(t, begin(session("e"), 0), "uid 5001 has 3 sessions, and may have 3")
	b.Set(a, nil) // released, with a process still alive
	refused(t, begin(session("e"), 0), "uid 5001 has 3 sessions")
	b.Drop(a)
	expect.NoError(t, begin(session("e"), 6*gib))
}

// A session gets what is left, and not a byte more.
func TestWhatIsLeftOfAUsersLimitIsGranted(t *testing.T) {
	alice, bob := uint32(5001), uint32(5002)
	limit := &User{UID: alice, MaxVRAM: api.Share{Bytes: 30 * gib}, MaxSessions: 2}
	for name, c := range map[string]struct {
		limits           Limits
		limit            *User
		hers, others     uint64
		sessions         int
		most, has, leave uint64
	}{
		"the user's limit":            {Limits{}, limit, 10, 0, 1, 30, 10, 20},
		"the device":                  {Limits{Reserve: gib}, limit, 10, 60, 1, 30, 10, 9},
		"no limit":                    {Limits{Reserve: gib}, nil, 10, 60, 1, 79, 10, 9},
		"one slice's":                 {Limits{MaxVRAM: api.Share{Percent: 10}}, limit, 10, 0, 1, 8, 10, 8},
		"the tenant's":                {Limits{Tenants: map[string]api.Share{refusal.DefaultTenant: {Bytes: 25 * gib}}}, limit, 10, 8, 1, 25, 10, 7},
		"a lowered limit":             {Limits{}, limit, 40, 0, 1, 30, 40, 0},
		"as many sessions as she may": {Limits{}, limit, 10, 0, 2, 30, 10, 0},
	} {
		b := newBook(c.limits)
		for i := range c.sessions {
			h := &Holder{Name: strconv.Itoa(i), UID: &alice}
			b.Note(h, nil)
			if i == 0 {
				b.Set(h, map[string]uint64{gpu0: c.hers * gib})
			}
		}
		b.Set(&Holder{Name: "others", UID: &bob}, map[string]uint64{gpu0: c.others * gib})
		sessions, devices := b.Left(alice, c.limit)
		want := api.DeviceLimit{Device: gpu0, Limit: c.most * gib, Given: c.has * gib, Left: c.leave * gib}
		if sessions != c.sessions || len(devices) != 2 || devices[gpu0] != want {
			t.Errorf("%s: %d, %+v, want %+v", name, sessions, devices, want)
		}
		ask := func(bytes uint64) error {
			return b.Begin(Ask{Holder: &Holder{Name: "new", UID: &alice}, Bytes: map[string]uint64{gpu0: bytes}, User: c.limit})
		}
		expect.Error(t, ask(want.Left+1), name)
		if want.Left > 0 {
			expect.NoError(t, ask(want.Left), name)
		}
	}
	sessions, devices := New(Limits{}, nil, 1000).Left(alice, limit)
	if sessions != 0 || len(devices) != 0 {
		t.Errorf("without driver truth: %d, %+v", sessions, devices)
	}
}

func TestWithoutDriverTruthWhatIsAskedForCounts(t *testing.T) {
	uid := uint32(5001)
	limit := &User{UID: uid, MaxVRAM: api.Share{Bytes: 10 * gib}, MaxSessions: 3}
	b := New(Limits{MaxVRAM: api.Share{Bytes: 8 * gib}}, nil, 1000)
	first := &Holder{Name: "a", UID: &uid}
	must.Do(t, b.Begin(Ask{Holder: first, Quotas: []api.Quota{{Device: gpu0, Bytes: 6 * gib}, {Device: gpu1, Bytes: 2 * gib}}, User: limit}))
	asks := func(q api.Quota) error {
		return b.Begin(Ask{Holder: &Holder{Name: "b", UID: &uid}, Quotas: []api.Quota{q}, User: limit})
	}
	refused(t, asks(api.Quota{Device: "*", Bytes: 5 * gib}), "on device any", "have 6GiB")
	refused(t, asks(api.Quota{Device: "*", Percent: 5}), "as sizes")
	b.Note(first, []api.Quota{{Device: gpu0, Bytes: 5 * gib}})
	expect.NoError(t, asks(api.Quota{Device: "*", Bytes: 5 * gib}))
	for i := range 30 { // without a size nothing is refused
		b.give(t, &Holder{Name: strconv.Itoa(i)}, gpu0, 8*gib)
	}
	_, err := b.Admit(&Holder{Name: "c"}, map[string]uint64{gpu0: 8*gib + 1})
	refused(t, err, "(max_vram)")
	if b.Granted(gpu0).Free != nil || len(b.Overcommitted()) != 0 {
		t.Errorf("%+v, %v", b.Granted(gpu0), b.Overcommitted())
	}
	refused(t, b.CheckSize("c", []api.Quota{{Bytes: 9 * gib}}), "(max_vram)")
	refused(t, b.CheckSize("c", []api.Quota{{Percent: 1}}), "they cannot be compared")
	expect.NoError(t, b.CheckSize("c", []api.Quota{{Bytes: 8 * gib}}))
}

func TestWhatDoesNotFitAnyMoreStaysAndIsSaid(t *testing.T) {
	b := newBook(Limits{Tenants: map[string]api.Share{"physics": {Bytes: gib}}})
	b.Set(&Holder{Name: "a"}, map[string]uint64{gpu0: 80 * gib})
	b.Set(&Holder{Name: "b", Tenant: "physics"}, map[string]uint64{gpu0: 60 * gib})
	all := b.Overcommitted()
	if len(all) != 2 || all[0] != (Over{Device: gpu0, Granted: 140 * gib, Limit: 80 * gib}) ||
		all[1].Tenant == nil || *all[1].Tenant != "physics" || all[1].Granted != 60*gib || all[1].Limit != gib {
		t.Errorf("%+v", all)
	}
	b.given(t, gpu0, 140*gib, 0, 2)
}

// Promised bytes stay promised until their holder is dropped, also those that a former enforcer promised.
func TestAPromiseHoldsUntilItsHolderIsDropped(t *testing.T) {
	wants := map[string]uint64{gpu0: 50 * gib}
	for name, promise := range map[string]func(b *Book, h *Holder) error{
		"by this enforcer":     func(b *Book, h *Holder) error { return b.Promise(Ask{Holder: h, Bytes: wants}) },
		"by a former enforcer": func(b *Book, h *Holder) error { b.NotePromise(h, wants); return nil },
	} {
		b, h, other := newBook(Limits{}), &Holder{Name: "a"}, &Holder{Name: "b"}
		must.Do(t, promise(b, h))
		refused(t, b.Promise(Ask{Holder: other, Bytes: wants}), "may be promised 80GiB together", "were promised 50GiB")
		expect.NoError(t, b.Promise(Ask{Holder: h, Bytes: map[string]uint64{gpu0: 80 * gib}}), name, "its own promise is in its way")
		b.Drop(h)
		expect.NoError(t, b.Promise(Ask{Holder: other, Bytes: wants}), name)
		if d := b.Promised(gpu0); d.Promised != 50*gib || d.Free != 30*gib || d.Most != 80*gib {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestPoolsAndTheFreeRestAreOfOneMoment(t *testing.T) {
	b := newBook(Limits{})
	pool, elastic := &Holder{Name: "pool x", Pool: "x"}, &Holder{Name: "pool y", Pool: "y"}
	must.Do(t, b.Promise(Ask{Holder: elastic, Bytes: map[string]uint64{gpu0: 20 * gib}}))
	b.give(t, elastic, gpu0, 20*gib)
	b.give(t, &Holder{Name: "a"}, gpu0, 10*gib)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 1000 {
			expect.NoError(t, must.Err(b.Admit(pool, map[string]uint64{gpu0: 30 * gib})))
			runtime.Gosched()
			b.Drop(pool)
			runtime.Gosched()
		}
	}()
	for {
		g := b.Granted(gpu0, elastic)
		has := g.Pools["x"]
		if *g.Free+has != 50*gib || g.Among != 20*gib || len(g.Pools) > 1 {
			t.Fatalf("%+v: free and the pool's are not 50 GiB together", g)
		}
		select {
		case <-done:
			if d := b.Promised(gpu0); d.Pools["y"] != 20*gib || len(d.Pools) != 1 {
				t.Errorf("promised: %+v", d)
			}
			return
		default:
		}
	}
}

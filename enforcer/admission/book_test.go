// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

const (
	gib        = 1 << 30
	gpu0, gpu1 = "GPU-0", "GPU-1"
)

// book is a Book of which the effects succeed, unless stores fail.
type book struct {
	*Book
	fails       error // of stores
	generations sync.Map
}

func newBook(l Limits) *book {
	return with(core.Config{Limits: l, Devices: []Device{{UUID: gpu0, Shown: "0 (GPU-0)", Total: 80 * gib}, {UUID: gpu1, Shown: "1 (GPU-1)", Total: 80 * gib}}, Elastic: core.Elastic{Overcommit: 1000}})
}

func with(c core.Config) *book { return &book{Book: New(c)} }

// id is the id of a holder's slice, or the name of its pool.
func id(h *Holder) string { return fmt.Sprintf("%s-%p", h.Name, h) }

// record returns a record of a live slice, or pool, with these limits.
func record(h *Holder, limits core.Bytes) core.Record {
	r := core.Record{ID: id(h), Tenant: h.Tenant, UID: h.UID, Limits: limits, Phase: core.Live}
	if h.Pool != "" {
		r.Kind = core.Pool
	}
	return r
}

// do carries out a command, and returns the error of its reply.
func (b *book) do(cmd core.Command) (err error) {
	b.Do(func(a *core.Accounts) {
		a.Do(cmd)
		err = b.answer(a)
	})
	return err
}

// answer answers all effects, and returns the error of the last reply.
func (b *book) answer(a *core.Accounts) (err error) {
	for effects := a.Take(); len(effects) > 0; effects = a.Take() {
		for _, e := range effects {
			switch e := e.(type) {
			case core.Make:
				a.Note(core.Made{Op: e.Op})
			case core.Store:
				a.Note(core.Stored{Op: e.Op, Err: b.fails})
			case core.Forget:
				a.Note(core.Stored{Op: e.Op})
			case core.Listen:
				a.Note(core.Opened{Op: e.Op})
			case core.Limit:
				a.Note(core.Limited{Op: e.Op})
			case core.Close:
				a.Note(core.Limited{Op: e.Op})
			case core.Reply:
				err = e.Err
			}
		}
	}
	return err
}

// grant makes a slice or pool, or changes it.
func (b *book) grant(h *Holder, r core.Record, user *User) error {
	b.Do(func(a *core.Accounts) { r.Generation = a.NextGeneration(0) })
	make, change := core.Command(core.Register{Client: 1, Slice: r, Holder: h, User: user}), core.Command(core.Change{Client: 1, ID: r.ID, Quotas: append([]api.Quota{}, r.Quotas...), Limits: r.Limits, User: user})
	if h.Pool != "" {
		make, change = core.CreatePool{Client: 1, Pool: r, Holder: h}, core.ChangePool{Client: 1, ID: r.ID, Quotas: r.Quotas, Limits: r.Limits}
	}
	err := b.do(make)
	switch {
	case errors.Is(err, api.ErrExists):
		return b.do(change)
	case err == nil:
		b.generations.Store(h, r.Generation)
	}
	return err
}

// ask makes or changes a slice or pool with these limits.
func (b *book) ask(h *Holder, limits core.Bytes, user *User, quotas ...api.Quota) error {
	r := record(h, limits)
	r.Quotas = quotas
	return b.grant(h, r, user)
}

// promise is ask for an elastic slice or pool.
func (b *book) promise(h *Holder, limits core.Bytes) error {
	r := record(h, limits)
	r.Elastic = true
	return b.grant(h, r, nil)
}

// end ends a slice, or deletes a pool.
func (b *book) end(h *Holder) error {
	if h.Pool != "" {
		return b.do(core.DeletePool{Client: 1, ID: id(h)})
	}
	err := b.release(h)
	b.empty(h)
	return err
}

func (b *book) release(h *Holder) error { return b.do(core.Release{Client: 1, ID: id(h), Force: true}) }

// empty says that the processes of a released slice have exited.
func (b *book) empty(h *Holder) {
	generation, _ := b.generations.Load(h)
	b.Do(func(a *core.Accounts) {
		a.Note(core.Empty{Generation: generation.(uint64)})
		_ = b.answer(a)
	})
}

func (b *book) give(t *testing.T, h *Holder, uuid string, bytes uint64) {
	t.Helper()
	must.Do(t, b.ask(h, core.Bytes{uuid: bytes}, nil))
}

// has has a holder have these limits, whatever others have.
func (b *book) has(h *Holder, limits core.Bytes) { b.Enter(h, record(h, limits)) }

func (b *book) wantGranted(t *testing.T, uuid string, bytes, free uint64, holders int) {
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

func TestRefusalNamesTheFreeBytesAndTheHolders(t *testing.T) {
	b := newBook(Limits{})
	for i := range 7 {
		b.give(t, &Holder{Name: "s" + strconv.Itoa(i)}, gpu0, uint64(8+i)*gib)
	}
	err := b.ask(&Holder{Name: "late"}, core.Bytes{gpu0: 4 * gib}, nil)
	e := refused(t, err, "late asks for 4GiB on device 0 (GPU-0)", "3GiB are left of the 80GiB", "(s6 has 14GiB, s5 has 13GiB, s4 has 12GiB, and 4 others 38GiB)")
	if e.Device != gpu0 || e.Requested != 4*gib || e.Limit != 80*gib || e.Current != 77*gib {
		t.Errorf("%+v", e)
	}
	err = b.ask(&Holder{Name: "late"}, core.Bytes{gpu0: 3*gib + 1}, nil)
	refused(t, err, "asks for 3221225473B", "3221225472B are left") // rounded sizes would look the same
}

func TestUsersRefusalNamesOnlyOwnSessions(t *testing.T) {
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
		err := b.ask(&Holder{Name: "late", UID: c.uid}, core.Bytes{gpu0: gib}, nil)
		refused(t, err, c.says)
	}
}

func TestRefusalsHidePrivateHolders(t *testing.T) {
	b := newBook(Limits{})
	b.give(t, &Holder{Name: "claim", Private: true}, gpu0, 50*gib)
	b.give(t, &Holder{Name: "container"}, gpu0, 20*gib)
	err := b.ask(&Holder{Name: "late"}, core.Bytes{gpu0: 40 * gib}, nil)
	refused(t, err, "(container has 20GiB, others 50GiB)")
	err = b.ask(&Holder{Name: "late", Private: true}, core.Bytes{gpu0: 40 * gib}, nil)
	refused(t, err, "(others 70GiB): ask for less")
}

func TestAllDevicesAreGrantedOrNone(t *testing.T) {
	b := newBook(Limits{})
	b.give(t, &Holder{Name: "a"}, gpu1, 79*gib)
	h := &Holder{Name: "b"}
	err := b.ask(h, core.Bytes{gpu0: 2 * gib, gpu1: 2 * gib}, nil)
	refused(t, err, "device 1 (GPU-1)")
	b.wantGranted(t, gpu0, 0, 80*gib, 0)
	must.Len(t, b.Has(h, false), 0, "it")
}

func TestGrantCountsUntilReleased(t *testing.T) {
	b := newBook(Limits{})
	h := &Holder{Name: "a"}
	b.give(t, h, gpu0, 40*gib)
	b.fails = errors.New("no space left")
	expect.ErrorIs(t, b.ask(h, core.Bytes{gpu0: 50 * gib}, nil), b.fails)
	b.wantGranted(t, gpu0, 40*gib, 40*gib, 1)
	b.fails = nil
	must.Do(t, b.ask(h, core.Bytes{gpu0: 10 * gib, gpu1: gib}, nil))
	b.wantGranted(t, gpu0, 40*gib, 40*gib, 1) // all of it may be in use
	must.Do(t, b.end(h))
	b.wantGranted(t, gpu1, 0, 80*gib, 0)
}

// A refusal on the last device takes nothing on those before it.
func TestRefusalChangesNoSums(t *testing.T) {
	uid := uint32(5001)
	b := newBook(Limits{})
	b.give(t, &Holder{Name: "a"}, gpu1, 79*gib)
	wants := core.Bytes{gpu0: 2 * gib, gpu1: 2 * gib}
	h := &Holder{Name: "b", UID: &uid}
	limit := &User{UID: uid, MaxVRAM: api.Share{Percent: 100}, MaxSessions: 1}
	for range 2 { // a refused session does not count for its user
		refused(t, b.ask(h, wants, limit), "device 1 (GPU-1)")
		h = &Holder{Name: "c", UID: &uid}
	}
	must.Do(t, b.promise(&Holder{Name: "p"}, core.Bytes{gpu1: 79 * gib}))
	refused(t, b.promise(h, core.Bytes{gpu0: gib, gpu1: 2 * gib}), "device 1 (GPU-1)")
	if d := b.Promised(gpu0); d.Promised != 0 || d.Free != 80*gib {
		t.Errorf("%+v", d)
	}
	b.wantGranted(t, gpu0, 0, 80*gib, 0)
	expect.NoError(t, b.ask(h, core.Bytes{gpu0: 2 * gib}, limit))
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
		"the device":   {Limits{}, none, 80 * gib, "64424509440B are left of the 85899345920B that may be given (n has"},
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
		b, others := newBook(c.limits), *c.h
		rest := min(c.most, 60*gib)
		b.has(&others, core.Bytes{gpu0: c.most - rest})
		expect.NoError(t, b.ask(c.h, core.Bytes{gpu0: rest}, nil), name)
		if c.says == "" {
			continue
		}
		must.Do(t, b.end(c.h))
		err := b.ask(c.h, core.Bytes{gpu0: rest + 1}, nil)
		refused(t, err, c.says)
	}
	b := newBook(Limits{Tenants: tenants})
	b.give(t, pool, gpu0, 10*gib)
	b.give(t, physics, gpu0, 20*gib)
	err := b.ask(&Holder{Name: "q", Tenant: "physics"}, core.Bytes{gpu0: 11 * gib}, nil)
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
		return b.ask(h, core.Bytes{gpu0: bytes}, limit, api.Quota{Device: gpu0, Bytes: bytes})
	}
	b.has(&Holder{Name: "before"}, core.Bytes{gpu0: gib}) // a container does not count among its user's sessions
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
	b.wantGranted(t, gpu0, 11*gib, 69*gib, 3)
	must.Do(t, begin(session("d"), 0))
	refused(t, begin(session("e"), 0), "uid 5001 has 3 sessions, and may have 3")
	must.Do(t, b.release(a)) // with a process still alive
	refused(t, begin(session("e"), 0), "uid 5001 has 3 sessions")
	b.empty(a)
	expect.NoError(t, begin(session("e"), 6*gib))
}

// A session gets what is left, and not a byte more.
func TestRestOfAUsersLimitIsGranted(t *testing.T) {
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
			if i == 0 {
				b.has(h, core.Bytes{gpu0: c.hers * gib})
			} else {
				b.has(h, nil)
			}
		}
		b.has(&Holder{Name: "others", UID: &bob}, core.Bytes{gpu0: c.others * gib})
		sessions, devices := b.Left(alice, c.limit)
		want := api.DeviceLimit{Device: gpu0, Limit: c.most * gib, Given: c.has * gib, Left: c.leave * gib}
		if sessions != c.sessions || len(devices) != 2 || devices[gpu0] != want {
			t.Errorf("%s: %d, %+v, want %+v", name, sessions, devices, want)
		}
		ask := func(bytes uint64) error {
			return b.ask(&Holder{Name: "new", UID: &alice}, core.Bytes{gpu0: bytes}, c.limit)
		}
		expect.Error(t, ask(want.Left+1), name)
		if want.Left > 0 {
			expect.NoError(t, ask(want.Left), name)
		}
	}
	sessions, devices := New(core.Config{}).Left(alice, limit)
	if sessions != 0 || len(devices) != 0 {
		t.Errorf("without driver truth: %d, %+v", sessions, devices)
	}
}

func TestWithoutNVMLRequestedSizesCount(t *testing.T) {
	uid := uint32(5001)
	limit := &User{UID: uid, MaxVRAM: api.Share{Bytes: 10 * gib}, MaxSessions: 3}
	b := with(core.Config{Limits: Limits{MaxVRAM: api.Share{Bytes: 8 * gib}}})
	first := &Holder{Name: "a", UID: &uid}
	must.Do(t, b.ask(first, nil, limit, api.Quota{Device: gpu0, Bytes: 6 * gib}, api.Quota{Device: gpu1, Bytes: 2 * gib}))
	asks := func(q api.Quota) error {
		return b.ask(&Holder{Name: "b", UID: &uid}, nil, limit, q)
	}
	refused(t, asks(api.Quota{Device: "*", Bytes: 5 * gib}), "on device any", "have 6GiB")
	refused(t, with(core.Config{}).ask(&Holder{Name: "b", UID: &uid}, nil, limit, api.Quota{Device: "*", Percent: 5}), "as sizes")
	must.Do(t, b.ask(first, nil, limit, api.Quota{Device: gpu0, Bytes: 5 * gib}))
	expect.NoError(t, asks(api.Quota{Device: "*", Bytes: 5 * gib}))
	for i := range 30 { // without a size nothing is refused
		b.give(t, &Holder{Name: strconv.Itoa(i)}, gpu0, 8*gib)
	}
	err := b.ask(&Holder{Name: "c"}, core.Bytes{gpu0: 8*gib + 1}, nil)
	refused(t, err, "(max_vram)")
	if b.Granted(gpu0).Free != nil || len(b.Overcommitted()) != 0 {
		t.Errorf("%+v, %v", b.Granted(gpu0), b.Overcommitted())
	}
	refused(t, b.CheckSize("c", []api.Quota{{Bytes: 9 * gib}}), "(max_vram)")
	refused(t, b.CheckSize("c", []api.Quota{{Percent: 1}}), "they cannot be compared")
	expect.NoError(t, b.CheckSize("c", []api.Quota{{Bytes: 8 * gib}}))
}

func TestOvercommitAfterARestartStaysAndIsReported(t *testing.T) {
	b := newBook(Limits{Tenants: map[string]api.Share{"physics": {Bytes: gib}}})
	b.has(&Holder{Name: "a"}, core.Bytes{gpu0: 80 * gib})
	b.has(&Holder{Name: "b", Tenant: "physics"}, core.Bytes{gpu0: 60 * gib})
	all := b.Overcommitted()
	if len(all) != 2 || all[0] != (Over{Device: gpu0, Granted: 140 * gib, Limit: 80 * gib}) ||
		all[1].Tenant == nil || *all[1].Tenant != "physics" || all[1].Granted != 60*gib || all[1].Limit != gib {
		t.Errorf("%+v", all)
	}
	b.wantGranted(t, gpu0, 140*gib, 0, 2)
}

// Promised bytes stay promised until their holder is dropped, also those that a former enforcer promised.
func TestAPromiseHoldsUntilItsHolderIsDropped(t *testing.T) {
	wants := core.Bytes{gpu0: 50 * gib}
	for name, promise := range map[string]func(b *book, h *Holder) error{
		"by this enforcer": func(b *book, h *Holder) error { return b.promise(h, wants) },
		"by a former enforcer": func(b *book, h *Holder) error {
			r := record(h, wants)
			r.Elastic = true
			b.Enter(h, r)
			return nil
		},
	} {
		b, h, other := newBook(Limits{}), &Holder{Name: "pool a", Pool: "a"}, &Holder{Name: "b"}
		must.Do(t, promise(b, h))
		refused(t, b.promise(other, wants), "may be promised 80GiB together", "were promised 50GiB")
		expect.NoError(t, b.promise(h, core.Bytes{gpu0: 80 * gib}), name, "its own promise is in its way")
		must.Do(t, b.end(h))
		expect.NoError(t, b.promise(other, wants), name)
		if d := b.Promised(gpu0); d.Promised != 50*gib || d.Free != 30*gib || d.Most != 80*gib {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestPoolsAndFreeBytesAreConsistent(t *testing.T) {
	b := newBook(Limits{})
	pool, elastic := &Holder{Name: "pool x", Pool: "x"}, &Holder{Name: "pool y", Pool: "y"}
	r := record(elastic, core.Bytes{gpu0: 20 * gib})
	r.Elastic = true
	member := core.Record{ID: "m", Elastic: true, Phase: core.Live}
	b.Enter(elastic, r)
	b.Enter(&Holder{Name: "m"}, member, elastic)
	b.give(t, &Holder{Name: "a"}, gpu0, 10*gib)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 1000 {
			expect.NoError(t, b.ask(pool, core.Bytes{gpu0: 30 * gib}, nil))
			runtime.Gosched()
			expect.NoError(t, b.end(pool))
			runtime.Gosched()
		}
	}()
	for {
		g := b.Granted(gpu0)
		has := g.Pools["x"]
		if *g.Free+has != 50*gib || len(g.Pools) > 1 {
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

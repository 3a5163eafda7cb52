// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func (h *host) set(id string, quotas ...api.Quota) (api.Slice, error) {
	return h.Change(context.Background(), id, api.ChangeRequest{Quotas: quotas})
}

func TestAQuotaCanBeChangedWhileTheSliceRuns(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	p, _ := h.session("s", on(api.AllDevices, 4*gib))
	p.must("attach")
	p.must("charge 0 %d", 4*gib)
	p.expect("refused", "charge 0 1")

	s, err := h.set("s", on(api.AllDevices, 6*gib))
	if err != nil || s.Devices[0].Limit != 6*gib || s.Devices[1].Limit != 6*gib {
		t.Fatalf("%+v, %v", s, err)
	}
	p.must("charge 0 %d", 2*gib)
	p.expect("refused", "charge 0 1")

	// The limit is now below what is held. The slice keeps its bytes, and is granted no more until there is room again.
	if s, err = h.set("s", on(gpu0, 3*gib)); err != nil || s.Devices[0].Limit != 3*gib || s.Devices[0].Used != 6*gib || s.Devices[1].Limit != 6*gib {
		t.Fatalf("%+v, %v", s, err)
	}
	p.expect("refused", "charge 0 1")
	p.must("release 0 %d", 3*gib)
	p.expect("refused", "charge 0 1")
	p.must("release 0 1")
	p.must("charge 0 1")

	// The first device has a limit of its own by now; the quota for all devices sets the other's.
	if s, err = h.set("s", api.Quota{Device: api.AllDevices, Percent: 50}); err != nil || s.Devices[0].Limit != 3*gib || s.Devices[1].Limit != 40*gib {
		t.Fatalf("%+v, %v", s, err)
	}
	h.restart()
	if s = h.see("s"); s.State != api.Active || s.Devices[0].Limit != 3*gib || s.Devices[1].Limit != 40*gib {
		t.Fatalf("after a restart %+v", s)
	}
	p.expect("refused", "charge 0 1")
	p.must("charge 1 %d", 40*gib)
	p.expect("refused", "charge 1 1")
}

func TestOnlyChangesAreEvents(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	p, _ := h.session("s", on(api.AllDevices, gib))
	p.must("attach")
	p.must("charge 0 %d", gib)
	for _, quota := range []uint64{gib, gib / 2, gib / 2} {
		must.Get(h.set("s", on(gpu0, quota)))(t)
	}
	ttl := time.Hour
	must.Get(h.Change(context.Background(), "s", api.ChangeRequest{TTL: &ttl}))(t)
	events := must.Get(h.Events(context.Background(), "", 0, false))(t)
	var changed []api.Event
	for _, e := range events {
		if e.Kind == api.EventChanged {
			changed = append(changed, e)
		}
	}
	if len(changed) != 3 || changed[1].Device != gpu0 || *changed[1].Limit != gib/2 || *changed[1].Used != gib || changed[2].TTL != ttl {
		t.Errorf("%+v", changed)
	}
}

func TestInvalidChangeIsRefusedAsAWhole(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	p, _ := h.session("s", on(gpu0, 4*gib), on(gpu1, 4*gib))
	p.must("attach")
	h.session("other", on(gpu1, 70*gib))
	ttl := time.Hour
	recording := must.Get(h.Register(context.Background(), api.RegisterRequest{
		ID: "r", Session: true, Mode: api.Record, PID: start(t, "", "").pid(), Quotas: []api.Quota{on(gpu0, gib)},
		UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	}))(t)
	for what, row := range map[string]struct {
		id     string
		quotas []api.Quota
		want   error
		says   string
	}{
		"no such slice":          {"none", []api.Quota{on(gpu0, gib)}, api.ErrNotFound, "no slice"},
		"no such device":         {"s", []api.Quota{on("7", gib)}, api.ErrNoDevice, "there is no device 7"},
		"a device twice":         {"s", []api.Quota{on("0", gib), on(gpu0, gib)}, api.ErrBadRequest, ""},
		"which is meant?":        {"s", []api.Quota{on(api.AllDevices, gib)}, api.ErrBadRequest, ""},
		"more than there is":     {"s", []api.Quota{on(gpu0, 5*gib), on(gpu1, 11*gib)}, api.ErrQuotaExceeded, "other"},
		"of one that records":    {recording.Slice.ID, []api.Quota{on(gpu0, gib)}, api.ErrBadRequest, "only records"},
		"an id that cannot be":   {"../s", []api.Quota{on(gpu0, gib)}, api.ErrBadRequest, ""},
		"quotas that are nought": {"s", []api.Quota{on(gpu0, 0)}, api.ErrBadRequest, ""},
	} {
		_, err := h.Change(context.Background(), row.id, api.ChangeRequest{Quotas: row.quotas, TTL: &ttl})
		expect.ErrorSays(t, err, row.want, row.says, what)
	}
	expect.ErrorIs(t, must.Err(h.Change(context.Background(), "s", api.ChangeRequest{})), api.ErrBadRequest, "nothing")
	if s := h.see("s"); s.Expires != nil || s.Devices[0].Limit != 4*gib || s.Devices[1].Limit != 4*gib {
		t.Errorf("something was changed: %+v", s)
	}
	// Refused bytes and released bytes are not booked.
	expect.NoError(t, must.Err(h.set("s", on(gpu1, 10*gib))))
	expect.NoError(t, must.Err(h.set("s", on(gpu1, gib))))
	expect.NoError(t, must.Err(h.set("other", on(gpu1, 79*gib))))
	expect.NoError(t, must.Err(h.Change(context.Background(), "r", api.ChangeRequest{TTL: &ttl})), "the time of one that records")
}

// A quota on an unused device is granted or refused at the request; the device's first use applies it.
func TestQuotaOnAnUnusedDeviceIsGrantedOrRefusedAtOnce(t *testing.T) {
	h := newOffice(t, admission.Limits{MaxVRAM: api.Share{Bytes: 70 * gib}, Tenants: map[string]api.Share{"physics": {Bytes: 10 * gib}}})
	p, _ := h.session("s", on(gpu0, 4*gib))
	p.must("attach")
	h.give("large", on(gpu1, 30*gib))
	must.Get(h.ask("p", func(r *api.RegisterRequest) { r.Tenant = "physics" }, on(gpu0, 4*gib)))(t)
	unchanged := func(id string) {
		t.Helper()
		if s := h.see(id); s.State != api.Active || len(s.Devices) != 1 || !slices.Equal(s.Quotas, []api.Quota{on(gpu0, 4*gib)}) {
			t.Errorf("something was changed: %+v", s)
		}
		h.wantGranted(gpu1, 30*gib, 50*gib)
	}
	for _, row := range []struct {
		id    string
		bytes uint64
		says  []string
	}{
		{"s", 60 * gib, []string{"s asks for 60GiB on device 1 (" + gpu1 + ")", "50GiB are left of the 80GiB", "large has 30GiB"}},
		{"s", 71 * gib, []string{"70GiB", "max_vram"}},
		{"p", 20 * gib, []string{"tenant physics has 10GiB left of 10GiB"}},
	} {
		_, err := h.set(row.id, on("1", row.bytes))
		refusal(t, err, row.says...)
		unchanged(row.id)
	}
	must.Do(t, h.LoseDisk())
	expect.Error(t, must.Err(h.set("s", on(gpu1, 20*gib))), "it is given, but not on disk")
	unchanged("s")
	h.restart()
	unchanged("s")

	s := must.Get(h.set("s", on(gpu1, 20*gib)))(t)
	check := func(s api.Slice) {
		t.Helper()
		if s.State != api.Active || len(s.Devices) != 2 || s.Devices[0].Limit != 4*gib || s.Devices[1].Limit != 20*gib ||
			!slices.Equal(s.Quotas, []api.Quota{on(gpu0, 4*gib), on(gpu1, 20*gib)}) {
			t.Fatalf("%+v", s)
		}
		h.wantGranted(gpu1, 50*gib, 30*gib)
	}
	check(s)
	events, err := h.Events(context.Background(), "", 0, false)
	if err != nil || !slices.ContainsFunc(events, func(e api.Event) bool {
		return e.Kind == api.EventChanged && e.Slice == "s" && e.Device == gpu1 && e.Limit != nil && *e.Limit == 20*gib
	}) {
		t.Errorf("no such event: %+v, %v", events, err)
	}
	p.must("charge 1 %d", 20*gib)
	p.expect("refused", "charge 1 1")
	h.restart()
	check(h.see("s"))
	p.expect("refused", "charge 1 1")
	expect.Equal(t, p.must("device %s %d", hex1, 80*gib), 1, "it has place")
}

func TestMemberGetsAnotherDeviceOfItsPool(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	ctx := context.Background()
	must.Get(h.CreatePool(ctx, "llm", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 10*gib)}}))(t)
	must.Get(h.ask("m", func(r *api.RegisterRequest) { r.Pools = api.PoolNames{"llm"} }, on(gpu0, gib)))(t)
	expect.ErrorSays(t, must.Err(h.set("m", on(gpu1, 5*gib))), api.ErrNoDevice, "pool llm has none", "where the pool has nothing")
	must.Get(h.SetPool(ctx, "llm", api.PoolRequest{Quotas: []api.Quota{on(gpu1, 20*gib)}}))(t)
	if s, err := h.set("m", on(gpu1, 5*gib)); err != nil || len(s.Devices) != 2 || s.Devices[1].Limit != 5*gib {
		t.Errorf("%+v, %v", s, err)
	}
	h.wantGranted(gpu1, 20*gib, 60*gib)
}

func TestTheDriverKnowsOfAnotherDeviceAtOnce(t *testing.T) {
	f := &fakeBackend{}
	h, b := newNativeBox(t, f)
	if h == nil {
		return
	}
	f.are(t, "registered", b.cgroup, 4*gib, driver.NoLimit)
	s, err := h.set("c", on(gpu1, 5*gib))
	if err != nil || len(s.Devices) != 2 || s.Devices[1].Enforcement != api.Native {
		t.Fatalf("%+v, %v", s, err)
	}
	f.are(t, "with another device", b.cgroup, 4*gib, 5*gib)
}

// A slice for which the driver had no limit gets one for a second device.
func TestTheDriverKnowsOfADeviceThatIsTheFirstItEnforcesOn(t *testing.T) {
	f := &fakeBackend{weak: gpu0}
	h, b := newNativeBox(t, f)
	if h == nil {
		return
	}
	f.are(t, "registered", b.cgroup, driver.NoLimit, driver.NoLimit)
	s, err := h.set("c", on(gpu1, 5*gib))
	if err != nil || len(s.Devices) != 2 || s.Devices[0].Enforcement != api.Intercept || s.Devices[1].Enforcement != api.Native {
		t.Fatalf("%+v, %v", s, err)
	}
	f.are(t, "with the other device", b.cgroup, driver.NoLimit, 5*gib)
	h.restart()
	f.are(t, "restarted", b.cgroup, driver.NoLimit, 5*gib)
}

// Once a change has returned, no charge beyond the new limit takes effect, however many are in progress.
func TestNoChargeBeyondANewLimitTakesEffectOnceItIsSet(t *testing.T) {
	rounds := 200
	if os.Getenv("GPUSLICE_LONG") != "" {
		rounds = 5000
	}
	const high, low = 40, 4
	h := newHost(t, &fakeTruth{})
	reply := must.Get(h.Register(context.Background(), api.RegisterRequest{
		ID: "s", Session: true, PID: os.Getpid(), Quotas: []api.Quota{on(gpu0, high)}, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	}))(t)
	dir := filepath.Join(reply.Dir, "bind")
	watcher := start(t, dir, "")
	watcher.must("attach")
	for range 4 {
		racer := start(t, dir, "")
		racer.must("attach")
		racer.tell("churn 0 %d", uint64(1)<<40) // runs until it is killed
	}
	var above int
	for range rounds {
		must.Get(h.set("s", on(gpu0, low)))(t)
		most := max(watcher.must("used 0"), low)
		if most > low {
			above++
		}
		for range 20 {
			if used := watcher.must("used 0"); used > most {
				t.Fatalf("%d are charged, of %d that were when the limit of %d was in force", used, most, low)
			}
		}
		must.Equal(t, must.Get(h.set("s", on(gpu0, high)))(t).State, api.Active)
	}
	t.Logf("%d of %d changes came upon more than the new limit", above, rounds)
}

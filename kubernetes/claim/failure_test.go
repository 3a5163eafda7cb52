// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/kubernetes/cdi"
)

// pools is an enforcer that holds pools and fails as a test requests.
type pools struct {
	has    map[string]api.Pool
	listed func() error // called by Pools
}

func (p *pools) Devices(context.Context) ([]api.Device, error) { return nil, nil }

func (p *pools) Pools(context.Context) (all []api.Pool, err error) {
	if p.listed != nil {
		err = p.listed()
	}
	for _, pool := range p.has {
		all = append(all, pool)
	}
	return all, err
}

func (p *pools) CreatePool(_ context.Context, name string, r api.PoolRequest) (api.Pool, error) {
	if pool, ok := p.has[name]; ok {
		return pool, api.ErrExists
	}
	p.has[name] = api.Pool{Name: name, Quotas: r.Quotas}
	return p.has[name], nil
}

func (p *pools) DeletePool(_ context.Context, name string) (api.Pool, error) {
	pool, ok := p.has[name]
	switch {
	case !ok:
		return pool, api.ErrNotFound
	case len(pool.Members) > 0 || pool.ProcessCount > 0:
		return pool, api.ErrRunning
	}
	delete(p.has, name)
	return pool, nil
}

// prepared returns a Preparer with the file and the pool of one claim.
func prepared(t *testing.T) (*Preparer, *pools) {
	t.Helper()
	p := &pools{has: map[string]api.Pool{PoolName(uid, 0): {Name: PoolName(uid, 0)}}}
	preparer := &Preparer{Enforcer: p, Writer: &cdi.Writer{Dir: t.TempDir(), Hook: "/hook", Config: "/config"}, Log: slog.New(slog.DiscardHandler), Times: DefaultTimes}
	if err := preparer.Writer.Write(cdi.Claim{Namespace: "team", Name: "train", UID: uid}, []cdi.Share{{Pool: PoolName(uid, 0)}}); err != nil {
		t.Fatal(err)
	}
	return preparer, p
}

func TestNothingIsCollectedWhileTheAPIServerFails(t *testing.T) {
	what := schema.GroupResource{Resource: "resourceclaims"}
	gone := apierrors.NewNotFound(what, "train")
	for name, failure := range map[string]error{
		"away": errors.New("connection refused"), "timeout": context.DeadlineExceeded, "forbidden": apierrors.NewForbidden(what, "train", nil),
		"unauthorized": apierrors.NewUnauthorized("token"), "overloaded": apierrors.NewTooManyRequests("later", 1),
		"internal": apierrors.NewInternalError(errors.New("etcd")), "gone": apierrors.NewResourceExpired("old"),
		"unavailable": apierrors.NewServiceUnavailable("down"), "server timeout": apierrors.NewServerTimeout(what, "get", 1),
	} {
		for _, answers := range [][]error{{failure}, {gone, failure}} { // the second lookup of a missing claim may fail too
			preparer, p := prepared(t)
			asked := 0
			err := preparer.Collect(t.Context(), func(context.Context, string, string) (*resourceapi.ResourceClaim, error) {
				answer := answers[min(asked, len(answers)-1)]
				asked++
				return &resourceapi.ResourceClaim{}, answer
			})
			files, listErr := preparer.Writer.List()
			if !errors.Is(err, failure) || len(p.has) != 1 || len(files) != 1 || listErr != nil {
				t.Errorf("%s at call %d: %v, pools %v, files %v, %v", name, len(answers), err, p.has, files, listErr)
			}
		}
	}
}

func TestClaimWithAnUndeletablePoolStaysPrepared(t *testing.T) {
	preparer, p := prepared(t)
	preparer.Times = Times{Unprepare: 1, Retry: 1} // its member does not end
	name := PoolName(uid, 0)
	p.has[name] = api.Pool{Name: name, Members: []string{"c"}}
	err := preparer.Unprepare(t.Context(), uid)
	if files, listErr := preparer.Writer.List(); !errors.Is(err, api.ErrRunning) || len(p.has) != 1 || len(files) != 1 || listErr != nil {
		t.Errorf("%v, pools %v, files %v, %v", err, p.has, files, listErr)
	}
	p.has[name] = api.Pool{Name: name}
	err = preparer.Unprepare(t.Context(), uid)
	if files, listErr := preparer.Writer.List(); err != nil || len(p.has)+len(files) != 0 || listErr != nil {
		t.Errorf("%v, pools %v, files %v, %v", err, p.has, files, listErr)
	}
}

func TestAPoolIsKeptWhileItsFileCannotBeLookedUp(t *testing.T) {
	preparer, p := prepared(t)
	if err := preparer.Writer.Remove(uid); err != nil {
		t.Fatal(err)
	}
	p.listed = func() error {
		_ = os.Remove(preparer.Writer.Dir) // the second lookup fails
		return nil
	}
	if err := preparer.Collect(t.Context(), nothing); !errors.Is(err, os.ErrNotExist) || len(p.has) != 1 {
		t.Errorf("%v, pools %v", err, p.has)
	}
}

func TestAPoolOfAnEarlierAllocationIsNotUsed(t *testing.T) {
	name := PoolName(uid, 0)
	on := func(devices ...string) (all []api.Quota) {
		for _, d := range devices {
			all = append(all, api.Quota{Device: d, Bytes: gib})
		}
		return all
	}
	for what, c := range map[string]struct {
		has  api.Pool
		want error
	}{
		"same, a member":     {api.Pool{Members: []string{"c"}, Quotas: on("b", "a")}, nil},
		"same, a process":    {api.Pool{ProcessCount: 1, Quotas: on("a", "b")}, nil},
		"other, a member":    {api.Pool{Members: []string{"c"}, Quotas: on("c", "d")}, api.ErrRunning},
		"other, a process":   {api.Pool{ProcessCount: 1, Quotas: on("a", "c")}, api.ErrRunning},
		"fewer, a member":    {api.Pool{Members: []string{"c"}, Quotas: on("a")}, api.ErrRunning},
		"more, a member":     {api.Pool{Members: []string{"c"}, Quotas: on("a", "b", "c")}, api.ErrRunning},
		"other, with nobody": {api.Pool{Quotas: on("c")}, nil},
	} {
		preparer, p := prepared(t)
		c.has.Name = name
		p.has[name] = c.has
		err := preparer.ensure(t.Context(), share{pool: name, request: api.PoolRequest{Quotas: on("a", "b")}})
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
		if c.want == nil && len(p.has[name].Quotas) != 2 {
			t.Errorf("%s: the pool is %+v", what, p.has[name])
		}
	}
}

func TestCanceledCallerReleasesItsTurn(t *testing.T) {
	var all turns
	give, err := all.take(t.Context(), uid)
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := all.take(canceled, uid); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that gave up has a turn: %v", err)
	}
	if users := all.taken[uid].users; users != 1 {
		t.Errorf("%d users, want the first alone", users)
	}
	slot := all.taken[uid].slot
	give()
	if len(all.taken) != 0 || len(slot) != 0 {
		t.Errorf("turns %v are not given back; the slot has %d", all.taken, len(slot))
	}
}

func TestMemoryOfProgramsOutsideSlicesIsNotGranted(t *testing.T) {
	made := map[string]uint64{PoolName(uid, 0): 20 * gib, PoolName(uid, 1): 20 * gib}
	for name, c := range map[string]struct {
		device api.Device
		words  string
	}{
		"all is free":       {api.Device{Free: ptr.To[uint64](40 * gib)}, ""},
		"the rest suffices": {api.Device{Free: ptr.To[uint64](50 * gib), OutsideUsed: 10 * gib}, ""},
		"it does not":       {api.Device{Free: ptr.To[uint64](40 * gib), OutsideUsed: 1}, "programs outside of slices hold 1B and 40959Mi are left"},
		"in the reserve":    {api.Device{Free: ptr.To[uint64](40 * gib), OutsideUsed: gib, Reserve: gib}, ""},
		"beyond it":         {api.Device{Free: ptr.To[uint64](40 * gib), OutsideUsed: 2 * gib, Reserve: gib}, "39Gi are left: wait until they end"},
		"all is outside":    {api.Device{Free: ptr.To[uint64](40 * gib), OutsideUsed: 80 * gib}, " 0 are left"},
		"idle elastic":      {api.Device{Free: ptr.To[uint64](30 * gib), OutsideUsed: 10 * gib, Elastic: &api.ElasticDevice{Idle: 20 * gib}}, ""},
		"its pool is made":  {api.Device{Free: ptr.To[uint64](40 * gib), OutsideUsed: 10 * gib, Pools: made}, ""},
		"gpusliced refuses": {api.Device{Free: ptr.To[uint64](30 * gib), OutsideUsed: 10 * gib}, ""},
		"no driver truth":   {api.Device{OutsideUsed: 10 * gib}, ""},
		"another device":    {api.Device{UUID: "GPU-other", Free: ptr.To[uint64](40 * gib), OutsideUsed: 10 * gib}, ""},
	} {
		c.device.UUID = cmp.Or(c.device.UUID, "GPU-a")
		all, err := shares(claimOf(uid, result{"one", "gpu-a", 20 * gib}, result{"other", "gpu-a", 20 * gib}))
		if err != nil {
			t.Fatal(err)
		}
		switch err := room(all, []api.Device{c.device}); {
		case (err == nil) != (c.words == "") || err != nil && !strings.Contains(err.Error(), c.words):
			t.Errorf("%s: %v", name, err)
		case err != nil && !passing(err):
			t.Errorf("%s: %v is not tried again", name, err)
		}
	}
}

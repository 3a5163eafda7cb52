// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/kubernetes/cdi"
	"github.com/gpuslice/gpuslice/kubernetes/config"
	"github.com/gpuslice/gpuslice/kubernetes/inventory"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const (
	gib = 1 << 30
	uid = types.UID("0a1b2c3d-1111-2222-3333-444455556666")
)

// node is gpusliced with two simulated cards, and a Preparer.
type node struct {
	*testhost.Host
	*Preparer
	devices []string // names
}

func newNode(t *testing.T) *node {
	t.Helper()
	t.Parallel()
	h := testhost.New(t, testhost.Options{Env: []string{"FAKECUDA_DEVICES=2"}})
	n := &node{Host: h, Preparer: &Preparer{
		Enforcer: h.Client, Host: &cdi.Host{}, Log: slog.New(slog.DiscardHandler),
		Writer: &cdi.Writer{Dir: t.TempDir(), Hook: filepath.Join(h.Bin, "gpuslice-hook"), Config: h.Config()},
		Times:  Times{Prepare: testhost.Patience, Unprepare: testhost.Patience, Retry: 10 * time.Millisecond},
	}}
	devices, err := h.Client.Devices(t.Context())
	if err != nil || len(devices) != 2 {
		t.Fatalf("devices %+v, %v", devices, err)
	}
	for _, d := range devices {
		n.devices = append(n.devices, inventory.DeviceName(d.UUID))
	}
	return n
}

func (n *node) pools() (names []string) {
	pools, err := n.Client.Pools(context.Background())
	n.Must(err)
	for _, p := range pools {
		names = append(names, p.Name)
	}
	return names
}

func (n *node) files() []cdi.Claim {
	files, err := n.Writer.List()
	n.Must(err)
	return files
}

type result struct {
	request, device string
	bytes           int64
}

func claimOf(uid types.UID, results ...result) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{}
	c.Namespace, c.Name, c.UID = "team", "train", uid
	c.Status.Allocation = &resourceapi.AllocationResult{}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p"}}
	for i, r := range results {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: r.request, Driver: config.Driver, Pool: "node", Device: r.device, ShareID: ptr.To(types.UID(fmt.Sprint(i))),
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{inventory.Memory: *resource.NewQuantity(r.bytes, resource.BinarySI)},
		})
	}
	return c
}

func TestEachRequestOfAClaimIsAPoolWithItsQuota(t *testing.T) {
	n := newNode(t)
	c := claimOf(uid, result{"small", n.devices[0], 2 * gib}, result{"large/first", n.devices[0], 6 * gib}, result{"many", n.devices[0], gib},
		result{"many", n.devices[0], gib}, result{"many", n.devices[1], gib})
	c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{Request: "net", Driver: "other.io"})
	for range 2 { // the kubelet repeats calls after a restart
		devices, err := n.Prepare(t.Context(), c)
		if err != nil || len(devices) != 5 {
			t.Fatalf("got %+v, %v", devices, err)
		}
		var named []string
		for _, d := range devices {
			named = append(named, d.CDIDeviceIDs...)
		}
		if want := []string{cdi.DeviceID(PoolName(uid, 0)), cdi.DeviceID(PoolName(uid, 1)), cdi.DeviceID(PoolName(uid, 2))}; !slices.Equal(named, want) {
			t.Errorf("the hooks of %v, want each once: %v", named, want)
		}
		pools, err := n.Client.Pools(t.Context())
		if err != nil || len(pools) != 3 {
			t.Fatalf("pools %+v, %v", pools, err)
		}
		for i, want := range [][]uint64{{2 * gib}, {6 * gib}, {2 * gib, gib}} {
			p := pools[i]
			if p.Tenant != "team" || p.Label != "team/train" || len(p.Quotas) != len(want) {
				t.Fatalf("pool %+v", p)
			}
			for j, q := range p.Quotas {
				if q.Bytes != want[j] || inventory.DeviceName(q.Device) != n.devices[j] {
					t.Errorf("pool %s has %+v, want %v", p.Name, p.Quotas, want)
				}
			}
		}
	}
	if files := n.files(); len(files) != 1 || files[0].String() != "team/train" {
		t.Errorf("files %+v", files)
	}
	for range 2 {
		n.Must(n.Unprepare(t.Context(), uid))
	}
	if pools, files := n.pools(), n.files(); len(pools) > 0 || len(files) > 0 {
		t.Errorf("pools %v and files %v are left", pools, files)
	}
}

func TestPoolsHaveTheClaimsConfiguration(t *testing.T) {
	n := newNode(t)
	c := claimOf(uid, result{"short", n.devices[0], gib}, result{"long", n.devices[0], gib})
	says := func(source resourceapi.AllocationConfigSource, text string, requests ...string) {
		c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
			Source: source, Requests: requests, DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: config.Driver, Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion":"gpuslice.io/v1","kind":"ClaimConfig",` + text + `}`)},
			}},
		})
	}
	says(resourceapi.AllocationConfigSourceClass, `"tenant":"physics","ttl":"1h"`)
	says(resourceapi.AllocationConfigSourceClaim, `"ttl":"30m"`, "short")
	if _, err := n.Prepare(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for i, ttl := range []time.Duration{30 * time.Minute, time.Hour} {
		if p, err := n.Client.Pool(t.Context(), PoolName(uid, i)); err != nil || p.Tenant != "physics" || p.TTL != ttl {
			t.Errorf("pool %+v, %v", p, err)
		}
	}
	says(resourceapi.AllocationConfigSourceClaim, `"elastic":true`)
	if _, err := n.Prepare(t.Context(), c); err == nil || !strings.Contains(err.Error(), "is not for elastic claims: use the DeviceClass elastic.gpuslice.io") {
		t.Errorf("an elastic claim on another device: %v", err)
	}
}

func TestUnpreparableClaimIsRefusedWithAReason(t *testing.T) {
	n := newNode(t)
	n.Times.Prepare = 3 * time.Second
	other := types.UID("1a1b2c3d-1111-2222-3333-444455556666")
	if _, err := n.Prepare(t.Context(), claimOf(other, result{"gpu", n.devices[0], 60 * gib})); err != nil {
		t.Fatal(err)
	}
	admin := claimOf(uid, result{"gpu", n.devices[0], gib})
	admin.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	for want, c := range map[string]*resourceapi.ResourceClaim{
		"is not known to gpusliced on this node": claimOf(uid, result{"gpu", "gpu-ffffffff-4455-6677-8899-aabbccddeeff", gib}),
		"has adminAccess":                        admin,
		"without any memory":                     claimOf(uid, result{"gpu", n.devices[0], 0}),
		"are left":                               claimOf(uid, result{"gpu", n.devices[0], 60 * gib}),
	} {
		if _, err := n.Prepare(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", want, err)
		}
	}
	n.Stop(unix.SIGTERM)
	if _, err := n.Prepare(t.Context(), claimOf(uid, result{"gpu", n.devices[0], gib})); err == nil ||
		!strings.HasPrefix(err.Error(), "no claim of "+config.Driver+" can be prepared on this node: the enforcer does not answer on ") || strings.Count(err.Error(), "answer") != 1 {
		t.Errorf("without gpusliced: %v", err)
	}
	n.Start()
	if pools := n.pools(); len(pools) != 1 {
		t.Errorf("pools %v", pools)
	}
}

// over is a context past its deadline with Err still nil.
type over struct{ context.Context }

func (over) Deadline() (time.Time, bool) { return time.Now(), true }

func TestATimeoutDoesNotHideTheReason(t *testing.T) {
	full, late := errors.New("full"), errors.New("i/o timeout")
	tried := 0
	err := new(Preparer).retry(over{t.Context()}, func(error) bool { return true }, func() error {
		if tried++; tried == 1 {
			return full
		}
		return late
	})
	if err != full {
		t.Errorf("%v after %d tries", err, tried)
	}
}

func TestPrepareWaitsForGpuslicedAndForFreedMemory(t *testing.T) {
	n := newNode(t)
	other := types.UID("1a1b2c3d-1111-2222-3333-444455556666")
	if _, err := n.Prepare(t.Context(), claimOf(other, result{"gpu", n.devices[0], 60 * gib})); err != nil {
		t.Fatal(err)
	}
	n.Stop(unix.SIGKILL)
	prepared := make(chan error, 1)
	go func() {
		_, err := n.Prepare(context.Background(), claimOf(uid, result{"gpu", n.devices[0], 60 * gib}))
		prepared <- err
	}()
	n.Start()
	select {
	case err := <-prepared:
		t.Fatalf("it does not wait: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	n.Must(n.Unprepare(t.Context(), other))
	n.Must(<-prepared)
}

func TestAClaimThatEndsWhileGpuslicedIsAwayIsCollectedAfterwards(t *testing.T) {
	n := newNode(t)
	if _, err := n.Prepare(t.Context(), claimOf(uid, result{"gpu", n.devices[0], gib})); err != nil {
		t.Fatal(err)
	}
	n.Stop(unix.SIGTERM)
	n.Must(n.Unprepare(t.Context(), uid))
	if files := n.files(); len(files) > 0 {
		t.Errorf("files %v are left", files)
	}
	n.Start()
	n.Must(n.Collect(t.Context(), nothing))
	if pools := n.pools(); len(pools) > 0 {
		t.Errorf("pools %v are left", pools)
	}
}

func nothing(context.Context, string, string) (*resourceapi.ResourceClaim, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "resourceclaims"}, "train")
}

func TestOnlyPoolsWithoutAClaimAreCollected(t *testing.T) {
	n := newNode(t)
	c := claimOf(uid, result{"gpu", n.devices[0], gib})
	if _, err := n.Prepare(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	n.Must(os.WriteFile(filepath.Join(n.Writer.Dir, "nvidia.json"), []byte("{}"), 0o644))
	_, err := n.Client.CreatePool(t.Context(), "llm", api.PoolRequest{Quotas: []api.Quota{{Device: api.AllDevices, Bytes: gib}}})
	n.Must(err)
	kept := func(want int) {
		t.Helper()
		if pools, files := n.pools(), n.files(); len(pools) != 1+want || len(files) != want || !slices.Contains(pools, "llm") {
			t.Errorf("pools %v and files %v, want the claim's: %d", pools, files, want)
		}
	}
	n.Must(n.Collect(t.Context(), func(context.Context, string, string) (*resourceapi.ResourceClaim, error) { return c, nil }))
	kept(1)
	if err := n.Collect(t.Context(), func(context.Context, string, string) (*resourceapi.ResourceClaim, error) {
		return nil, errors.New("away")
	}); err == nil {
		t.Error("no error although the API server does not answer")
	}
	kept(1)
	again := c.DeepCopy() // another claim of the same name
	again.UID = "2a1b2c3d-1111-2222-3333-444455556666"
	n.Must(n.Collect(t.Context(), func(context.Context, string, string) (*resourceapi.ResourceClaim, error) { return again, nil }))
	kept(0)
}

func TestAClaimThatIsAllocatedAnewHasItsNewDevice(t *testing.T) {
	n := newNode(t)
	for _, d := range n.devices {
		if _, err := n.Prepare(t.Context(), claimOf(uid, result{"gpu", d, gib})); err != nil {
			t.Fatal(err)
		}
		p, err := n.Client.Pool(t.Context(), PoolName(uid, 0))
		if err != nil || len(p.Quotas) != 1 || inventory.DeviceName(p.Quotas[0].Device) != d {
			t.Errorf("pool %+v, %v, want one on %s", p, err, d)
		}
	}
}

func TestManyCallsForOneClaimAtOnceMakeItOnce(t *testing.T) {
	n := newNode(t)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			if _, err := n.Prepare(t.Context(), claimOf(uid, result{"gpu", n.devices[0], 60 * gib})); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if pools := n.pools(); len(pools) != 1 {
		t.Errorf("pools %v", pools)
	}
	if len(n.turns.taken) > 0 {
		t.Errorf("turns %v are left", n.turns.taken)
	}
}

func TestPoolsNameIdentifiesItsClaim(t *testing.T) {
	for name, want := range map[string]types.UID{PoolName(uid, 3): uid, PoolName(uid, 12): uid, "dra-x-0": "", "llm": "", string(uid) + "-0": ""} {
		if got := ClaimOf(name); got != want {
			t.Errorf("%s is of %q, want %q", name, got, want)
		}
	}
	if err := api.CheckPoolName(PoolName(uid, 999)); err != nil {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	grpchealth "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/kubernetes/claim"
	"github.com/gpuslice/gpuslice/kubernetes/config"
	"github.com/gpuslice/gpuslice/kubernetes/inventory"
	"github.com/gpuslice/gpuslice/test/await"
)

const (
	gib  = 1 << 30
	uid  = types.UID("0a1b2c3d-1111-2222-3333-444455556666")
	uuid = "GPU-00112233-4455-6677-8899-aabbccddeeff"
)

func allocated() *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: uid}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
		Request: "gpu", Driver: config.Driver, Pool: "node", Device: inventory.DeviceName(uuid),
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{inventory.Memory: resource.MustParse("4Gi")},
	}}}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-1", UID: "u"}}
	return c
}

// work is a fake of the packages behind the plugin.
type work struct {
	prepare func(context.Context) error
	held    atomic.Uint64 // bytes in the claim's pool
	asked   atomic.Int32  // calls of Pools
}

func (w *work) Prepare(ctx context.Context, c *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	r := c.Status.Allocation.Devices.Results[0]
	return []kubeletplugin.Device{{Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, CDIDeviceIDs: []string{"gpuslice.io/vram=x"}}}, w.prepare(ctx)
}
func (w *work) Unprepare(context.Context, types.UID) error { return nil }
func (w *work) Pools(context.Context) ([]api.Pool, error) {
	w.asked.Add(1)
	return []api.Pool{
		{Name: "other", Devices: []api.PoolUse{{Device: uuid, Limit: gib, Used: gib}}},
		{Name: claim.PoolName(uid, 0), Devices: []api.PoolUse{{Device: uuid, Limit: 4 * gib, Used: w.held.Load(), Overhead: 1}}},
	}, nil
}

// says passes an answer of the enforcer to the plugin.
func (w *work) says(p *Plugin, health api.Health) {
	pools, _ := w.Pools(context.Background())
	p.SetHost(inventory.Host{Devices: []api.Device{{UUID: uuid}}, Pools: pools, Health: health})
}

// kubelet is a client of the plugin's sockets.
type kubelet struct {
	dra.DRAPluginClient
	health drahealth.DRAResourceHealthClient
	live   *Live
	kube   *fake.Clientset
	status *Status
	plugin *Plugin
}

func start(t *testing.T, w *work) *kubelet {
	t.Helper()
	dir, err := os.MkdirTemp("", "gs") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ctx, cancel := context.WithCancel(context.Background())
	kube := fake.NewClientset(allocated(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	log := slog.New(slog.DiscardHandler)
	s := &Status{Kube: kube, Node: "node", Log: log, Every: 5 * time.Millisecond, UsedEvery: 5 * time.Millisecond, Pools: w.Pools, Claims: func(u types.UID) (string, string, bool) { return "team", "train", u == uid }}
	p := &Plugin{Preparer: w, Node: "node", Status: s, Metrics: NewMetrics(prometheus.NewRegistry()), Log: log, Fatal: func(err error) { t.Error(err) }}
	helper, err := kubeletplugin.Start(ctx, p, kubeletplugin.KubeClient(kube), kubeletplugin.NodeName("node"), kubeletplugin.DriverName(config.Driver),
		kubeletplugin.Serialize(false), kubeletplugin.RegistrarDirectoryPath(dir), kubeletplugin.PluginDataDirectoryPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	t.Cleanup(func() { cancel(); helper.Stop(); <-done })
	socket := filepath.Join(dir, "dra.sock")
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	live, err := NewLive(filepath.Join(dir, config.Driver+"-reg.sock"), socket)
	if err != nil {
		t.Fatal(err)
	}
	return &kubelet{dra.NewDRAPluginClient(conn), drahealth.NewDRAResourceHealthClient(conn), live, kube, s, p}
}

func (k *kubelet) prepare(t *testing.T) *dra.NodePrepareResourceResponse {
	t.Helper()
	r, err := k.NodePrepareResources(t.Context(), &dra.NodePrepareResourcesRequest{Claims: []*dra.Claim{{Namespace: "team", Name: "train", Uid: string(uid)}}})
	if err != nil {
		t.Fatal(err)
	}
	return r.Claims[string(uid)]
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	await.That(t, what, is)
}

func (k *kubelet) ready() *metav1.Condition {
	c, err := k.kube.ResourceV1().ResourceClaims("team").Get(context.Background(), "train", metav1.GetOptions{})
	if err != nil || len(c.Status.Devices) != 1 || len(c.Status.Devices[0].Conditions) != 1 {
		return nil
	}
	return &c.Status.Devices[0].Conditions[0]
}

func (k *kubelet) says(t *testing.T) (s said) {
	t.Helper()
	c, err := k.kube.ResourceV1().ResourceClaims("team").Get(context.Background(), "train", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Status.Devices) == 0 || c.Status.Devices[0].Data == nil {
		return said{}
	}
	if err := json.Unmarshal(c.Status.Devices[0].Data.Raw, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPrepareAnswersTheKubeletAndSetsTheClaimsStatus(t *testing.T) {
	w := &work{prepare: func(context.Context) error { return errors.New("the card is full") }}
	k := start(t, w)
	if got := k.prepare(t); !strings.Contains(got.Error, "the card is full") {
		t.Errorf("got %+v", got)
	}
	eventually(t, "the claim says why", func() bool {
		c := k.ready()
		return c != nil && c.Status == metav1.ConditionFalse && c.Message == "the card is full"
	})
	time.Sleep(2 * k.status.UsedEvery)
	w.says(k.plugin, api.Health{}) // its pool exists
	await.Quiet(t, "a claim that was refused is ready", 10*k.status.UsedEvery, func() bool { return k.ready().Status != metav1.ConditionFalse })
	w.prepare = func(context.Context) error { return nil }
	if got := k.prepare(t); got.Error != "" || len(got.Devices) != 1 || got.Devices[0].CdiDeviceIds[0] != "gpuslice.io/vram=x" {
		t.Errorf("got %+v", got)
	}
	eventually(t, "the claim is ready", func() bool { c := k.ready(); return c != nil && c.Status == metav1.ConditionTrue })
	if says := k.says(t); says != (said{"4Gi", "1Mi", uuid}) {
		t.Errorf("data %+v", says)
	}
	r, err := k.NodeUnprepareResources(t.Context(), &dra.NodeUnprepareResourcesRequest{Claims: []*dra.Claim{{Uid: string(uid)}}})
	if err != nil || r.Claims[string(uid)].Error != "" {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestClaimStatusHasUseAndReadyTime(t *testing.T) {
	w := &work{prepare: func(context.Context) error { return nil }}
	k := start(t, w)
	k.prepare(t)
	eventually(t, "the claim is ready", func() bool { return k.ready() != nil })
	since := k.ready().LastTransitionTime
	time.Sleep(time.Until(since.Add(time.Second))) // transition times are whole seconds
	w.held.Store(2*gib - 1)
	w.says(k.plugin, api.Health{})
	eventually(t, "the claim uses 2Gi", func() bool { return k.says(t) == said{"4Gi", "2Gi", uuid} })
	if is := k.ready(); is == nil || !is.LastTransitionTime.Equal(&since) || is.Status != metav1.ConditionTrue {
		t.Errorf("the condition was since %v, but is %+v", since, is)
	}
}

func TestIdleDriverSendsNoRequests(t *testing.T) {
	w := &work{}
	k := start(t, w)
	await.Quiet(t, "it is asked", 20*k.status.UsedEvery, func() bool { return w.asked.Load() > 0 })
}

func TestTheUseOfClaimsIsWrittenInTurnAndNotForSmallChanges(t *testing.T) {
	const other = types.UID("ffffffff-1111-2222-3333-444455556666")
	pools := func(first, second uint64) []api.Pool {
		return []api.Pool{
			{Name: claim.PoolName(uid, 0), Devices: []api.PoolUse{{Limit: 16 * gib, Used: first}}},
			{Name: claim.PoolName(other, 0), Devices: []api.PoolUse{{Limit: 16 * gib, Used: second}}},
		}
	}
	var f figures
	steps := []struct {
		first, second uint64
		want          []types.UID // written one after the other, in any order
	}{
		{0, 0, []types.UID{uid, other}}, // the figures of an earlier driver are unknown
		{0, 1, []types.UID{other}},
		{0, gib - 1, nil},
		{0, gib + 1, []types.UID{other}},
		{gib, 1, []types.UID{uid, other}},
		{0, 1, []types.UID{uid}},
	}
	for _, s := range steps {
		f.read(pools(s.first, s.second))
		var got []types.UID
		for id := f.due(); id != "" && len(got) < 3; id = f.due() {
			got = append(got, id)
			f.wrote(id)
		}
		slices.Sort(got)
		if !slices.Equal(got, s.want) {
			t.Errorf("%d and %d are held: %v are written, want %v", s.first, s.second, got, s.want)
		}
	}
	f.read(nil)
	if len(f.written) > 0 {
		t.Errorf("claims that are gone are remembered: %v", f.written)
	}
}

func TestAClaimThatWaitsDelaysNoOther(t *testing.T) {
	wait, waiting := make(chan struct{}), make(chan struct{}, 1)
	w := &work{prepare: func(context.Context) error { waiting <- struct{}{}; <-wait; return nil }}
	k := start(t, w)
	defer close(wait)
	go func() {
		_, _ = k.NodePrepareResources(context.Background(), &dra.NodePrepareResourcesRequest{Claims: []*dra.Claim{{Namespace: "team", Name: "train", Uid: string(uid)}}})
	}()
	<-waiting
	if _, err := k.NodeUnprepareResources(t.Context(), &dra.NodeUnprepareResourcesRequest{Claims: []*dra.Claim{{Uid: "other"}}}); err != nil {
		t.Error(err)
	}
}

func TestDeviceHealthComesFromTheEnforcer(t *testing.T) {
	w := &work{}
	k := start(t, w)
	w.says(k.plugin, api.Health{Checks: []api.Check{{Name: "truth", Device: uuid, For: api.ForReady, Message: "the driver does not answer"}}})
	stream, err := k.health.NodeWatchResources(t.Context(), &drahealth.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if err != nil || len(r.Devices) != 1 || r.Devices[0].Health != drahealth.HealthStatus_UNHEALTHY || !strings.Contains(r.Devices[0].Message, "does not answer") {
		t.Errorf("got %+v, %v", r, err)
	}
	w.says(k.plugin, api.Health{})
	if r, err = stream.Recv(); err != nil || len(r.Devices) != 1 || r.Devices[0].Health != drahealth.HealthStatus_HEALTHY {
		t.Errorf("got %+v, %v", r, err)
	}
	k.plugin.Away()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if stream, err = k.health.NodeWatchResources(ctx, &drahealth.NodeWatchResourcesRequest{}); err != nil {
		t.Fatal(err)
	}
	if r, err := stream.Recv(); err == nil {
		t.Errorf("while the enforcer does not answer the kubelet receives %+v", r)
	}
}

func TestAPodWhoseProgramIsRefusedMemoryHasOneEventForAll(t *testing.T) {
	k := start(t, &work{})
	limit, used := uint64(4*gib), uint64(3*gib)
	for range 100 {
		k.status.Refused(uid, api.Event{Kind: api.EventRefused, Command: "python", Requested: 2 * gib, Limit: &limit, Used: &used, Time: time.Now()})
	}
	k.status.Refused("other", api.Event{})
	events := func() []corev1.Event {
		list, err := k.kube.CoreV1().Events("team").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Error(err)
		}
		return list.Items
	}
	eventually(t, "there is one", func() bool { return len(events()) > 0 })
	k.status.Refused(uid, api.Event{})
	await.Quiet(t, "there is another one", 10*k.status.Every, func() bool { return len(events()) != 1 })
	got := events()
	if len(got) != 1 || got[0].InvolvedObject.Name != "pod-1" || got[0].Message != "a process (python) was refused "+api.FormatSize(2*gib)+": claim train has "+
		api.FormatSize(4*gib)+", of which "+api.FormatSize(3*gib)+" were in use; 5Gi would have sufficed" {
		t.Errorf("got %+v", got)
	}
}

func TestTheLivenessProbeAsksTheDriversOwnSockets(t *testing.T) {
	k := start(t, &work{})
	for service, want := range map[string]bool{"": true, "liveness": true, "other": false} {
		r, err := k.live.Check(t.Context(), &grpchealth.HealthCheckRequest{Service: service})
		if got := err == nil && r.Status == grpchealth.HealthCheckResponse_SERVING; got != want {
			t.Errorf("%q: %v, %v", service, r, err)
		}
	}
	dead, err := NewLive("/none/a", "/none/b")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := dead.Check(t.Context(), &grpchealth.HealthCheckRequest{}); err != nil || r.Status != grpchealth.HealthCheckResponse_NOT_SERVING {
		t.Errorf("without sockets: %v, %v", r, err)
	}
}
